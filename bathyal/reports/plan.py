"""A plan for people and for machines."""

from __future__ import annotations

from typing import Any

from ..engine.programs import Planned
from ..layers.graph import Graph
from ..memory.sizes import format_size
from ..options.network import NetworkSetup
from ..scheduler.layout.lifetimes import aligned_size
from ..scheduler.plan.simulate import simulate


def describe_network(setup: NetworkSetup, graph: Graph) -> str:
    """Return one line on the network that is planned; `graph` is lowered."""
    shape = "×".join(str(n) for n in setup.settings.input_shape)
    return (
        f"{graph.name}: {graph.layers} layers, {graph.parameters / 1e6:.2f} M parameters, "
        f"state {format_size(graph.state_bytes)}, batch {shape} {setup.settings.dtype}, "
        f"{len(graph.ops)} operations a step"
    )


def summarize_plan(planned: Planned) -> dict[str, Any]:
    """Return the plan in numbers, for machines."""
    plan, graph = planned.plan, planned.graph
    return {
        "strategy": plan.strategy,
        "note": plan.note,
        "feasible": True,
        "budget_bytes": plan.budget_bytes,
        "min_budget_bytes": plan.min_budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "arena_bytes": plan.peak_bytes,
        "live_peak_bytes": plan.live_peak_bytes,
        "state_bytes": graph.state_bytes,
        "keep_bytes": sum(aligned_size(tensor) for tensor in graph.tensors),
        "predicted_seconds": plan.predicted_seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "lower_bound": "knapsack" if planned.costs.link is None else "knapsack with link",
        "chain_bound_seconds": plan.chain_bound_seconds,
        "recomputed_ops": plan.recomputed_ops,
        "outside_bytes": plan.outside_bytes,
        "offloaded_bytes": plan.offloaded_bytes,
        "fetched_bytes": plan.fetched_bytes,
        "stalled_seconds": simulate(plan, planned.costs).stalled_seconds,
        "ops": len(graph.ops),
        "layers": graph.layers,
        "parameters": graph.parameters,
        "planning_seconds": round(planned.planning_seconds, 6),
    }
