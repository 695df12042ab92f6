"""Training with large parameters in slabs: whole for the user, the same numbers, less memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine import programs
from bathyal.engine.backends.registry import AUTO, BACKENDS
from bathyal.engine.checkpoints import folder as checkpoint
from bathyal.engine.planning.alone import plan_without_memory
from bathyal.engine.programs import Mode, make_mode_graph
from bathyal.engine.settings import Settings
from bathyal.engine.state import State
from bathyal.engine.trainer import Trainer
from bathyal.layers.graph import Role
from bathyal.layers.slabs import split_large
from bathyal.memory.errors import CheckpointError, DataError, DeviceError
from bathyal.models import alexnet, vgg16
from bathyal.scheduler.strategies import STRATEGIES
from tests.support.host_tier import HostTier
from tests.support.spilling import needs_link

SHAPE = (4, 3, 6, 6)
LIMIT = 4000
WHOLE = ("fc.weight", (37, 8 * 36))
STEPS = 4


def network() -> bt.Sequential:
    return bt.Sequential(
        bt.Conv2d(8, 3, padding=1, bias=False),
        bt.BatchNorm2d(),
        bt.ReLU(),
        bt.Flatten(),
        bt.Linear(37, name="fc"),
        bt.ReLU(),
        bt.Dropout(0.3),
        bt.Linear(5, bias=False, name="out"),
        name="small",
    )


def trainer(**choices: Any) -> Trainer:
    optimizer = bt.SGD(0.05, momentum=0.9, weight_decay=1e-3)
    given: dict[str, Any] = {"memory": "4 MiB", "costs": "analytic", "kernels": "fixed", "device": "reference"}
    return Trainer(network(), SHAPE, optimizer=optimizer, **{**given, **choices})


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    sizes = (4, 4, 3, 4)
    return [(rng.normal(size=(n, *SHAPE[1:])), rng.integers(0, 5, n)) for n in sizes]


def trained(t: Trainer) -> tuple[list[float], str]:
    with t:
        losses = [result.loss for result in t.fit(batches())]
        return losses, t.state.weights_sha256()


@pytest.fixture
def slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of 4,000 bytes, of which the network's weight has eleven or more."""
    monkeypatch.setattr(programs, "split_large", partial(split_large, limit_bytes=LIMIT))


def parts(t: Trainer) -> list[Any]:
    return [x for x in t.planned.graph.with_role(Role.PARAMETER) if x.part and x.part.whole == WHOLE[0]]


@pytest.mark.parametrize("device", [name for name in BACKENDS if name != AUTO])
def test_users_see_the_whole_parameters(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> tuple[Any, ...]:
        try:
            t = trainer(device=device)
        except DeviceError as error:
            pytest.skip(str(error))
        with t:
            state, graph = t.state, t.planned.graph
            values = {name: state.read(name) for name in state.names()}
            counts = (len(parts(t)), graph.layers, graph.parameters, graph.state_bytes)
            return {n: v.shape for n, v in values.items()}, values, state.weights_sha256(), counts

    shapes, values, digest, (count, *numbers) = seen()
    assert count == 0
    monkeypatch.setattr(programs, "split_large", partial(split_large, limit_bytes=LIMIT))
    shapes_of_slabs, values_of_slabs, digest_of_slabs, (count, *numbers_of_slabs) = seen()
    assert count > 10
    assert shapes_of_slabs == shapes
    assert shapes[WHOLE[0]] == shapes[f"{WHOLE[0]}.momentum"] == WHOLE[1]
    for name, value in values.items():
        np.testing.assert_array_equal(values_of_slabs[name], value)
    assert digest_of_slabs == digest
    assert numbers_of_slabs == numbers


def test_losses_and_weights_are_those_without_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[float], dict[str, Any], Any, Any]:
        with trainer(dtype="float64") as t:
            losses = [result.loss for result in t.fit(batches())]
            values = {name: t.state.read(name) for name in t.state.names()}
            return losses, values, t.evaluate(batches()).loss, t.predict(batches()[0][0])

    losses, values, evaluated, predicted = run()
    monkeypatch.setattr(programs, "split_large", partial(split_large, limit_bytes=LIMIT))
    found = run()
    np.testing.assert_allclose(found[0], losses, rtol=1e-12)
    np.testing.assert_allclose(found[2], evaluated, rtol=1e-12)
    np.testing.assert_allclose(found[3], predicted, rtol=1e-10)
    assert list(found[1]) == list(values)
    for name, value in values.items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-9, atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("slabs")
@pytest.mark.parametrize("device", ["reference", "onednn"])
def test_every_strategy_and_budget_gives_the_same_bits(device: str) -> None:
    try:
        expected = trained(trainer(device=device, strategy="keep"))
    except DeviceError as error:
        pytest.skip(str(error))
    with trainer(device=device, strategy="chain") as t:
        assert len(parts(t)) > 10
        least, most = t.plan.min_budget_bytes, t.plan.peak_bytes
    for strategy in STRATEGIES:
        moving = {"link": "500 MB", "make_tier": HostTier} if needs_link(strategy) else {}
        assert trained(trainer(device=device, strategy=strategy, **moving)) == expected
    for memory in (least, (least + most) // 2):
        assert trained(trainer(device=device, strategy="chain", memory=memory)) == expected


@pytest.mark.usefixtures("slabs")
@pytest.mark.parametrize("device", ["reference", "onednn"])
def test_a_resumed_run_ends_with_the_same_bits(device: str, tmp_path: Path) -> None:
    try:
        expected = trained(trainer(device=device))
    except DeviceError as error:
        pytest.skip(str(error))
    with trainer(device=device) as first:
        losses = [result.loss for result in first.fit(batches(), steps=2)]
        first.save(tmp_path)
    with trainer(device=device) as second:
        assert second.restore(tmp_path)
        losses += [result.loss for result in second.fit(batches())]
        assert (losses, second.state.weights_sha256()) == expected


@pytest.mark.parametrize("written_in_slabs", [True, False])
def test_a_checkpoint_holds_whole_parameters(
    written_in_slabs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte the values of a run without slabs, which either kind of run reads."""
    whole, small = programs.split_large, partial(split_large, limit_bytes=LIMIT)
    monkeypatch.setattr(programs, "split_large", small if written_in_slabs else whole)
    with trainer() as t:
        list(t.fit(batches(), steps=2))
        digest = t.state.weights_sha256()
        values = {name: t.state.read(name) for name in t.state.names()}
        saved = checkpoint.read_checkpoint(t.save(tmp_path))
    assert saved.entries[WHOLE[0]].shape == saved.entries[f"{WHOLE[0]}.momentum"].shape == WHOLE[1]
    assert not any("[" in name for name in saved.entries)
    for name, array in saved.arrays():
        np.testing.assert_array_equal(array, values[name])
    monkeypatch.setattr(programs, "split_large", whole if written_in_slabs else small)
    with trainer() as t:
        assert t.restore(tmp_path)
        assert bool(parts(t)) != written_in_slabs
        assert t.state.weights_sha256() == digest
        np.testing.assert_array_equal(t.state.read(f"{WHOLE[0]}.momentum"), values[f"{WHOLE[0]}.momentum"])


@pytest.mark.usefixtures("slabs")
def test_saving_and_restoring_hold_one_slab_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    def watched(state: Any, name: str, pieces: Iterator[Any]) -> None:
        def passing() -> Iterator[Any]:
            nonlocal largest
            for piece in pieces:
                largest = max(largest, piece.nbytes)
                yield piece

        plainly(state, name, passing())

    with trainer() as t:
        assert t.state.rows(WHOLE[0]) == tuple(part.shape[0] for part in parts(t))
        assert max(piece.nbytes for piece in t.state.pieces(WHOLE[0])) <= LIMIT
        monkeypatch.delattr(State, "read")  # makes the whole
        t.save(tmp_path)
        assert t.state.weights_sha256()
    plainly = State.write_pieces
    monkeypatch.setattr(State, "write_pieces", watched)
    monkeypatch.delattr(State, "write")
    with trainer() as t:
        assert t.restore(tmp_path)
    assert 0 < largest <= LIMIT


@pytest.mark.usefixtures("slabs")
def test_a_damaged_slab_is_found(tmp_path: Path) -> None:
    with trainer() as t:
        path = t.save(tmp_path)
    entry = checkpoint.read_checkpoint(path).entries[WHOLE[0]]
    content = bytearray(path.read_bytes())
    content[entry.offset + entry.nbytes - 1] ^= 1
    path.write_bytes(content)
    with trainer() as t, pytest.raises(CheckpointError, match="a whole checkpoint"):
        t.restore(tmp_path)


@pytest.mark.usefixtures("slabs")
def test_whole_values_are_written_and_read() -> None:
    values = np.random.default_rng(1).normal(size=WHOLE[1]).astype(np.float32)
    with trainer() as t:
        for name in (WHOLE[0], f"{WHOLE[0]}.momentum"):
            t.state.write(name, values)
            np.testing.assert_array_equal(t.state.read(name), values)
        with pytest.raises(DataError, match=r"fc.weight: expected values of shape \(37, 288\)"):
            t.state.write(WHOLE[0], values[1:])
        with pytest.raises(DataError, match="no such tensor"):
            t.state.read(parts(t)[0].name)
        np.testing.assert_array_equal(t.state.read(WHOLE[0]), values)


@pytest.mark.usefixtures("slabs")
def test_the_state_has_one_layout_for_all_programs() -> None:
    with trainer(memory="2 MiB") as t:
        list(t.fit(batches()))
        addresses = t._session.state_layout.addresses
        for mode, batch in ((Mode.TRAINING, 4), (Mode.TRAINING, 3), (Mode.EVALUATION, 4), (Mode.PREDICTION, 2)):
            planned, _ = t._session.program(mode, batch)
            for i in planned.plan.instances:
                if i.tensor >= 0 and planned.graph.tensors[i.tensor].name in addresses:
                    assert i.address == addresses[planned.graph.tensors[i.tensor].name]


@pytest.mark.parametrize(("build", "mib"), [(vgg16, 1100), (alexnet, 500)])
def test_the_least_budget_of_networks_with_large_layers(build: Any, mib: int) -> None:
    """State, and little more: without slabs the gradient of the first fully connected layer was 392 or 144 MiB."""
    optimizer = bt.SGD(0.01, momentum=0.9)
    settings = Settings(input_shape=(1, 3, 224, 224), optimizer=optimizer, device="null", costs="analytic")
    planned = plan_without_memory(build(), settings, 2**45)
    graph = planned.graph
    assert graph.state_bytes < planned.plan.min_budget_bytes <= mib * 2**20
    assert planned.plan.min_budget_bytes < graph.state_bytes + 48 * 2**20
    assert {t.name for t in make_mode_graph(build(), settings, Mode.EVALUATION, 5).with_role(Role.PARAMETER)} == {
        t.name for t in graph.with_role(Role.PARAMETER)
    }
