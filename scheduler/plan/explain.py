"""A plan in words and tables, for people; from the plan, its graph and its costs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...layers.graph import Graph, Phase, Role
from ...memory.errors import unreachable
from ...memory.sizes import format_size
from .costs import CostTable
from .simulate import Timeline, simulate
from .steps import NO_TENSOR, Fetch, Instance, Offload, Plan, Run, Wait

ROWS = 24
"""Rows of a table; of a longer one the middle is left out."""


def explain(plan: Plan, graph: Graph, costs: CostTable) -> str:
    """Describe a plan: its budget, what its bytes are at the peak, and what each block keeps, moves and repeats."""
    timeline = simulate(plan, costs)
    again = sum(costs.kernels[s.op][s.kernel].seconds for s in plan.runs if s.recompute)
    bound = plan.lower_bound_seconds
    over = f"{100 * (plan.predicted_seconds / bound - 1):.1f} % over the lower bound" if bound else "no lower bound"
    if plan.chain_bound_seconds:
        over += f", {100 * (plan.predicted_seconds / plan.chain_bound_seconds - 1):.1f} % over that of the chain"
    lines = [
        f"strategy {plan.strategy}: {format_size(plan.peak_bytes)} of {format_size(plan.budget_bytes)}, "
        f"at least {format_size(plan.min_budget_bytes)} ({plan.min_budget_bytes} bytes); {plan.note}",
        f"step {plan.predicted_seconds:.4g} s predicted, {over}; {plan.recomputed_ops} of "
        f"{sum(1 for _ in plan.runs)} operations are repeated, {again:.4g} s",
    ]
    if timeline.transfers:
        lines.append(_describe_transfers(plan, timeline))
    peak = int(timeline.live_bytes.argmax()) if len(plan.steps) else 0
    lines.append(f"most bytes live at step {peak}, {_describe_step(plan, graph, peak)}:")
    held: Counter[str] = Counter()
    for i in plan.instances:
        if i.birth <= peak <= i.death:
            role = "workspace" if i.tensor == NO_TENSOR else graph.tensors[i.tensor].role.value
            held[role] += i.nbytes
    lines += [f"  {role:<11}{format_size(nbytes):>12}" for role, nbytes in held.most_common()]
    return "\n".join(lines + _list_blocks(plan, graph, costs))


def _describe_transfers(plan: Plan, timeline: Timeline) -> str:
    busy = sum(transfer.end - transfer.start for transfer in timeline.transfers)
    hidden = 100 * max(1 - timeline.stalled_seconds / busy, 0) if busy else 100
    return (
        f"{format_size(plan.offloaded_bytes)} leave and {format_size(plan.fetched_bytes)} come back, "
        f"{format_size(plan.outside_bytes)} outside at most; {busy:.4g} s of transfers, {hidden:.0f} % hidden: "
        f"the computation waits {timeline.stalled_seconds:.4g} s"
    )


def _describe_step(plan: Plan, graph: Graph, position: int) -> str:
    step = plan.steps[position]
    match step:
        case Run():
            op = graph.ops[step.op]
            return f"{op.kind} of {op.name} ({op.phase.value})"
        case Offload() | Fetch():
            return f"{type(step).__name__.lower()} of {graph.tensors[plan.copies[step.copy].tensor].name}"
        case Wait():
            return f"wait for the {_describe_step(plan, graph, step.transfer)}"
        case _:
            unreachable(step)


def _list_blocks(plan: Plan, graph: Graph, costs: CostTable) -> list[str]:
    """Write a table of blocks: bytes in the arena and outside when the loss is computed, seconds, seconds repeated."""
    losses = [n for n, s in enumerate(plan.steps) if isinstance(s, Run) and graph.ops[s.op].phase is Phase.LOSS]
    at_loss = losses[0] if losses else len(plan.steps)
    count = max((op.block for op in graph.ops), default=-1) + 1
    seconds, again = [0.0] * count, [0.0] * count
    names = [""] * count
    for op in graph.ops:
        if op.block >= 0 and not names[op.block]:
            names[op.block] = op.name
    held = _count_held_bytes(plan.instances, graph, at_loss, count)
    moved = _count_held_bytes(plan.copies, graph, at_loss, count)
    for step in plan.runs:
        block = graph.ops[step.op].block
        cost = costs.kernels[step.op][step.kernel].seconds
        seconds[block] += cost
        again[block] += cost if step.recompute else 0.0
    rows = [
        f"  {block:>5}  {names[block]:<32.32}{format_size(held[block]):>12}{format_size(moved[block]):>12}"
        f"{seconds[block]:>11.4g}{again[block]:>11.4g}"
        for block in range(count)
    ]
    if len(rows) > ROWS:
        rows = [*rows[: ROWS // 2], f"  … {len(rows) - ROWS} more blocks …", *rows[-(ROWS // 2) :]]
    title = f"  {'block':>5}  {'begins with':<32}{'kept at loss':>12}{'outside':>12}{'seconds':>11}{'repeated':>11}"
    return [title, *rows]


def _count_held_bytes(instances: Sequence[Instance], graph: Graph, position: int, count: int) -> list[int]:
    """Count for each block the bytes of its activations that are alive at a step."""
    held = [0] * count
    producers = graph.producers()
    for i in instances:
        if i.tensor == NO_TENSOR or not i.birth <= position <= i.death:
            continue
        if graph.tensors[i.tensor].role is Role.ACTIVATION:
            held[graph.ops[producers[i.tensor]].block] += i.nbytes
    return held
