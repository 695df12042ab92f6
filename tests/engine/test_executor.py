"""Whole plans on devices that check: no race, no byte beyond the plan, no dependence on what the arena held."""

import dataclasses

import numpy as np
import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.executor import Executor
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import estimate
from bathyal.engine.state import State
from bathyal.layers import (
    SGD,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Branches,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
    forward_graph,
    training_graph,
)
from bathyal.layers.graph import Role
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.devices.shadow import RaceError
from bathyal.memory.devices.simulated import SimulatedDevice
from bathyal.memory.errors import BudgetError, DataError
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.state_layout import infer_layout, lay_out_state
from bathyal.scheduler.plan.steps import NO_INSTANCE, Fetch, Offload, Run, Wait
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import make_plan
from bathyal.scheduler.strategies.names import STRATEGIES
from tests.support.random_networks import random_network, random_problem
from tests.support.spilling import linked, tier_for

SHAPE = (3, 3, 8, 8)


FEATURES = (3, 10)
LARGER = (4, 3, 16, 16)
"""Images of more than a page, which may leave and come back."""

END = (Flatten(), Linear(7))
UNUSUAL = {
    "one layer": (Linear(7), FEATURES),
    "no parameter at all": (Flatten(), (3, 7)),
    "linear layers alone": (
        Sequential(Linear(20), ReLU(), Linear(20), Tanh(), Linear(20), Sigmoid(), Dropout(0.5), Linear(7)),
        FEATURES,
    ),
    "relu of features": (Sequential(ReLU(), Linear(7)), FEATURES),
    **{
        f"{type(layer).__name__} of images": (Sequential(layer, *END), SHAPE)
        for layer in (
            ReLU(),
            Dropout(0.3),
            MaxPool2d(2),
            AvgPool2d(2),
            GlobalAvgPool2d(),
            LocalResponseNorm(3),
            BatchNorm2d(),
        )
    },
    "images changed in place, again and again": (
        Sequential(ReLU(), Dropout(0.2), Tanh(), BatchNorm2d(), Conv2d(4, 3), Conv2d(4, 3), *END),
        SHAPE,
    ),
    "images twice": (Sequential(Branches(Identity(), Identity()), Conv2d(4, 3), *END), SHAPE),
    "images beside what is made of them": (
        Sequential(Branches(Identity(), Conv2d(4, 1), ReLU()), Conv2d(4, 3), ReLU(), Conv2d(4, 1), *END),
        SHAPE,
    ),
    "images added to themselves": (
        Sequential(Branches(*[Identity()] * 3, merge=Add()), Conv2d(4, 3), *END),
        SHAPE,
    ),
    "images around a convolution": (
        Sequential(Residual(Sequential(Conv2d(3, 3, padding=1), ReLU())), Residual(Conv2d(3, 1)), *END),
        SHAPE,
    ),
    "shortcut first": (Sequential(Branches(Identity(), Conv2d(3, 1), merge=Add()), ReLU(), Conv2d(3, 3), *END), SHAPE),
    "branches without parameters": (Sequential(Residual(ReLU()), Residual(Dropout(0.4)), Conv2d(4, 3), *END), SHAPE),
    "branches that end at the loss": (Sequential(Flatten(), Branches(Linear(4), Linear(3), merge=Concat())), SHAPE),
    "sum that ends at the loss": (
        Sequential(Flatten(), Branches(Linear(7), Sequential(Linear(9), ReLU(), Linear(7)), merge=Add())),
        SHAPE,
    ),
    "activations before the loss": (
        Sequential(Flatten(), Linear(7), ReLU(), Dropout(0.3), Branches(Identity(), Identity(), Tanh(), merge=Add())),
        SHAPE,
    ),
    "one input of four readers": (
        Sequential(
            Conv2d(4, 3, padding=1),
            Branches(Identity(), ReLU(), Sigmoid(), Dropout(0.5), merge=Concat()),
            Conv2d(4, 1),
            *END,
        ),
        SHAPE,
    ),
    "cheap layers in a row": (
        Sequential(Conv2d(4, 3), BatchNorm2d(), BatchNorm2d(), ReLU(), ReLU(), Dropout(0.1), Dropout(0.2), *END),
        SHAPE,
    ),
    "convolutions alone": (Sequential(*[Conv2d(6, 3, padding=1) for _ in range(8)], *END), SHAPE),
}


def problem_of(seed, kernels=Kernels.FIXED, dtype="float32"):
    return problem_of_network(random_network(seed), SHAPE, kernels, dtype)


def problem_of_network(network, shape, kernels=Kernels.FIXED, dtype="float32"):
    backend = ReferenceBackend()
    graph = lower(training_graph(forward_graph(network, shape, dtype), SGD(0.05, momentum=0.9)), backend)
    return Problem(graph, estimate(graph, backend), kernels, lay_out_state(graph))


def least_bytes(problem, strategy):
    with pytest.raises(BudgetError) as refused:
        make_plan(problem, strategy, 1)
    return refused.value.least_bytes


def feeds(step, dtype="float32", shape=SHAPE):
    rng = np.random.default_rng(step)
    return {
        "images": rng.normal(size=shape).astype(dtype),
        "labels": rng.integers(0, 7, shape[0]),
        "scalars": np.array([0.05, 1.0]),
        "random_key": np.array([11, step], np.int64),
    }


def run(problem, plan, device, steps=3, seed=5):
    """Losses and the digest of the weights after a few steps."""
    backend = ReferenceBackend()
    (images,) = problem.graph.with_role(Role.INPUT)
    with tier_for(plan) as tier:
        state = State(problem.graph, infer_layout(plan, problem.graph), backend, device, tier)
        state.initialize(seed)
        executor = Executor(plan, problem.graph, backend, device, tier)
        executor.bind()
        losses = [executor.run(feeds(step, shape=images.shape))["loss"].tobytes() for step in range(steps)]
        return losses, state.weights_sha256(), executor


def check_that_no_plan_changes_a_bit(problem):
    """Every strategy at several budgets, in an arena full of NaN, against `keep`."""
    plans = [make_plan(problem, "keep", 2**40)]
    for strategy in STRATEGIES:
        problem = linked(problem, strategy)
        least = least_bytes(problem, strategy)
        most = make_plan(problem, strategy, 2**40).peak_bytes
        ks = range(4) if strategy in ("liveness", "chain") else (0, 1)
        plans += [make_plan(problem, strategy, least + (most - least) * k // 3) for k in ks]
    results = []
    for plan in plans:
        arena = Arena(plan.peak_bytes)
        arena.poison(0xFF, 0, arena.nbytes)  # NaN in every float that is read before it is written
        with arena, HostDevice(arena) as device:
            losses, digest, executor = run(problem, plan, device)
            assert executor.high_water_bytes == plan.peak_bytes
            results.append((losses, digest))
    assert np.isfinite(np.frombuffer(b"".join(results[0][0]), np.float32)).all()
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("seed", range(10))
def test_every_strategy_and_budget_gives_the_bits_of_keep(seed):
    check_that_no_plan_changes_a_bit(problem_of(seed))


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_networks_give_the_bits_of_keep_too(name):
    check_that_no_plan_changes_a_bit(problem_of_network(*UNUSUAL[name]))


@pytest.mark.parametrize("seed", range(6))
def test_no_byte_beyond_the_peak_is_touched_and_the_peak_is_reached(seed):
    problem = problem_of(seed)
    plan = make_plan(problem, "chain", least_bytes(problem, "chain"))
    margin = 1 << 16
    touched = np.zeros(plan.peak_bytes + margin, bool)
    for pattern in (0x55, 0xAA):
        arena = Arena(plan.peak_bytes + margin)
        arena.poison(pattern, 0, arena.nbytes)
        with arena, HostDevice(arena) as device:
            run(problem, plan, device, steps=1)
            touched |= arena.memory != pattern
    assert not touched[plan.peak_bytes :].any()
    assert plan.peak_bytes - 64 <= np.flatnonzero(touched).max() < plan.peak_bytes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(5))
def test_simulated_device_finds_no_race_and_gives_the_same_bits(seed, strategy):
    problem = linked(problem_of(seed), strategy)
    plan = make_plan(problem, strategy, least_bytes(problem, strategy))
    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        expected = run(problem, plan, device)[:2]
    for order in range(4):
        with Arena(plan.peak_bytes) as arena, SimulatedDevice(arena, order) as simulated:
            assert run(problem, plan, simulated)[:2] == expected


@pytest.mark.parametrize("queue", ["compute", "inward"])
def test_simulated_device_finds_each_wait_that_is_left_out(queue, monkeypatch):
    problem = problem_of(1)
    plan = make_plan(problem, "chain", least_bytes(problem, "chain"))
    found = 0
    for order in range(20):
        with Arena(plan.peak_bytes) as arena, SimulatedDevice(arena, order) as simulated:
            monkeypatch.setattr(getattr(simulated, queue), "wait", lambda event: None)
            # The host waits for the results of each step, which orders the next upload after it; without that
            # synchronization only the event does.
            if queue == "inward":
                monkeypatch.setattr(simulated.out, "synchronize", lambda: None)
            try:
                run(problem, plan, simulated)
                simulated.compute.synchronize()
                simulated.inward.synchronize()
            except RaceError:
                found += 1
    assert found == 20


def test_a_step_waits_for_the_one_before_without_the_host(monkeypatch):
    """The next upload comes after the last reader of the batch before, also where the host asks for no result."""
    problem = problem_of(1)
    plan = make_plan(problem, "chain", least_bytes(problem, "chain"))
    for order in range(20):
        with Arena(plan.peak_bytes) as arena, SimulatedDevice(arena, order) as simulated:
            with monkeypatch.context() as patch:
                patch.setattr(simulated.out, "synchronize", lambda: None)
                patch.setattr(simulated, "download", lambda queue, address, target: None)
                run(problem, plan, simulated)
            for queue in (simulated.compute, simulated.inward, simulated.out):
                queue.synchronize()


class Recorded:
    """A host device that notes what is launched, and which bytes of the arena each work changes."""

    def __init__(self, device, monkeypatch):
        self.works = []
        self.changed = []
        memory, launch = device.arena.memory, device.compute.launch

        def noting(work):
            before = memory.copy()
            launch(work)
            self.works.append(work)
            self.changed.append(np.flatnonzero(memory != before))

        monkeypatch.setattr(device.compute, "launch", noting)


@pytest.mark.parametrize("seed", range(4))
def test_works_say_what_they_read_and_write(seed, monkeypatch):
    problem = problem_of(seed)
    graph = problem.graph
    plan = make_plan(problem, "chain", least_bytes(problem, "chain"))

    def bytes_of(number):
        i = plan.instances[number]
        return i.address, i.address + i.nbytes

    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        recorded = Recorded(device, monkeypatch)
        run(problem, plan, device, steps=1)
    assert len(recorded.works) == len(plan.steps)
    for step, work, changed in zip(plan.steps, recorded.works, recorded.changed, strict=True):
        op = graph.ops[step.op]
        accesses = work.accesses()
        kept = [n for index, n in enumerate(step.outputs) if step.recompute and index in KINDS[op.kind].kept]
        assert set(accesses.reads) == {bytes_of(n) for n in (*step.inputs, *kept)}
        made = [n for n in step.outputs if n not in kept]
        updated = [n for n in step.inputs if plan.instances[n].tensor in op.updates]
        scratch = [] if step.workspace == NO_INSTANCE else [step.workspace]
        assert set(accesses.writes) == {bytes_of(n) for n in (*made, *updated, *scratch)}
        written = np.zeros(plan.peak_bytes, bool)
        for first, end in accesses.writes:
            written[first:end] = True
        assert written[changed].all(), op


def test_a_repeated_run_is_bound_as_one():
    problem = random_problem(2)
    plan = make_plan(problem, "chain", least_bytes(problem, "chain"))
    bound = []

    class Backend(NullBackend):
        def bind(self, graph, op, kernel, repeat, arena):
            bound.append((op.id, kernel, repeat))
            return super().bind(graph, op, kernel, repeat, arena)

    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        Executor(plan, problem.graph, Backend(), device).bind()
    assert bound == [(step.op, step.kernel, step.recompute) for step in plan.steps]
    assert any(repeat for _, _, repeat in bound)


def test_null_backend_reaches_the_predicted_peak():
    for seed in range(0, 12, 2):
        for strategy in STRATEGIES:
            problem = linked(random_problem(seed), strategy)
            plan = make_plan(problem, strategy, least_bytes(problem, strategy))
            with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device, tier_for(plan) as tier:
                executor = Executor(plan, problem.graph, NullBackend(), device, tier)
                executor.bind()
                outputs = executor.run(feeds(0))
                assert executor.high_water_bytes == plan.peak_bytes
                assert outputs["loss"].shape == (1,)


def test_kernels_that_fit_use_the_bytes_that_are_free_and_never_more():
    problem = problem_of(3, Kernels.FIT)
    costs = problem.costs
    # Give the largest kernel of each operation the least time, so that it is wanted.
    rows = tuple(
        tuple(dataclasses.replace(k, seconds=1e-3 / (1 + k.workspace_bytes)) for k in row) for row in costs.kernels
    )
    problem = dataclasses.replace(problem, costs=dataclasses.replace(costs, kernels=rows))
    least = least_bytes(problem, "chain")
    tight, roomy = make_plan(problem, "chain", least), make_plan(problem, "chain", least * 8)
    assert tight.peak_bytes <= least
    assert roomy.predicted_seconds < tight.predicted_seconds
    used = [{s.op: costs.kernels[s.op][s.kernel].workspace_bytes for s in plan.steps} for plan in (tight, roomy)]
    assert all(used[0][op] <= used[1][op] for op in used[0]) and used[0] != used[1]


def test_recomputation_uses_the_kernel_of_the_first_run():
    for seed in range(8):
        problem = problem_of(seed, Kernels.FIT)
        plan = make_plan(problem, "chain", least_bytes(problem, "chain"))
        kernels = {}
        for step in plan.steps:
            assert kernels.setdefault(step.op, step.kernel) == step.kernel


def test_a_missing_feed_is_named():
    problem = problem_of(0)
    plan = make_plan(problem, "liveness", 2**40)
    with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
        executor = Executor(plan, problem.graph, ReferenceBackend(), device)
        executor.bind()
        with pytest.raises(DataError, match="images"):
            executor.run({})


def touched(step, plan, problem):
    """Ranges of the arena that a step writes, and those that it reads."""
    if isinstance(step, Fetch):
        reads, writes = [], [step.instance]
    elif isinstance(step, Offload):
        reads, writes = [step.instance], []
    else:
        op = problem.graph.ops[step.op]
        kept = KINDS[op.kind].kept if step.recompute else ()
        reads = [*step.inputs, *(step.outputs[i] for i in kept)]
        writes = [n for i, n in enumerate(step.outputs) if i not in kept]
        writes += [n for n, t in zip(step.inputs, op.inputs, strict=True) if t in op.updates]
    spans = [{(plan.instances[n].address, plan.instances[n].nbytes) for n in some} for some in (writes, reads)]
    return tuple({(a, a + n) for a, n in span} for span in spans)


def is_needed(plan, problem, number):
    """Whether nothing else orders what a wait orders: no wait for a later transfer of its direction does so as well."""
    began = plan.steps[number].transfer
    moved = plan.steps[began]
    instance = plan.instances[moved.instance]
    mine = instance.address, instance.address + instance.nbytes

    def overlaps(spans):
        return any(first < mine[1] and mine[0] < end for first, end in spans)

    for position, step in enumerate(plan.steps[began + 1 :], began + 1):
        if isinstance(step, Wait):
            covers = step.transfer >= began and isinstance(plan.steps[step.transfer], type(moved))
            if covers and position != number:
                return False
        elif isinstance(moved, Offload):
            fetches = isinstance(step, Fetch) and step.copy == moved.copy
            if position > number and (fetches or overlaps(touched(step, plan, problem)[0])):
                return True
        elif position > number and any(map(overlaps, touched(step, plan, problem))):
            return True
    return False


@pytest.mark.parametrize("strategy", ["offload", "superneurons-memory"])
@pytest.mark.parametrize("seed", [0, 4, 10])
def test_simulated_device_finds_each_wait_for_a_transfer_that_is_left_out(seed, strategy):
    problem = linked(random_problem(seed), strategy)
    plan = make_plan(problem, strategy, least_bytes(problem, strategy))
    waits = [n for n, step in enumerate(plan.steps) if isinstance(step, Wait)]

    def races(left_out):
        for order in range(6):
            with Arena(plan.peak_bytes) as arena, SimulatedDevice(arena, order) as simulated, tier_for(plan) as tier:
                executor = Executor(plan, problem.graph, NullBackend(), simulated, tier)
                executor.bind()
                if left_out is not None:
                    executor._launches[left_out] = lambda: None
                try:
                    for step in range(2):
                        executor.run(feeds(step))
                except RaceError:
                    return True
        return False

    assert not races(None)
    needed = [number for number in waits if is_needed(plan, problem, number)]
    assert [number for number in waits if races(number)] == needed
    assert len(needed) >= 6


@pytest.mark.parametrize("seed", [3, 7])
def test_the_numbers_of_instances_mean_nothing(seed):
    """A plan from a file may list what is fetched before what the host writes, and a value before it is made."""
    problem = linked(problem_of_network(random_network(seed), LARGER), "offload")
    plan = make_plan(problem, "offload", least_bytes(problem, "offload"))
    (images,) = problem.graph.with_role(Role.INPUT)
    assert any(plan.copies[step.copy].tensor == images.id for step in plan.steps if isinstance(step, Fetch))
    with Arena(2**24) as arena, HostDevice(arena) as device:
        results = [run(problem, make_plan(problem, "keep", 2**24), device)[:2]]
    for turned in (False, True):
        last, rest = len(plan.instances) - 1, len(plan.copies) - 1

        def number(n, turned=turned, last=last):
            return last - n if turned and n != NO_INSTANCE else n

        def renumbered(step, turned=turned, rest=rest, number=number):
            match step:
                case Run():
                    inputs, outputs = (tuple(map(number, some)) for some in (step.inputs, step.outputs))
                    return dataclasses.replace(step, inputs=inputs, outputs=outputs, workspace=number(step.workspace))
                case Wait():
                    return step
                case _:
                    copy = rest - step.copy if turned else step.copy
                    return dataclasses.replace(step, instance=number(step.instance), copy=copy)

        stays = (plan.instances[::-1], plan.copies[::-1]) if turned else (plan.instances, plan.copies)
        steps = tuple(map(renumbered, plan.steps))
        same = dataclasses.replace(plan, steps=steps, instances=stays[0], copies=stays[1])
        verify(same, problem.graph, problem.costs, problem.state)
        with Arena(plan.peak_bytes) as arena, HostDevice(arena) as device:
            results.append(run(problem, same, device)[:2])
    assert results[0] == results[1] == results[2]


def test_binding_goes_over_the_operations_a_fixed_number_of_times():
    """Not once for each step, which takes a minute where the network has ten thousand layers."""

    class Counted(tuple):
        times = 0

        def __iter__(self):
            Counted.times += 1
            return super().__iter__()

    problem = random_problem(0)
    plan = make_plan(problem, "keep", 2**40)
    graph = dataclasses.replace(problem.graph, ops=Counted(problem.graph.ops))
    with HostDevice(Arena(plan.peak_bytes)) as device:
        executor = Executor(plan, graph, NullBackend(), device)
        Counted.times = 0
        executor.bind()
    assert Counted.times <= 3
