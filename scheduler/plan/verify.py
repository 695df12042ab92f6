"""Check a plan without trusting its maker.

The verifier replays the steps and raises `PlanError` unless all of this holds:

- Every operation runs, and runs for the first time exactly once; only what may be repeated is repeated.
- Every operation reads the right values, which are there and unharmed.
- No two live instances overlap.
- Transfers are waited for before a step relies on them.
- State lies where all plans of a run expect it.
- No more bytes are in the arena, and outside of it, than there may be.

It shares no code with the planners. Seconds are not checked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from ...layers.graph import FED, STATE, Graph, Phase
from ...layers.kinds import KINDS, inplace_pairs
from ...memory.errors import PlanError
from .costs import CostTable
from .state_layout import StateLayout
from .steps import ALIGNMENT, NO_INSTANCE, NO_TENSOR, Fetch, Plan, Run
from .transfer_states import StateTracker, TransferEvent
from .verify_moves import TransferReplay


def verify(
    plan: Plan, graph: Graph, costs: CostTable, state: StateLayout, most_outside_bytes: int | None = None
) -> None:
    """Check `plan` against the lowered `graph`, its kernels, the addresses of the state and the limits on its bytes.

    Args:
        plan: to be checked; its own budget is the limit on what lies in the arena.
        graph: that it is for.
        costs: the kernels.
        state: where the state lies.
        most_outside_bytes: the limit on what lies outside the arena; None for none.

    Raises:
        PlanError: names the step and the rule that it breaks.
    """
    if plan.graph != graph.fingerprint():
        raise PlanError("plan", f"a plan for the graph {graph.fingerprint()[:12]}", plan.graph[:12])
    if plan.peak_bytes > plan.budget_bytes:
        raise PlanError("plan", f"at most {plan.budget_bytes} bytes", f"{plan.peak_bytes}")
    if most_outside_bytes is not None and plan.outside_bytes > most_outside_bytes:
        raise PlanError("plan", f"at most {most_outside_bytes} bytes outside the arena", f"{plan.outside_bytes}")
    _check_instances(plan, graph, state)
    _check_steps(plan, graph, costs, state)
    _check_overlaps(plan)


def _check_instances(plan: Plan, graph: Graph, state: StateLayout) -> None:
    end = 0
    for number, i in enumerate(plan.instances):
        where = f"instance {number}"
        if i.address < 0 or i.address % ALIGNMENT or i.nbytes < 0:
            raise PlanError(where, f"an address aligned to {ALIGNMENT}", f"{i.address} with {i.nbytes} bytes")
        if not 0 <= i.birth <= i.death < max(len(plan.steps), 1):
            raise PlanError(where, "a life within the step", f"{i.birth} to {i.death}")
        end = max(end, i.address + i.nbytes)
        if i.tensor != NO_TENSOR:
            if not 0 <= i.tensor < len(graph.tensors):
                raise PlanError(where, f"one of {len(graph.tensors)} tensors", str(i.tensor))
            tensor = graph.tensors[i.tensor]
            if i.nbytes < tensor.nbytes:
                raise PlanError(where, f"{tensor.nbytes} bytes", f"{i.nbytes}")
            if tensor.name in state.addresses:
                if i.address != state.addresses[tensor.name]:
                    raise PlanError(where, f"{tensor.name} at {state.addresses[tensor.name]}", f"{i.address}")
                continue
        if i.address < state.nbytes:
            raise PlanError(where, f"an address above the state, which ends at {state.nbytes}", f"{i.address}")
    if end != plan.peak_bytes:
        raise PlanError("plan", f"peak_bytes {end}, the highest end of an instance", str(plan.peak_bytes))


class _Replay:
    """What holds which value at a point of the training step; `_begin_replay` makes one for the beginning.

    Args:
        plan: the plan that is replayed.
        graph: lowered.
        state: where the state lies.
        inside: of each instance, whether it holds its value.
        written: of each instance that holds a value, how often that value was updated.
    """

    def __init__(
        self, plan: Plan, graph: Graph, state: StateLayout, inside: StateTracker, written: dict[int, int]
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.state = state
        self.inside = inside
        self.written = written
        self.updaters: dict[int, list[int]] = defaultdict(list)
        for op in graph.ops:
            for tensor in op.updates:
                self.updaters[tensor].append(op.id)
        self.runs: dict[int, int] = {}
        self.kernels: dict[int, int] = {}
        self.transfers = TransferReplay(plan, graph, state, inside, written)

    def check_operand(self, where: str, position: int, number: int, tensor: int) -> None:
        """Check that a step may name an instance for a tensor: the instance is the tensor's and alive."""
        if not 0 <= number < len(self.plan.instances):
            raise PlanError(where, "an instance of the plan", str(number))
        instance = self.plan.instances[number]
        if instance.tensor != tensor:
            raise PlanError(where, f"an instance of tensor {tensor}", f"one of {instance.tensor}")
        if not instance.birth <= position <= instance.death:
            raise PlanError(where, f"instance {number} alive", f"it lives from {instance.birth} to {instance.death}")

    def read(self, where: str, position: int, number: int, tensor: int, op: int) -> None:
        """Check that an instance which is read holds the value that `op` means, from before or after each update."""
        self.check_operand(where, position, number, tensor)
        self.inside.apply(f"{where}: {self.graph.tensors[tensor].name}", number, TransferEvent.READ)
        updaters = self.updaters.get(tensor, ())
        updates = bisect_left(updaters, op)
        if self.written[number] != updates:
            age = "old" if not updates else "new" if updates == len(updaters) else f"{updates} times updated"
            raise PlanError(where, f"the {age} value of {self.graph.tensors[tensor].name}", "the other one")

    def check_state(self) -> None:
        """Check that the new state lies, at the end, where the next training step expects it."""
        values = {
            self.plan.instances[n].tensor: v for n, v in self.written.items()
        } | self.transfers.count_home_updates()
        for tensor, updaters in self.updaters.items():
            if values.get(tensor) != len(updaters):
                raise PlanError("plan", f"the new value of {self.graph.tensors[tensor].name} at the end", "the old one")


def _begin_replay(plan: Plan, graph: Graph, state: StateLayout) -> _Replay:
    """Check what is there before the training step, state and what is fed, and begin to replay there."""
    inside, written = StateTracker("instance"), dict[int, int]()
    replay = _Replay(plan, graph, state, inside, written)
    replay.transfers.check_copies()
    seen: set[int] = set()
    fetched = {step.instance for step in plan.steps if isinstance(step, Fetch)}
    for number, i in enumerate(plan.instances):
        if i.tensor == NO_TENSOR or number in fetched:
            continue
        role = graph.tensors[i.tensor].role
        if role in STATE or role in FED:
            where = f"instance {number}"
            if i.tensor in seen:
                raise PlanError(where, "one instance of each state or fed tensor", "a second")
            if i.birth or (role in STATE and i.death != len(plan.steps) - 1):
                raise PlanError(where, "state that lives the whole step", f"{i.birth} to {i.death}")
            if graph.tensors[i.tensor].name in state.outside:
                raise PlanError(where, "state that is fetched, as its home is outside", str(i))
            seen.add(i.tensor)
            inside.mark_present(number)
            written[number] = 0
    return replay


def _check_steps(plan: Plan, graph: Graph, costs: CostTable, state: StateLayout) -> None:
    replay = _begin_replay(plan, graph, state)
    for position, step in enumerate(plan.steps):
        if not isinstance(step, Run):
            replay.transfers.follow(f"step {position} ({type(step).__name__.lower()})", position, step)
            continue
        if not 0 <= step.op < len(graph.ops):
            raise PlanError(f"step {position}", f"one of {len(graph.ops)} operations", str(step.op))
        op = graph.ops[step.op]
        where = f"step {position} ({op.kind} {op.name})"
        kind = KINDS[op.kind]
        before = replay.runs.get(op.id, 0)
        if bool(before) != step.recompute:
            raise PlanError(where, "recompute on exactly the repeated runs", f"run number {before + 1}")
        if before and (op.updates or op.phase is not Phase.FORWARD):
            raise PlanError(where, "no repetition of an update, a loss or a gradient", "a second run")
        if step.kernel != replay.kernels.setdefault(op.id, step.kernel):
            raise PlanError(where, "the kernel of the first run", f"kernel {step.kernel}")
        if len(step.inputs) != len(op.inputs) or len(step.outputs) != len(op.outputs):
            raise PlanError(where, f"{len(op.inputs)} inputs and {len(op.outputs)} outputs", f"{step}")
        for number, tensor in zip(step.inputs, op.inputs, strict=True):
            replay.read(where, position, number, tensor, op.id)
        for index, (number, tensor) in enumerate(zip(step.outputs, op.outputs, strict=True)):
            if before and index in kind.kept:
                replay.read(where, position, number, tensor, op.id)
                continue
            replay.check_operand(where, position, number, tensor)
            replay.inside.apply(where, number, TransferEvent.MAKE)
            replay.written[number] = 0
        for number, tensor in zip(step.inputs, op.inputs, strict=True):
            if tensor in op.updates:
                replay.inside.apply(where, number, TransferEvent.UPDATE)
                replay.written[number] += 1
        _check_inplace(plan, graph, position, step, where)
        replay.runs.setdefault(op.id, position + 1)
        _check_workspace(plan, costs, position, step, where)
    replay.transfers.finish()
    missing = [op.name for op in graph.ops if op.id not in replay.runs]
    if missing:
        raise PlanError("plan", "every operation to run", f"{len(missing)} that do not, the first in {missing[0]}")
    replay.check_state()
    for tensor in graph.outputs:
        if not any(
            plan.instances[n].tensor == tensor and plan.instances[n].death == len(plan.steps) - 1
            for n in replay.written
        ):
            raise PlanError("plan", f"the output {graph.tensors[tensor].name} at the end", "it is gone")


def _check_inplace(plan: Plan, graph: Graph, position: int, step: Run, where: str) -> None:
    allowed = inplace_pairs(graph.ops[step.op])
    fresh = [n for n in step.outputs if plan.instances[n].birth == position]
    for source, old in enumerate(step.inputs):
        a = plan.instances[old]
        for to, new in enumerate(step.outputs):
            b = plan.instances[new]
            if new not in fresh or a.nbytes == 0 or b.nbytes == 0:
                continue
            if a.address < b.address + b.nbytes and b.address < a.address + a.nbytes:
                # One of the two may be padded to whole pages, as it moves.
                size, made = (graph.tensors[i.tensor].nbytes for i in (a, b))
                same = a.address == b.address and size == made
                once = step.inputs.count(old) == 1
                ends = (
                    a.death == position and a.tensor not in graph.outputs and graph.tensors[a.tensor].role not in STATE
                )
                if not ((to, source) in allowed and same and once and ends):
                    raise PlanError(where, "outputs apart from inputs that are needed", f"instances {old} and {new}")


def _check_workspace(plan: Plan, costs: CostTable, position: int, step: Run, where: str) -> None:
    options = costs.kernels[step.op]
    if not 0 <= step.kernel < len(options):
        raise PlanError(where, f"one of {len(options)} kernels", str(step.kernel))
    needed = options[step.kernel].workspace_bytes
    if step.workspace == NO_INSTANCE:
        if needed:
            raise PlanError(where, f"{needed} bytes of workspace", "none")
        return
    if not 0 <= step.workspace < len(plan.instances):
        raise PlanError(where, "an instance of the plan", str(step.workspace))
    instance = plan.instances[step.workspace]
    if instance.tensor != NO_TENSOR or instance.birth != position or instance.death != position:
        raise PlanError(where, "a workspace that lives at this step alone", str(instance))
    if instance.nbytes < needed:
        raise PlanError(where, f"{needed} bytes of workspace", f"{instance.nbytes}")


def _check_overlaps(plan: Plan) -> None:
    """Check that no two instances alive at one step share a byte, and count the most bytes alive.

    An input that ends where an output begins may give the output its bytes.
    """
    births: dict[int, list[int]] = defaultdict(list)
    deaths: dict[int, list[int]] = defaultdict(list)
    for number, i in enumerate(plan.instances):
        if i.nbytes:
            births[i.birth].append(number)
            deaths[i.death].append(number)
    alive: list[tuple[int, int]] = []
    live = peak = 0

    def leave(number: int) -> int:
        entry = (plan.instances[number].address, number)
        place = bisect_left(alive, entry)
        if place == len(alive) or alive[place] != entry:
            return 0
        del alive[place]
        return plan.instances[number].nbytes

    for position in range(len(plan.steps)):
        step = plan.steps[position]
        operands = (step.inputs, step.outputs) if isinstance(step, Run) else ((), ())
        handed_over = {
            n
            for n in operands[0]
            if plan.instances[n].death == position
            and any(plan.instances[o].address == plan.instances[n].address for o in operands[1])
        }
        live -= sum(map(leave, handed_over))
        for number in births[position]:
            i = plan.instances[number]
            if number in handed_over:
                continue
            place = bisect_left(alive, (i.address, number))
            for neighbour in alive[max(place - 1, 0) : place + 1]:
                other = plan.instances[neighbour[1]]
                if other.address < i.address + i.nbytes and i.address < other.address + other.nbytes:
                    raise PlanError(
                        f"step {position}", "live instances apart", f"{number} and {neighbour[1]} overlap: {i}, {other}"
                    )
            insort(alive, (i.address, number))
            live += i.nbytes
        peak = max(peak, live)
        live -= sum(map(leave, deaths[position]))
    if peak != plan.live_peak_bytes:
        raise PlanError("plan", f"live_peak_bytes {peak}", str(plan.live_peak_bytes))
