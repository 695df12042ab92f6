"""Runs a plan: one loop, no decisions.

Binding turns each step of the plan into a piece of work with its addresses; a run uploads what the host feeds,
launches the work in order, and downloads the outputs. Transfers go to the queue of their direction, behind all that the
computation was given before, and a wait puts the computation behind them. Nothing is allocated in the arena and nothing
is chosen here. Where a step trains in the host's memory, its loss is looked at as soon as it is made: what follows one
that is not finite would put such numbers into the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.graph import FED, Graph, Op, Phase, Tensor
from ..layers.kinds import KINDS
from ..layers.modes import LOSS
from ..memory.arena import Arena
from ..memory.devices.device import Accesses, Device, Queue, Work
from ..memory.errors import DataError, NonFiniteError, unreachable
from ..memory.tiers.tier import Tier
from ..scheduler.plan.steps import NO_INSTANCE, NO_TENSOR, Fetch, Offload, Plan, Run, Step, Wait
from .backends.backend import NO_WORKSPACE, Backend
from .results import Watch
from .subnormals import FloatingPointControl, load_floating_point_control

Array = npt.NDArray[Any]

REPORTS = 256
"""How often a step says how far it is, at most."""
LEAST_CHUNK = 32
"""Steps of a plan between two reports, at least."""
SEARCHED_BYTES = 2**20
"""Bytes of a tensor that are looked at in one piece, outside the arena, when what is not finite is searched for."""


def _run_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _tell_nobody(done: int, total: int) -> None:
    """Tell nobody how far a step is."""


class Executor:
    """A plan that is bound to a device, a backend, and a tier where it moves bytes out.

    Attributes:
        plan: that is run.
        high_water_bytes: how far up the arena it reaches, once it is bound.
        waited_seconds: that the computation of the latest run waited for transfers.
    """

    def __init__(self, plan: Plan, graph: Graph, backend: Backend, device: Device, tier: Tier | None = None) -> None:
        self.plan = plan
        self._graph = graph
        self._backend = backend
        self._device = device
        self._tier = tier
        self._launches: list[Callable[[], None]] = []
        # A bound method is an object each time it is named: tens of thousands of steps share these.
        self._compute, self._offload, self._fetch = device.compute.launch, device.offload, device.fetch
        self._begin, self._end, self._touched = self._transfer, self._wait, self._list_accesses
        self._under_way: dict[int, Any] = {}
        self._fed: dict[str, int] = {}
        self._outputs: dict[str, tuple[int, Array]] = {}
        self._done: Any = None
        self._runs = 0
        self._replay: Callable[[], None] | None = None
        self._arithmetic = FloatingPointControl(None, None)
        self.high_water_bytes = 0
        self.waited_seconds = 0.0

    def bind(self) -> None:
        """Make the work of every step and measure how far up the arena it reaches: `high_water_bytes`.

        Raises:
            PlanError: the plan needs more than the arena has.
        """
        arena, graph = self._device.arena, self._graph
        arena.reset_high_water()
        fetched = {step.instance for step in self.plan.steps if isinstance(step, Fetch)}
        last = len(self.plan.steps) - 1
        for number, i in enumerate(self.plan.instances):
            if i.tensor == NO_TENSOR:
                continue
            tensor = graph.tensors[i.tensor]
            if tensor.role in FED and number not in fetched:
                self._fed[tensor.name] = number
            if tensor.id in graph.outputs and i.death == last:
                self._outputs[tensor.name] = (number, np.empty(tensor.nbytes, np.uint8))
        self._launches = [self._make_launch(position, step) for position, step in enumerate(self.plan.steps)]
        self.high_water_bytes = arena.high_water_bytes
        self._arithmetic = load_floating_point_control()

    def _make_launch(self, position: int, step: Step) -> Callable[[], None]:
        """Make what a run calls for a step."""
        match step:
            case Run():
                look = self._make_look(step)
                work = self._make_work(step)
                work = work if look is None else replace(work, run=partial(_run_both, work.run, look))
                return partial(self._compute, work)
            case Offload() | Fetch():
                return partial(self._begin, position, *self._find_copy(step))
            case Wait():
                return partial(self._end, step.transfer)
            case _:
                unreachable(step)

    def _find_copy(self, step: Offload | Fetch) -> tuple[Queue, Callable[[], None]]:
        device, tier = self._device, self._tier
        assert tier is not None, "a plan with transfers has a tier"
        instance, copy = self.plan.instances[step.instance], self.plan.copies[step.copy]
        device.arena.claim(instance.address, instance.nbytes)
        if isinstance(step, Offload):
            return device.out, partial(self._offload, device.out, instance.address, instance.nbytes, tier, copy.address)
        return device.inward, partial(self._fetch, device.inward, tier, copy.address, instance.address, instance.nbytes)

    def _transfer(self, position: int, queue: Queue, copy: Callable[[], None]) -> None:
        """Begin a transfer once all that was computed before is done."""
        queue.wait(self._device.compute.record())
        copy()
        self._under_way[position] = queue.record()

    def _wait(self, transfer: int) -> None:
        """Let the computation go on once a transfer is done."""
        begin = time.perf_counter()
        self._device.compute.wait(self._under_way.pop(transfer))
        self.waited_seconds += time.perf_counter() - begin

    def _make_work(self, step: Run) -> Work:
        op = self._graph.ops[step.op]
        for number in (*step.inputs, *step.outputs, *([step.workspace] if step.workspace != NO_INSTANCE else [])):
            self._device.arena.claim(self.plan.instances[number].address, self.plan.instances[number].nbytes)
        launch = self._backend.bind(self._graph, op, step.kernel, step.recompute, self._device.arena)
        workspace = NO_WORKSPACE if step.workspace == NO_INSTANCE else self.plan.instances[step.workspace].address
        addresses = (*(self.plan.instances[n].address for n in (*step.inputs, *step.outputs)), workspace)
        return Work(op.name, partial(launch, addresses), partial(self._touched, step))

    def _make_look(self, step: Run) -> Callable[[], None] | None:
        """Make what looks at the loss of a training step once it is made; None behind other operations."""
        op, arena, tensors = self._graph.ops[step.op], self._device.arena, self._graph.tensors
        if op.phase is not Phase.LOSS or step.recompute or not isinstance(arena, Arena):
            return None
        if not any(other.phase is Phase.UPDATE for other in self._graph.ops):
            return None
        made = [(n, tensors[t]) for n, t in zip(step.outputs, op.outputs, strict=True) if tensors[t].name == LOSS]
        if not made:
            return None
        ((number, tensor),) = made
        first, end = self._find_range(number)[0], self._find_range(number)[0] + tensor.nbytes
        content, backend = arena.memory[first:end], self._backend

        def look() -> None:
            loss = backend.decode(tensor, content)
            if not np.isfinite(loss).all():
                raise NonFiniteError(LOSS, "finite numbers", f"a loss of {loss.reshape(-1)[0]}")

        return look

    def _list_accesses(self, step: Run) -> Accesses:
        op = self._graph.ops[step.op]
        kept = KINDS[op.kind].kept if step.recompute else ()
        reads = [*step.inputs, *(step.outputs[i] for i in kept)]
        writes = [n for i, n in enumerate(step.outputs) if i not in kept]
        writes += [n for n, t in zip(step.inputs, op.inputs, strict=True) if t in op.updates]
        writes += [step.workspace] if step.workspace != NO_INSTANCE else []
        return Accesses(tuple(map(self._find_range, reads)), tuple(map(self._find_range, writes)))

    def _find_range(self, instance: int) -> tuple[int, int]:
        i = self.plan.instances[instance]
        return i.address, i.address + i.nbytes

    def release(self) -> None:
        """Let go of the work of all steps and the buffers of the outputs; nothing can be run any more."""
        self._launches.clear()
        self._outputs.clear()
        self._replay = None

    def run(self, feeds: Mapping[str, Array], watch: Watch | None = None) -> dict[str, Array]:
        """Run one step and return the graph's outputs by name; subnormal numbers count as zero meanwhile.

        Args:
            feeds: plain values of every tensor that the host writes, by name; those that no operation reads are
                left out.
            watch: told how many steps of the plan are done, of how many.
        """
        with self._arithmetic.flush_subnormals():
            return self._run(feeds, watch or _tell_nobody)

    def _run(self, feeds: Mapping[str, Array], watch: Watch) -> dict[str, Array]:
        device, graph = self._device, self._graph
        self._begin_run(feeds)
        if self._runs == 1:  # the first has made what a library makes once
            self._replay = device.capture(self._launch_all)
        (self._replay or partial(self._launch_all, watch))()
        self._runs += 1
        self._done = device.compute.record()
        device.out.wait(self._done)
        for number, buffer in self._outputs.values():
            device.download(device.out, self.plan.instances[number].address, buffer)
        device.out.synchronize()
        return {
            name: self._backend.decode(graph.tensors[self.plan.instances[number].tensor], buffer)
            for name, (number, buffer) in self._outputs.items()
        }

    def _begin_run(self, feeds: Mapping[str, Array]) -> None:
        """Upload what the host writes, once the run before is done, and let the computation wait for it."""
        device, graph = self._device, self._graph
        if self._done is not None:
            device.inward.wait(self._done)
        for name, number in self._fed.items():
            if name not in feeds:
                raise DataError(name, "a value for every tensor that the host writes", "none")
            instance = self.plan.instances[number]
            content = self._backend.encode(graph.tensors[instance.tensor], feeds[name])
            device.upload(device.inward, instance.address, content)
        device.compute.wait(device.inward.record())
        self._under_way.clear()
        self.waited_seconds = 0.0

    def find_not_finite(self, feeds: Mapping[str, Array]) -> tuple[Op, Tensor, int] | None:
        """Run again up to the loss, and look at every tensor as soon as it is made.

        The state must be as it was before the step. Of a plan in another memory than the host's nothing is found.

        Returns:
            the first operation that makes numbers that are not finite, the tensor, and how many it holds.
        """
        for queue in (self._device.compute, self._device.out, self._device.inward):
            queue.synchronize()
        if not isinstance(self._device.arena, Arena):
            return None
        self._begin_run(feeds)
        for launch, step in zip(self._launches, self.plan.steps, strict=True):
            if not isinstance(step, Run):
                launch()
                continue
            op = self._graph.ops[step.op]
            self._compute(self._make_work(step))
            bad = self._count_not_finite(list(zip(step.outputs, op.outputs, strict=True)))
            if bad is not None:
                return (op, *bad)
            if op.phase is Phase.LOSS:
                break
        return None

    def _count_not_finite(self, operands: Sequence[tuple[int, int]]) -> tuple[Tensor, int] | None:
        """Return the first of some tensors, each with its instance, that is not finite, and how many values are not."""
        device = self._device
        device.out.wait(device.compute.record())
        buffer = np.empty(SEARCHED_BYTES, np.uint8)
        for number, t in operands:
            tensor, address, bad = self._graph.tensors[t], self.plan.instances[number].address, 0
            if np.dtype(tensor.dtype).kind != "f":
                continue
            for first in range(0, tensor.nbytes, SEARCHED_BYTES):
                part = buffer[: min(SEARCHED_BYTES, tensor.nbytes - first)]
                device.download(device.out, address + first, part)
                device.out.synchronize()
                bad += int(np.count_nonzero(~np.isfinite(part.view(tensor.dtype))))
            if bad:
                return tensor, bad
        return None

    def _launch_all(self, watch: Watch = _tell_nobody) -> None:
        steps = len(self._launches)
        chunk = max(steps // REPORTS, LEAST_CHUNK)
        for first in range(0, steps, chunk):
            watch(first, steps)
            for launch in self._launches[first : first + chunk]:
                launch()
        watch(steps, steps)
