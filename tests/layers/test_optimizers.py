"""What an optimizer declares, and what follows from it in the graph: slots, updates and step scalars."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from bathyal.layers import (
    SGD,
    Constant,
    Conv2d,
    Flatten,
    Graph,
    Linear,
    Role,
    Sequential,
    forward_graph,
    training_graph,
)
from bathyal.layers.kinds import KINDS
from bathyal.layers.optimizers.optimizer import require_optimizer
from bathyal.layers.slabs import split_large
from bathyal.layers.step_scalars import FIRST_OWN, LEARNING_RATE, LOSS_SCALE, compute_scalars
from bathyal.memory.errors import ConfigError

NETWORK = Sequential(Conv2d(4, 3, name="conv"), Flatten(), Linear(5, name="fc"))


@dataclass(frozen=True)
class TwoSlots:
    """Any optimizer with two slots, one of which starts at another value than 0; nothing here computes its update."""

    kind: str = "sgd_update"
    learning_rate: float = 0.5
    attrs: Any = field(default_factory=lambda: {"beta": 0.9, "pair": (1, 2)})
    slots: Any = field(default_factory=lambda: {"average": 0.0, "square": 0.25})

    def step_scalars(self, step: int, learning_rate: float) -> dict[str, float]:
        return {"step": float(step), "half": learning_rate / 2}


@dataclass(frozen=True)
class Changing(TwoSlots):
    """An optimizer whose step scalars are not those of the first step."""

    later: Any = None

    def step_scalars(self, step: int, learning_rate: float) -> dict[str, float]:
        return {"step": 1.0} if step == 1 else self.later


def graph_of(optimizer: Any, limit_bytes: int = 2**25) -> Graph:
    return training_graph(split_large(forward_graph(NETWORK, (2, 3, 6, 6)), limit_bytes), optimizer)


def test_each_parameter_has_its_slots_in_order_and_one_update_that_overwrites_them() -> None:
    graph = graph_of(TwoSlots())
    names = [t.name for t in graph.tensors]
    updates = [op for op in graph.ops if op.phase.value == "update"]
    assert len(updates) == len(graph.with_role(Role.PARAMETER)) == 4
    for op in updates:
        weight, gradient, average, square, scalars = (graph.tensors[t] for t in op.inputs)
        assert (average.name, square.name) == (f"{weight.name}.average", f"{weight.name}.square")
        assert average.role is square.role is Role.OPTIMIZER
        assert average.spec == square.spec == weight.spec == gradient.spec
        assert (average.initializer, square.initializer) == (None, Constant(0.25))
        assert op.updates == (weight.id, average.id, square.id)
        assert dict(op.attrs) == {"beta": 0.9, "pair": (1, 2)}
        assert scalars.name == "scalars" and scalars.shape == (FIRST_OWN + 2,)
    assert len(names) == len(set(names))
    assert Graph.from_json(graph.to_json()) == graph


def test_slots_of_slabs_are_parts_of_whole_slots() -> None:
    graph = graph_of(TwoSlots(), limit_bytes=600)
    slabs = {t.name: t for t in graph.with_role(Role.PARAMETER) if t.part}
    assert len(slabs) >= 4
    for tensor in graph.with_role(Role.OPTIMIZER):
        parameter, _, slot = tensor.name.rpartition(".")
        if parameter in slabs:
            part = slabs[parameter].part
            assert part is not None
            assert tensor.part == replace(part, whole=f"{part.whole}.{slot}")


def test_sgd_keeps_a_slot_only_where_it_has_momentum() -> None:
    assert [t.name for t in graph_of(SGD(0.1)).with_role(Role.OPTIMIZER)] == []
    found = {t.name for t in graph_of(SGD(0.1, momentum=0.9)).with_role(Role.OPTIMIZER)}
    assert found == {f"{layer}.{name}.momentum" for layer in ("conv", "fc") for name in ("weight", "bias")}
    (scalars,) = (t for t in graph_of(SGD()).tensors if t.name == "scalars")
    assert scalars.shape == (2,)


def test_step_scalars_follow_learning_rate_and_loss_scale() -> None:
    found = compute_scalars(TwoSlots(), 3, 0.25)
    assert found.dtype == np.float64 and found.tolist() == [0.25, 1.0, 3.0, 0.125]
    assert (found[LEARNING_RATE], found[LOSS_SCALE]) == (0.25, 1.0)
    assert compute_scalars(SGD(), 1, 0.5, loss_scale=8.0).tolist() == [0.5, 8.0]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"other": 1.0}, r"the names of the first step, \['step'\], got \['other'\]"),
        ({}, r"\['step'\], got \[\]"),
        ({"step": float("nan")}, "Changing, step 2: expected a finite 'step', got nan"),
    ],
)
def test_step_scalars_that_change_are_refused(later: dict[str, float], message: str) -> None:
    optimizer = Changing(later=later)
    assert compute_scalars(optimizer, 1, 0.1).tolist() == [0.1, 1.0, 1.0]
    with pytest.raises(ConfigError, match=message):
        compute_scalars(optimizer, 2, 0.1)


def test_optimizers_that_have_all_members_are_taken() -> None:
    for optimizer in (SGD(), SGD(0.1, momentum=0.9, nesterov=True), TwoSlots(), TwoSlots(learning_rate=np.float32(1))):
        require_optimizer(optimizer, KINDS)


class Bare:
    """An object with a part of what an optimizer has."""

    kind = "sgd_update"
    slots: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("sgd", "'sgd' without kind, attrs, learning_rate, slots, step_scalars"),
        (SGD, "got the class SGD. Call the class"),
        (Bare(), "without attrs, learning_rate, step_scalars"),
        (TwoSlots(kind="adam"), r"TwoSlots.kind: .*registered kind of operation, got 'adam'. .*register_operation"),
        (TwoSlots(kind="max_pool"), "TwoSlots.kind: expected a kind that is declared flat, got 'max_pool'"),
        (TwoSlots(kind=3), "TwoSlots.kind: .*got 3"),  # type: ignore[arg-type]
        (TwoSlots(attrs=[]), "TwoSlots.attrs: expected a mapping"),
        (TwoSlots(attrs={"betas": {0.9}}), r"TwoSlots.attrs: .*'betas': a set"),
        (TwoSlots(attrs={"kind": 1}), "names other than kind and slots"),
        (
            TwoSlots(learning_rate=-1.0),
            "TwoSlots.learning_rate: expected a number that is finite and at least 0, got -1",
        ),
        (TwoSlots(learning_rate="fast"), "TwoSlots.learning_rate: .*'fast'"),  # type: ignore[arg-type]
        (TwoSlots(slots=("average",)), "TwoSlots.slots: expected a mapping"),
        (TwoSlots(slots={"a.b": 0.0}), r"TwoSlots.slots: expected names that are identifiers, got \('a.b',\)"),
        (TwoSlots(slots={"a": None}), "TwoSlots.slots: expected a finite number for 'a', got None"),
        (Changing(later={}, slots={"a": float("inf")}), "Changing.slots: expected a finite number for 'a', got inf"),
    ],
)
def test_what_is_missing_is_said(optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_optimizer(optimizer, KINDS)


def test_step_scalars_are_checked_with_the_rest() -> None:
    @dataclass(frozen=True)
    class Textual(TwoSlots):
        def step_scalars(self, step: int, learning_rate: float) -> Any:
            return {"step": str(step)}

    with pytest.raises(ConfigError, match=r"Textual.step_scalars\(1, 0.5\): expected a finite number for 'step'"):
        require_optimizer(Textual(), KINDS)
