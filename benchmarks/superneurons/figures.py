"""The figures of the SuperNeurons paper, the same by its own rules, and those of our planner for the same networks.

Peaks are MiB of activations and their gradients at one step, without parameters and their gradients, the batch and
workspace; runs are forward computations beyond the first. Ours are plans of the null backend, so no memory is taken:
`liveness` beside what the paper reaches without recomputation, and the smallest plan of `chain` beside what it reaches
with it. The paper's rules offload the outputs of its checkpoints; our plans move nothing out.
The paper gives AlexNet's peak with recomputation twice, as 886.385 and, by mode, as 886.23; the latter is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from bathyal.engine.session import Planned, plan_without_memory
from bathyal.engine.settings import Settings
from bathyal.layers import SGD, forward_graph
from bathyal.models.registry import build_model
from bathyal.scheduler.offload.recompute import Recomputation

from .accounting import activation_peak, baseline_bytes, layer_order, peak
from .layers import paper_network
from .recompute import paper_order, recomputations

MIB = 2**20
UNLIMITED = 2**50
BATCHES = {"alexnet": 200, "resnet50": 32, "resnet101": 32}
PEAKS = {
    ("alexnet", "baseline"): 2189.437,
    ("alexnet", "liveness"): 1489.355,
    ("alexnet", "offload, prefetch"): 1132.155,
    ("alexnet", "speed-centric"): 993.018,
    ("alexnet", "memory-centric"): 886.23,
    ("alexnet", "cost-aware"): 886.23,
    ("resnet50", "speed-centric"): 455.125,
    ("resnet101", "speed-centric"): 455.125,
}
RUNS = {
    ("alexnet", "speed-centric"): 14,
    ("alexnet", "memory-centric"): 23,
    ("alexnet", "cost-aware"): 17,
    ("resnet50", "speed-centric"): 84,
    ("resnet50", "memory-centric"): 118,
    ("resnet50", "cost-aware"): 85,
    ("resnet101", "speed-centric"): 169,
    ("resnet101", "memory-centric"): 237,
    ("resnet101", "cost-aware"): 170,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table; None where there is no figure.

    Attributes:
        stage: what of the paper's is switched on.
        paper_mib: the peak that the paper reports.
        reproduced_mib: the peak by the paper's rules.
        ours_mib: the peak of our plan.
        paper_runs: forward computations beyond the first that the paper reports.
        reproduced_runs: the same by the paper's rules.
        ours_runs: the same of our plan.
    """

    stage: str
    paper_mib: float | None
    reproduced_mib: float
    ours_mib: float | None
    paper_runs: int | None
    reproduced_runs: int
    ours_runs: int | None


def list_figures(model: str) -> list[Figure]:
    """List the rows of one of the networks of `BATCHES`."""
    layers = build_model(model, variant="paper")
    network = paper_network(forward_graph(layers, (BATCHES[model], 3, 227, 227)))
    natural = layer_order(network)
    liveness, chain = make_our_plans(model)
    rows = [
        ("baseline", baseline_bytes(network), natural, None),
        ("liveness", peak(network, natural).nbytes, natural, liveness),
        ("offload", peak(network, natural, offload=True, prefetch=False).nbytes, natural, liveness),
        ("offload, prefetch", peak(network, natural, offload=True).nbytes, natural, liveness),
    ]
    for mode in Recomputation:
        order = paper_order(network, mode)
        rows.append((mode.value, peak(network, order, offload=True).nbytes, order, chain))
    return [
        Figure(
            stage,
            PEAKS.get((model, stage)),
            nbytes / MIB,
            None if ours is None else activation_peak(ours.plan, ours.graph) / MIB,
            RUNS.get((model, stage)),
            recomputations(network, order),
            None if ours is None else ours.plan.recomputed_ops,
        )
        for stage, nbytes, order, ours in rows
    ]


def make_our_plans(model: str) -> tuple[Planned, Planned]:
    """Make our plans by `liveness`, and by `chain` for the smallest budget that it has a plan for."""

    def make_plan(strategy: str, budget_bytes: int) -> Planned:
        shape, optimizer = (BATCHES[model], 3, 227, 227), SGD(0.01, momentum=0.9)
        settings = Settings(shape, optimizer, strategy=strategy, backend="null", kernels="fixed")
        return plan_without_memory(build_model(model, variant="paper"), settings, budget_bytes)

    least = make_plan("chain", UNLIMITED).plan.min_budget_bytes
    return make_plan("liveness", UNLIMITED), make_plan("chain", least)
