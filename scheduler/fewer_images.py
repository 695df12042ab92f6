"""The plan of a step over fewer images, by that over more.

Whatever has to be planned anew for a short batch may not fit where the full batch does: a tensor that becomes small is
no longer worth a transfer, and stays. But the full batch's plan serves the short one too, as every tensor has at most
the bytes that it has there: its order, its moves and its addresses are taken, with the sizes and kernels of the short
batch. So the least budget of the full batch holds for all of its parts.

Not so where the backend makes other operations of the short batch, or has no kernel for one of them within the
workspace that the full batch's kernel takes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..layers.graph import Graph
from ..memory.sizes import align_up
from .blocks.bounds import knapsack_seconds
from .layout.kernels import Kernels
from .layout.problem import Problem
from .plan.simulate import simulate
from .plan.steps import NO_INSTANCE, NO_TENSOR, PAGE, Instance, Plan, Run, align_address
from .plan.verify import verify


def follow_plan(problem: Problem, plan: Plan, graph: Graph) -> Plan | None:
    """Return the verified plan of `problem` that does what `plan` does over more images; None where there is none.

    Args:
        problem: of the fewer images; its state lies where `plan` has it.
        plan: of the more images.
        graph: what `plan` was made for.

    Raises:
        PlanError: the state does not lie where `plan` has it.
    """
    if not _are_alike(graph, problem.graph):
        return None
    chosen = _choose_kernels(problem, plan)
    if chosen is None:
        return None
    workspaces = {
        step.workspace: problem.costs.kernels[step.op][chosen[step.op]].workspace_bytes
        for step in plan.runs
        if step.workspace != NO_INSTANCE
    }
    sizes = [t.nbytes for t in problem.graph.tensors]
    instances = [
        _shrink(i, workspaces.get(number, 0) if i.tensor == NO_TENSOR else sizes[i.tensor])
        for number, i in enumerate(plan.instances)
    ]
    copies = [_shrink(copy, sizes[copy.tensor]) for copy in plan.copies]
    followed = replace(
        plan,
        graph=problem.graph.fingerprint(),
        steps=tuple(replace(s, kernel=chosen[s.op]) if isinstance(s, Run) else s for s in plan.steps),
        instances=tuple(instances),
        copies=tuple(copies),
        outside_bytes=_find_end(copies),
        peak_bytes=_find_end(instances),
        min_budget_bytes=_find_end(instances),
        lower_bound_seconds=knapsack_seconds(problem.graph, problem.costs, plan.budget_bytes),
        chain_bound_seconds=0.0,
    )
    timeline = simulate(followed, problem.costs)
    followed = replace(followed, live_peak_bytes=timeline.peak_bytes, predicted_seconds=timeline.seconds)
    verify(followed, problem.graph, problem.costs, problem.state, problem.most_outside_bytes)
    return followed


def _are_alike(larger: Graph, smaller: Graph) -> bool:
    """Whether two graphs have the same operations on the same tensors, which in the second are no larger."""
    return (
        [(op.kind, op.inputs, op.outputs, op.updates, op.phase) for op in larger.ops]
        == [(op.kind, op.inputs, op.outputs, op.updates, op.phase) for op in smaller.ops]
        and [(t.name, t.role) for t in larger.tensors] == [(t.name, t.role) for t in smaller.tensors]
        and larger.outputs == smaller.outputs
        and all(a.nbytes >= b.nbytes for a, b in zip(larger.tensors, smaller.tensors, strict=True))
    )


def _choose_kernels(problem: Problem, plan: Plan) -> Mapping[int, int] | None:
    """Choose for each operation the fastest kernel within the workspace that it has in a plan; None if it has none."""
    room: dict[int, int] = {}
    for step in plan.runs:
        own = 0 if step.workspace == NO_INSTANCE else plan.instances[step.workspace].nbytes
        room[step.op] = min(own, room.get(step.op, own))
    chosen: dict[int, int] = {}
    for op, nbytes in room.items():
        options = problem.costs.kernels[op]
        allowed = range(1) if problem.kernels is Kernels.FIXED else range(len(options))
        fitting = [i for i in allowed if options[i].workspace_bytes <= nbytes]
        if not fitting:
            return None
        chosen[op] = min(fitting, key=lambda i, options=options: (options[i].seconds, i))  # type: ignore[misc]
    return chosen


def _shrink(instance: Instance, nbytes: int) -> Instance:
    """Return an instance with the bytes of a smaller tensor, still whole pages where it has them, as moves need."""
    wanted = align_up(nbytes, PAGE) if instance.nbytes % PAGE == 0 else align_address(nbytes)
    return replace(instance, nbytes=min(instance.nbytes, wanted))


def _find_end(instances: Sequence[Instance]) -> int:
    return max((i.address + i.nbytes for i in instances), default=0)
