"""What tests of plans share: budgets worth trying, bytes counted by address, and a run that follows every byte."""

from __future__ import annotations

import dataclasses

import numpy as np

from bathyal.layers.graph import FED, STATE
from bathyal.layers.kinds import KINDS, overwritten
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import infer_layout
from bathyal.scheduler.plan.steps import NO_INSTANCE, NO_TENSOR, Fetch, Offload, Plan, Wait
from bathyal.scheduler.planner import StrategyPlanner

PLENTY = 2**40


def budgets(problem: Problem, strategy: str) -> list[int]:
    """The smallest that works, the largest worth giving, and some between."""
    planner = StrategyPlanner(problem, strategy)
    least, most = planner.least_bytes, planner.plan(PLENTY).peak_bytes
    return sorted({least, *(least + (max(most, least) - least) * k // 4 for k in range(1, 4)), max(most, least)})


def live_peak(plan: Plan) -> int:
    """By address: at each step the union of the bytes of all that lives."""
    peak = 0
    for position in range(len(plan.steps)):
        covered = sorted((i.address, i.address + i.nbytes) for i in plan.instances if i.birth <= position <= i.death)
        end = total = 0
        for first, last in covered:
            total += max(0, last - max(first, end))
            end = max(end, last)
        peak = max(peak, total)
    return peak


def with_workspace(problem: Problem, nbytes: int) -> Problem:
    """The same problem with kernels that all need scratch memory."""
    rows = tuple(tuple(dataclasses.replace(k, workspace_bytes=nbytes) for k in row) for row in problem.costs.kernels)
    return dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, kernels=rows))


def run_byte_by_byte(plan: Plan, problem: Problem) -> None:
    """Run a plan on labels instead of numbers: every byte knows which value was written there last.

    Knows of no lifetimes: it only looks at addresses, at what each operation reads, and at what it may overwrite.
    """
    graph, instances = problem.graph, plan.instances
    state = infer_layout(plan, graph)
    memory = np.full(plan.peak_bytes, -1, np.int64)
    outside = np.full(plan.outside_bytes, -1, np.int64)
    moving: dict[int, tuple[slice, slice, bool]] = {}
    labels: dict[tuple[int, int], int] = {}

    def place(number: int) -> slice:
        i = instances[number]
        return slice(i.address, i.address + graph.tensors[i.tensor].nbytes)

    def write(number: int, version: int = 0) -> None:
        memory[place(number)] = labels.setdefault((instances[number].tensor, version), len(labels))

    def check(number: int, version: int = 0) -> None:
        assert (memory[place(number)] == labels[instances[number].tensor, version]).all()

    def overlap(a: slice, b: slice) -> bool:
        return a.start < b.stop and b.start < a.stop

    def beyond_the_arena(copy: int) -> slice:
        stay = plan.copies[copy]
        return slice(stay.address, stay.address + stay.nbytes)

    def begin(position: int, step: Offload | Fetch) -> None:
        """What is copied may be read and written at any time until the wait: until then the target holds nothing."""
        stay = plan.copies[step.copy]
        inside, beyond = place(step.instance), beyond_the_arena(step.copy)
        if isinstance(step, Offload):
            check(step.instance, int(stay.tensor in updated))
            outside[beyond] = -1
        else:
            label = labels[stay.tensor, int(stay.tensor in updated)]
            assert (outside[beyond] == label)[: inside.stop - inside.start].all()
            memory[instances[step.instance].address :][: stay.nbytes] = -1
        moving[position] = inside, beyond, isinstance(step, Offload)

    def finish(position: int) -> None:
        inside, beyond, outward = moving.pop(position)
        step = plan.steps[position]
        tensor = instances[step.instance].tensor
        label = labels[tensor, int(tensor in updated)]
        if outward:
            check(step.instance, int(tensor in updated))
            outside[beyond] = label
        else:
            assert (outside[beyond] == label).all()
            assert (memory[inside] == -1).all()
            memory[inside] = label

    fetched = {step.instance for step in plan.steps if isinstance(step, Fetch)}
    for number, i in enumerate(instances):
        if i.tensor != NO_TENSOR and graph.tensors[i.tensor].role in FED | STATE and number not in fetched:
            write(number)
    homes = {copy.tensor: n for n, copy in enumerate(plan.copies) if graph.tensors[copy.tensor].role in STATE}
    for tensor, copy in homes.items():
        outside[beyond_the_arena(copy)] = labels.setdefault((tensor, 0), len(labels))
    updated: set[int] = set()
    done: set[int] = set()
    for position, step in enumerate(plan.steps):
        if isinstance(step, (Offload, Fetch)):
            begin(position, step)
            continue
        if isinstance(step, Wait):
            finish(step.transfer)
            continue
        op = graph.ops[step.op]
        kept = KINDS[op.kind].kept if step.op in done else ()
        for number, tensor in zip(step.inputs, op.inputs, strict=True):
            by = next((o.id for o in graph.ops if tensor in o.updates), None)
            assert (tensor in updated) == (by is not None and by < op.id)
            check(number, int(tensor in updated))
        for index in kept:
            check(step.outputs[index])
        writes = [place(n) for index, n in enumerate(step.outputs) if index not in kept]
        if step.workspace != NO_INSTANCE:
            i = instances[step.workspace]
            writes.append(slice(i.address, i.address + problem.costs.kernels[step.op][step.kernel].workspace_bytes))
        for index, a in enumerate(writes):
            assert not any(overlap(a, b) for b in writes[:index])
            for source, number in enumerate(step.inputs):
                if overlap(a, place(number)):
                    assert a == place(number)
                    assert (index, source) in overwritten(op)
            memory[a] = -1
        for index, number in enumerate(step.outputs):
            if index not in kept:
                write(number)
        for number, tensor in zip(step.inputs, op.inputs, strict=True):
            if tensor in op.updates:
                updated.add(tensor)
                write(number, 1)
        done.add(step.op)
    for number, i in enumerate(instances):
        if i.tensor in homes:
            continue
        if i.tensor != NO_TENSOR and graph.tensors[i.tensor].role in STATE:
            assert i.address == state.addresses[graph.tensors[i.tensor].name]
            check(number, 1)
        elif i.tensor in graph.outputs and i.death == len(plan.steps) - 1:
            check(number)
    for tensor, copy in homes.items():
        assert plan.copies[copy].address == state.outside[graph.tensors[tensor].name]
        assert (outside[beyond_the_arena(copy)] == labels[tensor, 1]).all()
    assert not moving
    assert done == {op.id for op in graph.ops}
