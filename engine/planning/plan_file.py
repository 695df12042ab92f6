"""A plan in a file, with what it belongs to: the graph, the backend, its version and threads, the names of its kernels.

Decides whether a saved plan may run here. A plan names operations, kernels and instances by number, so it is used only
where all numbers mean the same; the verifier then checks it as any other. JSON; it holds no weights and no seconds of
single kernels. Not checked: whether the predicted seconds are those of this machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...layers.graph import Graph
from ...memory.errors import PlanError
from ...memory.sizes import format_size_exact
from ...scheduler.plan.costs import CostTable
from ...scheduler.plan.steps import Fetch, Offload, Plan, Run, Wait
from ..atomic_write import write_whole

FORMAT = 1
WRITTEN_BY = "a file written by `bathyal plan --save-plan`"
AGAIN = "Save a new one with `bathyal plan ... --save-plan`."


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What kernels belong to.

    Attributes:
        backend: its name.
        version: of its library, as the backend says it.
        threads: that it uses.
    """

    backend: str
    version: str
    threads: int


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What a file holds.

    Attributes:
        plan: not verified.
        network: in words, for people.
        surroundings: where it was made.
        kernels: name of the kernel of each operation, by operation id.
    """

    plan: Plan
    network: str
    surroundings: Surroundings
    kernels: tuple[str, ...]


def describe_graph(graph: Graph) -> str:
    """Return a graph in words: what says most to people when two graphs differ."""
    (images,) = (t for t in graph.tensors if t.name == "images")
    shape = "×".join(map(str, images.shape))
    return f"{graph.name}, {graph.layers} layers, {graph.parameters} parameters, batch {shape} {images.dtype}"


def save_plan(path: Path, plan: Plan, graph: Graph, surroundings: Surroundings, kernels: Sequence[str]) -> None:
    """Write a plan aside and rename it to `path`.

    Raises:
        ConfigError: there is something at `path` that is no regular file.
        OSError: it cannot be written; what was there is unharmed.
    """
    document = {
        "bathyal_plan": FORMAT,
        "network": describe_graph(graph),
        "backend": surroundings.backend,
        "version": surroundings.version,
        "threads": surroundings.threads,
        "kernels": list(kernels),
        "plan": json.loads(plan.to_json()),
    }
    write_whole(path, (json.dumps(document, separators=(",", ":")) + "\n").encode())


def load_plan(path: Path) -> SavedPlan:
    """Read a file; what it says is not compared with anything yet.

    Raises:
        PlanError: it cannot be read, is cut off, or is no plan of this format.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlanError(str(path), WRITTEN_BY, error.strerror or str(error)) from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        came = f"{len(content)} bytes that are no JSON ({str(error) or type(error).__name__})"
        raise PlanError(str(path), WRITTEN_BY, came, f"It may be cut off. {AGAIN}") from error
    if not isinstance(document, dict) or "bathyal_plan" not in document:
        raise PlanError(str(path), WRITTEN_BY, "other JSON", AGAIN)
    if document["bathyal_plan"] != FORMAT:
        raise PlanError(str(path), f"format {FORMAT}", f"format {document['bathyal_plan']!r}", AGAIN)
    try:
        plan = Plan.from_json(json.dumps(document["plan"]))
        found = SavedPlan(
            plan,
            document["network"],
            Surroundings(document["backend"], document["version"], document["threads"]),
            tuple(document["kernels"]),
        )
    except (KeyError, TypeError, PlanError) as error:
        raise PlanError(str(path), WRITTEN_BY, f"{type(error).__name__}: {error}", AGAIN) from error
    if not _is_typed(found):
        raise PlanError(str(path), WRITTEN_BY, "values of other types", AGAIN)
    return found


def _is_typed(found: SavedPlan) -> bool:
    plan, around = found.plan, found.surroundings
    texts: list[Any] = [
        found.network,
        around.backend,
        around.version,
        *found.kernels,
        plan.strategy,
        plan.graph,
        plan.note,
    ]
    whole: list[Any] = [around.threads, plan.peak_bytes, plan.live_peak_bytes, plan.budget_bytes, plan.min_budget_bytes]
    whole.append(plan.outside_bytes)
    for stay in (*plan.instances, *plan.copies):
        whole += [stay.tensor, stay.birth, stay.death, stay.nbytes, stay.address]
    for step in plan.steps:
        match step:
            case Run():
                whole += [step.op, step.kernel, *step.inputs, *step.outputs, step.workspace]
            case Offload() | Fetch():
                whole += [step.instance, step.copy]
            case Wait():
                whole.append(step.transfer)
    seconds: list[Any] = [plan.predicted_seconds, plan.lower_bound_seconds]
    return (
        all(type(value) is str for value in texts)
        and all(type(value) is int for value in whole)
        and all(type(value) in (int, float) and math.isfinite(value) for value in seconds)
        and all(type(step.recompute) is bool for step in plan.runs)
    )


def require_plan_fits(
    path: Path, saved: SavedPlan, graph: Graph, costs: CostTable, here: Surroundings, memory_bytes: int
) -> None:
    """Refuse a saved plan that was made for something else than what is to run here.

    Args:
        path: of its file, for errors.
        saved: what the file holds.
        graph: lowered, of the step that is to run.
        costs: with the kernels that there are.
        here: what the kernels belong to.
        memory_bytes: of the arena.

    Raises:
        PlanError: names what differs: backend, version, threads, graph, kernels, or a budget above the memory.
    """
    was = saved.surroundings
    where = f"plan {path}"
    if was.backend != here.backend:
        hint = f"Give --device {was.backend}, or plan for this device. {AGAIN}"
        hint = AGAIN if was.backend == "null" else hint
        raise PlanError(where, f"a plan for device {here.backend!r}", f"one for {was.backend!r}", hint)
    if was.threads != here.threads:
        hint = f"Give --threads {was.threads}. {AGAIN}"
        raise PlanError(where, f"a plan for {here.threads} threads", f"one for {was.threads}", hint)
    if was.version != here.version:
        raise PlanError(where, f"a plan for {here.backend} {here.version}", f"one for version {was.version}", AGAIN)
    if saved.plan.graph != graph.fingerprint():
        same = "a graph of other operations, though of the same size: "
        mine = describe_graph(graph)
        words = saved.network if saved.network != mine else same + saved.network
        hint = f"Give the choices that it was planned with. {AGAIN}"
        raise PlanError(where, f"a plan for the graph of {mine}", f"one for {words}", hint)
    for step in saved.plan.runs:
        op, kernel = step.op, step.kernel
        if not (0 <= op < min(len(saved.kernels), len(graph.ops)) and 0 <= kernel < len(costs.kernels[op])):
            raise PlanError(where, "kernels that there are", f"kernel {kernel} of operation {op}", AGAIN)
        name = costs.kernels[op][kernel].name
        if name != saved.kernels[op]:
            raise PlanError(where, f"kernel {saved.kernels[op]!r} of {graph.ops[op].name}", f"{name!r}", AGAIN)
    if saved.plan.budget_bytes > memory_bytes:
        budget = saved.plan.budget_bytes
        hint = f"Give --memory {budget}, or no --memory. {AGAIN}"
        expected = f"a budget within the memory of {format_size_exact(memory_bytes)}"
        raise PlanError(where, expected, format_size_exact(budget), hint)
