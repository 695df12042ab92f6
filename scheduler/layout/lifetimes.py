"""From an order of operations to instances of tensors: when each is alive, and which share memory.

An order is a list of operation ids, where a second occurrence is a recomputation, with moves of tensors between them.
That alone fixes which tensors are in the arena when: each read takes the latest instance of its tensor, and an instance
lives from its first use to its last. So a strategy says what it keeps, drops or moves by the order that it proposes.

Not checked: whether every operation runs, and whether those that run again may; the plan's verifier is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...layers.graph import FED, STATE, Graph, Role, Tensor
from ...layers.kinds import KINDS, inplace_pairs
from ...memory.errors import PlanError
from ...memory.sizes import align_up
from ..plan.steps import NO_INSTANCE, NO_TENSOR, PAGE, Fetch, Offload, Run, Step, Wait, align_address
from .moves import Move, Order, Transfer


def aligned_size(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes in the arena."""
    return align_address(tensor.nbytes)


@dataclass(slots=True)
class LiveIntervals:
    """Intervals in which tensors are somewhere, as columns: the tensor, first step, last step and bytes of each."""

    tensor: list[int] = field(default_factory=list)
    birth: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)

    def add(self, tensor: int, birth: int, nbytes: int) -> int:
        """Add an interval of one step, which may grow; return its number."""
        self.tensor.append(tensor)
        self.birth.append(birth)
        self.death.append(birth)
        self.nbytes.append(nbytes)
        return len(self.tensor) - 1


@dataclass(slots=True)
class Lifetimes(LiveIntervals):
    """A plan without addresses: its instances as columns, and its steps.

    Attributes:
        steps: the steps of the plan.
        buffer: the buffer of each instance. Instances that share memory have the same one, named by the first of them.
        paged: buffers of instances that are moved; their sizes and addresses are multiples of a page.
        copies: the intervals in which tensors are outside the arena.
    """

    steps: list[Step] = field(default_factory=list)
    buffer: list[int] = field(default_factory=list)
    paged: set[int] = field(default_factory=set)
    copies: LiveIntervals = field(default_factory=LiveIntervals)

    def buffers(self) -> dict[int, tuple[int, int, int]]:
        """Return for each buffer (birth, death, bytes) over all its instances."""
        spans: dict[int, tuple[int, int, int]] = {}
        for instance, buffer in enumerate(self.buffer):
            birth, death, nbytes = self.birth[instance], self.death[instance], self.nbytes[instance]
            if buffer in spans:
                first, last, size = spans[buffer]
                birth, death, nbytes = min(first, birth), max(last, death), max(size, nbytes)
            spans[buffer] = (birth, death, nbytes)
        return spans

    def live_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes alive at each step, (steps,)."""
        change = np.zeros(len(self.steps) + 1, np.int64)
        for birth, death, nbytes in self.buffers().values():
            change[birth] += nbytes
            change[death + 1] -= nbytes
        return np.cumsum(change[:-1])


def drop_dead_recomputations(graph: Graph, order: Sequence[int]) -> list[int]:
    """Leave out repeated runs whose outputs no operation reads before they are made again."""
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


def find_lifetimes(
    graph: Graph,
    order: Order,
    kernel: Callable[[int], tuple[int, int]],
    *,
    size: Callable[[Tensor], int] = aligned_size,
    present: Iterable[int] = (),
    final: Iterable[int] = (),
    share: bool = True,
    whole_step: bool = False,
    outside: Container[int] = (),
) -> Lifetimes:
    """Find instances and lifetimes for `order`.

    Args:
        graph: lowered.
        order: operation ids and moves; every tensor that is read is made before, or is fed, state or `present`.
        kernel: returns for an operation the index and the workspace bytes of its kernel.
        size: returns the bytes of a tensor.
        present: tensors that are in the arena at the start, besides state and what the host writes.
        final: tensors that must still be there at the end, besides state and the graph's outputs.
        share: whether an output may take over the memory of an input that dies.
        whole_step: whether every tensor has memory of its own for the whole step.
        outside: state whose home is outside the arena; without moves it is there from its first use to its last.

    Raises:
        PlanError: the order names no operation of the graph, reads what is not there, or waits for no transfer.
    """
    out = Lifetimes()
    steps, last = out.steps, len(order) - 1
    current = {t: out.add(t, 0, size(graph.tensors[t])) for t in present}
    moving = _Moving(out, current, outside, last)
    done: set[int] = set()
    ops, tensors, death, add = graph.ops, graph.tensors, out.death, out.add
    known: dict[int, int] = {}  # one object for each size: there are few, and an object for each instance takes more

    def find(t: int, position: int, reader: str) -> None:
        """Begin the life of a tensor that is there without being made: state, or what the host writes."""
        role = tensors[t].role
        if role not in STATE and role not in FED:
            expected = f"an operation before it that makes {tensors[t].name}"
            raise PlanError(f"entry {position} of the order ({reader})", expected, "none")
        current[t] = add(t, position if t in outside else 0, size(tensors[t]))
        if role in STATE and t not in outside:
            death[-1] = last

    for position, entry in enumerate(order):
        if isinstance(entry, Move):
            if entry.what is Transfer.OFFLOAD and entry.tensor not in current:
                find(entry.tensor, position, "a transfer")
            nbytes = size(tensors[entry.tensor])
            steps.append(moving.step(entry, position, known.setdefault(nbytes, nbytes)))
            continue
        if not 0 <= entry < len(ops):
            raise PlanError(f"entry {position} of the order", f"one of {len(ops)} operations", str(entry))
        op = ops[entry]
        again = entry in done
        done.add(entry)
        for t in op.inputs:
            if t not in current:
                find(t, position, op.name)
        inputs = tuple([current[t] for t in op.inputs])
        for i in inputs:
            if death[i] < position:
                death[i] = position
        outputs = []
        kept = KINDS[op.kind].kept if again else ()
        for index, t in enumerate(op.outputs):
            if index in kept:
                number = current[t]
                death[number] = max(death[number], position)
            else:
                nbytes = size(tensors[t])
                number = current[t] = add(t, position, known.setdefault(nbytes, nbytes))
            outputs.append(number)
        index, workspace_bytes = kernel(entry)
        workspace = add(NO_TENSOR, position, align_address(workspace_bytes)) if workspace_bytes else NO_INSTANCE
        steps.append(Run(entry, index, inputs, tuple(outputs), workspace, again))
    out.buffer = list(range(len(out.tensor)))
    needed_after = {current[t] for t in (*graph.outputs, *final) if t in current}
    for i in needed_after:
        out.death[i] = max(last, 0)
    if whole_step:
        for i, t in enumerate(out.tensor):
            if t != NO_TENSOR:
                out.birth[i], out.death[i] = 0, max(last, 0)
    elif share:
        _share(graph, out, needed_after)
    moving.pad()
    return out


class _Moving:
    """Turns the moves of an order into steps, and keeps what they do to lifetimes."""

    def __init__(self, out: Lifetimes, current: dict[int, int], outside: Container[int], last: int) -> None:
        self._out = out
        self._current = current
        self._outside = outside
        self._last = last
        self._copy: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._moved: set[int] = set()

    def step(self, move: Move, position: int, size: int) -> Step:
        """Return the step of a move of so many bytes."""
        out, t = self._out, move.tensor
        copies = out.copies
        if move.what is Transfer.WAIT:
            if t not in self._begun:
                raise PlanError(f"entry {position} of the order", f"a transfer of tensor {t} to wait for", "none")
            began = self._begun[t]
            step = out.steps[began]
            assert isinstance(step, (Offload, Fetch))
            for intervals, number in ((out, step.instance), (copies, step.copy)):
                intervals.death[number] = max(intervals.death[number], position)
            return Wait(began)
        self._begun[t] = position
        if move.what is Transfer.OFFLOAD:
            instance = self._current[t]
            out.death[instance] = max(out.death[instance], position)
            if t not in self._outside:
                self._copy[t] = copies.add(t, position, align_up(out.nbytes[instance], PAGE))
            self._moved.add(instance)
            return Offload(instance, self._copy[t])
        if t not in self._copy:
            self._copy[t] = self._add_home(t, position, size)
        copy = self._copy[t]
        # Not padded yet: an output may take over the memory of what came back, as that of any other instance.
        instance = self._current[t] = out.add(t, position, size)
        self._moved.add(instance)
        return Fetch(copy, instance)

    def _add_home(self, tensor: int, position: int, nbytes: int) -> int:
        """Add the copy of a tensor of the state that is outside from the start to the end."""
        if tensor not in self._outside:
            expected = f"a copy of tensor {tensor} outside the arena to fetch"
            raise PlanError(f"entry {position} of the order", expected, "none: it has not left")
        copies = self._out.copies
        home = copies.add(tensor, 0, align_up(nbytes, PAGE))
        copies.death[home] = self._last
        return home

    def pad(self) -> None:
        """Give what is moved, and what shares its memory, whole pages."""
        out = self._out
        out.paged = {out.buffer[i] for i in self._moved}
        for i, buffer in enumerate(out.buffer if out.paged else ()):
            if buffer in out.paged:
                out.nbytes[i] = align_up(out.nbytes[i], PAGE)


def _share(graph: Graph, out: Lifetimes, needed_after: Container[int]) -> None:
    """Let outputs take over the memory of inputs that die at the same step, where the kind of operation allows it."""
    for position, step in enumerate(out.steps):
        if not isinstance(step, Run):
            continue
        op = graph.ops[step.op]
        taken: set[int] = set()
        for to, source in inplace_pairs(op):
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
