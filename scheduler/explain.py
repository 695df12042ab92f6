"""A plan in words and tables, for people."""

from __future__ import annotations

from collections import Counter

from ..layers.graph import STATE, Graph, Phase, Role
from ..memory.sizes import format_size
from .costs import CostTable
from .plan import NO_TENSOR, Plan
from .simulate import simulate

ROWS = 24
"""Longer tables leave out their middle."""


def explain(plan: Plan, graph: Graph, costs: CostTable) -> str:
    """Say what a plan does: the budget, where its bytes are at the peak, and what each block keeps and repeats."""
    timeline = simulate(plan, costs)
    once = sum(costs.kernels[s.op][s.kernel].seconds for s in plan.steps if not s.recompute)
    again = timeline.seconds - once
    bound = plan.lower_bound_seconds
    over = f"{100 * (plan.predicted_seconds / bound - 1):.1f} % over the lower bound" if bound else "no lower bound"
    if plan.chain_bound_seconds:
        over += f", {100 * (plan.predicted_seconds / plan.chain_bound_seconds - 1):.1f} % over that of the chain"
    lines = [
        f"strategy {plan.strategy}: {format_size(plan.peak_bytes)} of {format_size(plan.budget_bytes)}, "
        f"at least {format_size(plan.min_budget_bytes)} ({plan.min_budget_bytes} bytes)",
        f"step {plan.predicted_seconds:.4g} s predicted, {over}; {plan.recomputed_ops} of {len(plan.steps)} operations "
        f"are repeated, {again:.4g} s",
    ]
    peak = int(timeline.live_bytes.argmax()) if len(plan.steps) else 0
    at = graph.ops[plan.steps[peak].op]
    lines.append(f"most bytes live at step {peak}, {at.kind} of {at.name} ({at.phase.value}):")
    held: Counter[str] = Counter()
    for i in plan.instances:
        if i.birth <= peak <= i.death:
            role = "workspace" if i.tensor == NO_TENSOR else graph.tensors[i.tensor].role.value
            held[role] += i.nbytes
    lines += [f"  {role:<11}{format_size(nbytes):>12}" for role, nbytes in held.most_common()]
    return "\n".join(lines + _blocks(plan, graph, costs))


def _blocks(plan: Plan, graph: Graph, costs: CostTable) -> list[str]:
    """Per block: what it holds when the loss is computed, how often its forward pass runs, and its seconds."""
    at_loss = next((n for n, s in enumerate(plan.steps) if graph.ops[s.op].phase is Phase.LOSS), len(plan.steps))
    count = max((op.block for op in graph.ops), default=-1) + 1
    held, seconds, again = [0] * count, [0.0] * count, [0.0] * count
    names = [""] * count
    producers = graph.producers()
    for op in graph.ops:
        if op.block >= 0 and not names[op.block]:
            names[op.block] = op.name
    for i in plan.instances:
        if i.tensor == NO_TENSOR or not i.birth <= at_loss <= i.death:
            continue
        tensor = graph.tensors[i.tensor]
        if tensor.role not in STATE and tensor.role is Role.ACTIVATION:
            held[graph.ops[producers[tensor.id]].block] += i.nbytes
    for step in plan.steps:
        block = graph.ops[step.op].block
        cost = costs.kernels[step.op][step.kernel].seconds
        seconds[block] += cost
        again[block] += cost if step.recompute else 0.0
    rows = [
        f"  {block:>5}  {names[block]:<32.32}{format_size(held[block]):>12}{seconds[block]:>11.4g}{again[block]:>11.4g}"
        for block in range(count)
    ]
    if len(rows) > ROWS:
        rows = [*rows[: ROWS // 2], f"  … {len(rows) - ROWS} more blocks …", *rows[-(ROWS // 2) :]]
    return [f"  {'block':>5}  {'begins with':<32}{'held at loss':>12}{'seconds':>11}{'repeated':>11}", *rows]
