"""From an order of operations to instances: who is alive when, and who may take over whose memory.

An order is a list of operation ids; a second occurrence is a recomputation. That alone fixes residency: each read
takes the latest instance of its tensor, and an instance lives from its first use to its last. What a strategy keeps
or drops is therefore nothing but the order that it emits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..layers.graph import FED, STATE, Graph, Role, Tensor
from ..layers.kinds import KINDS
from .plan import NO_INSTANCE, NO_TENSOR, Run, aligned

Order = Sequence[int]


def aligned_size(tensor: Tensor) -> int:
    """Bytes that a tensor takes in the arena."""
    return aligned(tensor.nbytes)


@dataclass(slots=True)
class Draft:
    """A plan without addresses. Instances that share memory have the same buffer.

    Attributes:
        steps: as in the plan.
        tensor, birth, death, nbytes: of each instance.
        buffer: of each instance; the buffer's own number is that of its first instance.
    """

    steps: list[Run]
    tensor: list[int]
    birth: list[int]
    death: list[int]
    nbytes: list[int]
    buffer: list[int]

    def buffers(self) -> dict[int, tuple[int, int, int]]:
        """For each buffer (birth, death, bytes) over all its instances."""
        spans: dict[int, tuple[int, int, int]] = {}
        for instance, buffer in enumerate(self.buffer):
            birth, death, nbytes = self.birth[instance], self.death[instance], self.nbytes[instance]
            if buffer in spans:
                first, last, size = spans[buffer]
                birth, death, nbytes = min(first, birth), max(last, death), max(size, nbytes)
            spans[buffer] = (birth, death, nbytes)
        return spans

    def live_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes alive at each step."""
        change = np.zeros(len(self.steps) + 1, np.int64)
        for birth, death, nbytes in self.buffers().values():
            change[birth] += nbytes
            change[death + 1] -= nbytes
        return np.cumsum(change[:-1])


def without_dead_recomputations(graph: Graph, order: Order) -> list[int]:
    """Leave out repeated runs whose outputs nobody reads before they are made again."""
    first: dict[int, int] = {}
    for position, number in enumerate(order):
        first.setdefault(number, position)
    needed: set[int] = set()
    kept: list[int] = []
    for position in range(len(order) - 1, -1, -1):
        op = graph.ops[order[position]]
        if first[op.id] != position:
            always = KINDS[op.kind].kept
            made = [t for i, t in enumerate(op.outputs) if i not in always]
            if needed.isdisjoint(made):
                continue
            needed.difference_update(made)
        needed.update(op.inputs)
        kept.append(op.id)
    kept.reverse()
    return kept


def draft(
    graph: Graph,
    order: Order,
    kernel: Callable[[int], tuple[int, int]],
    *,
    size: Callable[[Tensor], int] = aligned_size,
    resident: Iterable[int] = (),
    final: Iterable[int] = (),
    share: bool = True,
    whole_step: bool = False,
) -> Draft:
    """Find instances and lifetimes for `order`.

    Args:
        graph: lowered.
        order: operation ids; every tensor that is read is made before, or is fed, state or `resident`.
        kernel: for an operation the index and the workspace bytes of its kernel.
        size: bytes of a tensor.
        resident: tensors that are there at the start, besides what is fed and state.
        final: tensors that must still be there at the end, besides state and the graph's outputs.
        share: whether an output may take over the memory of an input that dies.
        whole_step: every tensor has memory of its own for the whole step.
    """
    steps: list[Run] = []
    last = len(order) - 1
    out = Draft(steps, [], [], [], [], [])

    def instance(tensor: int, birth: int, nbytes: int) -> int:
        out.tensor.append(tensor)
        out.birth.append(birth)
        out.death.append(birth)
        out.nbytes.append(nbytes)
        out.buffer.append(len(out.buffer))
        return len(out.tensor) - 1

    current = {t: instance(t, 0, size(graph.tensors[t])) for t in resident}
    done: set[int] = set()
    for position, number in enumerate(order):
        op = graph.ops[number]
        again = number in done
        done.add(number)
        for t in op.inputs:
            if t not in current:
                role = graph.tensors[t].role
                assert role in STATE or role in FED, f"{op.name} reads {graph.tensors[t].name} before it is made"
                current[t] = instance(t, 0, size(graph.tensors[t]))
                if role in STATE:
                    out.death[-1] = last
        inputs = tuple(current[t] for t in op.inputs)
        for i in inputs:
            if out.death[i] < position:
                out.death[i] = position
        outputs = []
        for index, t in enumerate(op.outputs):
            if again and index in KINDS[op.kind].kept:
                kept = current[t]
                out.death[kept] = max(out.death[kept], position)
                outputs.append(kept)
            else:
                outputs.append(instance(t, position, size(graph.tensors[t])))
                current[t] = outputs[-1]
        index, workspace_bytes = kernel(number)
        workspace = instance(NO_TENSOR, position, aligned(workspace_bytes)) if workspace_bytes else NO_INSTANCE
        steps.append(Run(number, index, inputs, tuple(outputs), workspace, again))
    needed_after = {current[t] for t in (*graph.outputs, *final) if t in current}
    for i in needed_after:
        out.death[i] = max(last, 0)
    if whole_step:
        for i, t in enumerate(out.tensor):
            if t != NO_TENSOR:
                out.birth[i], out.death[i] = 0, max(last, 0)
    elif share:
        _share(graph, out, needed_after)
    return out


def _share(graph: Graph, out: Draft, needed_after: Container[int]) -> None:
    """Let outputs take over the memory of inputs that die at the same step, where the kind of operation allows it."""
    for position, step in enumerate(out.steps):
        op = graph.ops[step.op]
        taken: set[int] = set()
        for to, source in KINDS[op.kind].inplace:
            if to >= len(step.outputs) or source >= len(step.inputs):
                continue
            new, old = step.outputs[to], step.inputs[source]
            if (
                out.death[old] == position
                and out.birth[new] == position
                and new not in taken
                and old not in taken
                and old not in needed_after
                and step.inputs.count(old) == 1
                and out.nbytes[new] == out.nbytes[old]
                and graph.tensors[out.tensor[old]].role not in STATE
                and graph.tensors[out.tensor[old]].role is not Role.SCALARS
            ):
                out.buffer[new] = out.buffer[old]
                taken.update((new, old))
