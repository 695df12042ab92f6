"""What must hold for every plan of every strategy, on random networks."""

import dataclasses
import logging
import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from bathyal.layers.graph import FED, STATE, Phase, Role
from bathyal.layers.kinds import KINDS
from bathyal.memory.errors import BudgetError, ConfigError, PlanError
from bathyal.scheduler.bounds import knapsack_seconds
from bathyal.scheduler.plan import NO_INSTANCE, NO_TENSOR, Instance, Plan, aligned
from bathyal.scheduler.planner import STRATEGIES, make_plan
from bathyal.scheduler.simulate import simulate
from bathyal.scheduler.verify import verify
from random_networks import natural_order, random_problem

SEEDS = range(24)
PLENTY = 2**40


def budgets(problem, strategy):
    """The smallest that works, the largest worth giving, and some between."""
    with pytest.raises(BudgetError) as refused:
        make_plan(problem, strategy, 1)
    least = refused.value.least_bytes
    most = make_plan(problem, strategy, PLENTY).peak_bytes
    return sorted({least, *(least + (max(most, least) - least) * k // 4 for k in range(1, 4)), max(most, least)})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_plans_fit_and_are_what_they_say(seed, strategy):
    problem = random_problem(seed)
    for budget in budgets(problem, strategy):
        plan = make_plan(problem, strategy, budget)
        verify(plan, problem.graph, problem.costs, problem.state)
        assert plan.peak_bytes <= budget
        assert plan.peak_bytes == max(i.address + i.nbytes for i in plan.instances)
        assert plan.live_peak_bytes <= plan.peak_bytes
        assert plan.lower_bound_seconds <= plan.predicted_seconds * (1 + 1e-12)
        assert live_peak(plan) == plan.live_peak_bytes
        assert Plan.from_json(plan.to_json()) == plan


def live_peak(plan):
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


def with_workspace(problem, nbytes):
    """The same problem with kernels that all need scratch memory."""
    rows = tuple(tuple(dataclasses.replace(k, workspace_bytes=nbytes) for k in row) for row in problem.costs.kernels)
    return dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, kernels=rows))


def equal_bytes(plan, a, b):
    return plan.instances[a].nbytes == plan.instances[b].nbytes


def run_byte_by_byte(plan, problem):
    """Run a plan on labels instead of numbers: every byte knows which value was written there last.

    Knows of no lifetimes: it only looks at addresses, at what each operation reads, and at what it may overwrite.
    """
    graph, instances = problem.graph, plan.instances
    memory = np.full(plan.peak_bytes, -1, np.int64)
    labels = {}

    def place(number):
        i = instances[number]
        return slice(i.address, i.address + graph.tensors[i.tensor].nbytes)

    def write(number, version=0):
        memory[place(number)] = labels.setdefault((instances[number].tensor, version), len(labels))

    def check(number, version=0):
        assert (memory[place(number)] == labels[instances[number].tensor, version]).all()

    def overlap(a, b):
        return a.start < b.stop and b.start < a.stop

    for number, i in enumerate(instances):
        if i.tensor != NO_TENSOR and graph.tensors[i.tensor].role in FED | STATE:
            write(number)
    updated, done = set(), set()
    for step in plan.steps:
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
                    assert (index, source) in KINDS[op.kind].inplace
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
        if i.tensor != NO_TENSOR and graph.tensors[i.tensor].role in STATE:
            assert i.address == problem.state.addresses[graph.tensors[i.tensor].name]
            check(number, 1)
        elif i.tensor in graph.outputs:
            check(number)
    assert done == {op.id for op in graph.ops}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_is_there_when_it_is_read(seed, strategy):
    problem = random_problem(seed)
    for budget in budgets(problem, strategy)[:2]:
        run_byte_by_byte(make_plan(problem, strategy, budget), problem)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_one_byte_under_the_minimum_is_refused_and_names_it(seed, strategy):
    problem = random_problem(seed)
    least = budgets(problem, strategy)[0]
    assert make_plan(problem, strategy, least).peak_bytes <= least
    with pytest.raises(BudgetError, match=str(least)) as refused:
        make_plan(problem, strategy, least - 1)
    assert refused.value.least_bytes == least


@pytest.mark.parametrize("seed", SEEDS)
def test_chain_needs_less_than_liveness_and_liveness_less_than_keep(seed):
    problem = random_problem(seed)
    keep, liveness, chain = (budgets(problem, name)[0] for name in ("keep", "liveness", "chain"))
    assert chain <= liveness < keep


@pytest.mark.parametrize("seed", SEEDS)
def test_keep_gives_each_tensor_its_own_memory_for_the_whole_step(seed):
    plan = make_plan(random_problem(seed), "keep", PLENTY)
    tensors = [i for i in plan.instances if i.tensor != NO_TENSOR]
    assert all((i.birth, i.death) == (0, len(plan.steps) - 1) for i in tensors)
    assert len({i.address for i in tensors if i.nbytes}) == len([i for i in tensors if i.nbytes])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_runs_and_only_forward_ones_run_again(seed):
    problem = random_problem(seed)
    plan = make_plan(problem, "chain", budgets(problem, "chain")[0])
    runs = Counter(step.op for step in plan.steps)
    assert set(runs) == set(natural_order(problem.graph))
    for number, count in runs.items():
        op = problem.graph.ops[number]
        if count > 1:
            assert op.phase is Phase.FORWARD
            assert not op.updates
            assert op.kind != "batch_norm_update"


def test_a_larger_budget_is_never_slower_and_the_bound_never_higher():
    for seed in SEEDS:
        problem = random_problem(seed)
        found = [make_plan(problem, "chain", budget) for budget in budgets(problem, "chain")]
        bounds = [plan.lower_bound_seconds for plan in found]
        assert bounds == sorted(bounds, reverse=True)
        assert found[-1].predicted_seconds == min(plan.predicted_seconds for plan in found)


def test_the_bound_is_reached_when_everything_fits():
    for seed in SEEDS:
        problem = random_problem(seed)
        plan = make_plan(problem, "liveness", PLENTY)
        assert plan.predicted_seconds == pytest.approx(knapsack_seconds(problem.graph, problem.costs, PLENTY))


def test_same_problem_same_plan():
    for strategy in STRATEGIES:
        a, b = (make_plan(random_problem(3), strategy, 400_000) for _ in range(2))
        assert a.to_json() == b.to_json()


PLANS_DIGEST = """
import hashlib
from random_networks import random_problem
from bathyal.memory.errors import BudgetError
from bathyal.scheduler.planner import STRATEGIES, make_plan

digest = hashlib.sha256()
for seed in range(6):
    for strategy in STRATEGIES:
        problem = random_problem(seed)
        try:
            make_plan(problem, strategy, 1)
        except BudgetError as refused:
            for budget in (refused.least_bytes, refused.least_bytes * 5 // 4):
                digest.update(make_plan(problem, strategy, budget).to_json().encode())
print(digest.hexdigest())
"""


def test_plans_do_not_depend_on_the_seed_of_hashes():
    found = set()
    for seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", PLANS_DIGEST], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_unknown_strategy_names_the_nearest():
    with pytest.raises(ConfigError, match="liveness"):
        make_plan(random_problem(0), "livenes", PLENTY)


def test_refusal_of_a_simple_strategy_says_what_chain_needs():
    problem = random_problem(1)
    chain = budgets(problem, "chain")[0]
    with pytest.raises(BudgetError, match=f"'chain' needs {chain} bytes"):
        make_plan(problem, "liveness", chain)


def test_rejected_candidates_log_their_reason(caplog):
    problem = random_problem(2)
    with caplog.at_level(logging.INFO, "bathyal.scheduler.planner"):
        make_plan(problem, "chain", budgets(problem, "chain")[0])
    assert "chain: " in caplog.text


@pytest.fixture(scope="module")
def case():
    problem = random_problem(4)
    return problem, make_plan(problem, "chain", budgets(problem, "chain")[0])


class TestVerifierFinds:
    """Each rule, broken on purpose in a plan that was right."""

    def refused(self, case, match, **changes):
        problem, plan = case
        with pytest.raises(PlanError, match=match):
            verify(dataclasses.replace(plan, **changes), problem.graph, problem.costs, problem.state)

    def step(self, case, position, **changes):
        steps = list(case[1].steps)
        steps[position] = dataclasses.replace(steps[position], **changes)
        return tuple(steps)

    def instance(self, case, number, **changes):
        instances = list(case[1].instances)
        instances[number] = dataclasses.replace(instances[number], **changes)
        return tuple(instances)

    def test_another_graph(self, case):
        self.refused(case, "plan for the graph", graph="0" * 64)

    def test_more_than_the_budget(self, case):
        self.refused(case, "at most", budget_bytes=case[1].peak_bytes - 1)

    def test_a_wrong_peak(self, case):
        self.refused(case, "highest end", peak_bytes=case[1].peak_bytes - 64)

    def test_a_missing_operation(self, case):
        last = len(case[1].steps) - 1
        instances = tuple(
            dataclasses.replace(i, birth=min(i.birth, last - 1), death=min(i.death, last - 1))
            for i in case[1].instances
        )
        self.refused(case, "every operation to run", steps=case[1].steps[:-1], instances=instances)

    def test_a_read_before_it_is_made(self, case):
        problem, plan = case
        first = next(n for n, s in enumerate(plan.steps) if problem.graph.ops[s.op].phase is Phase.BACKWARD)
        swapped = list(plan.steps)
        swapped[0], swapped[first] = swapped[first], swapped[0]
        self.refused(case, "alive|before it is read", steps=tuple(swapped))

    def test_an_instance_that_died_too_early(self, case):
        _, plan = case
        number = next(
            n for n, i in enumerate(plan.instances) if i.tensor != NO_TENSOR and i.death > i.birth + 3 and i.birth > 0
        )
        self.refused(case, "alive", instances=self.instance(case, number, death=plan.instances[number].birth))

    @pytest.mark.parametrize("shift", [0, 64])
    def test_two_live_instances_in_one_place(self, case, shift):
        problem, plan = case
        end = problem.state.nbytes
        inner = [(n, i) for n, i in enumerate(plan.instances) if i.tensor != NO_TENSOR and i.address >= end]
        a, b = next(
            (n, other)
            for n, i in inner
            for _, other in inner
            if other.birth < i.birth < i.death < other.death
            and other.address + shift + i.nbytes < plan.peak_bytes
            and shift < other.nbytes
        )
        self.refused(case, "apart", instances=self.instance(case, a, address=b.address + shift))

    def test_an_operation_an_instance_or_a_tensor_that_does_not_exist(self, case):
        problem, plan = case
        last = len(plan.steps) - 1
        for op in (len(problem.graph.ops), plan.steps[last].op - len(problem.graph.ops)):
            self.refused(case, "operations", steps=self.step(case, last, op=op))
        for number in (len(plan.instances), -2):
            self.refused(case, "an instance of the plan", steps=self.step(case, 0, workspace=number))
            self.refused(case, "an instance of the plan", steps=self.step(case, 0, outputs=(number,)))
        for tensor in (len(problem.graph.tensors), -2):
            self.refused(case, "tensors", instances=self.instance(case, 0, tensor=tensor))

    def test_a_wrong_live_peak(self, case):
        self.refused(case, "live_peak_bytes", live_peak_bytes=case[1].live_peak_bytes - 64)

    def test_state_that_changes_places(self, case):
        problem, plan = case
        state = [
            n
            for n, i in enumerate(plan.instances)
            if i.tensor != NO_TENSOR and problem.graph.tensors[i.tensor].role in STATE
        ]
        a, b = next((x, y) for x in state for y in state if x < y and equal_bytes(plan, x, y))
        instances = list(self.instance(case, a, address=plan.instances[b].address))
        instances[b] = dataclasses.replace(instances[b], address=plan.instances[a].address)
        self.refused(case, " at ", instances=tuple(instances))

    def test_bytes_of_state_that_only_another_plan_uses(self, case):
        """An evaluation has no momentum, but must leave it alone."""
        problem, plan = case
        larger = dataclasses.replace(problem.state, nbytes=problem.state.nbytes + 64)
        with pytest.raises(PlanError, match="above the state"):
            verify(plan, problem.graph, problem.costs, larger)

    def test_an_output_in_place_of_an_input_that_is_read_later(self, case):
        problem, plan = case
        kinds = [KINDS[problem.graph.ops[s.op].kind] for s in plan.steps]
        position, old, new = next(
            (n, s.inputs[source], s.outputs[to])
            for n, s in enumerate(plan.steps)
            for to, source in kinds[n].inplace
            if plan.instances[s.inputs[source]].death > n and plan.instances[s.outputs[to]].birth == n
        )
        assert plan.instances[new].birth == position
        moved = self.instance(case, new, address=plan.instances[old].address)
        self.refused(case, "outputs apart from inputs", instances=moved)

    def test_a_workspace_over_an_operand(self):
        problem = with_workspace(random_problem(0), 256)
        plan = make_plan(problem, "liveness", PLENTY)
        position = next(n for n, s in enumerate(plan.steps) if plan.instances[s.outputs[0]].nbytes >= 256)
        step, instances = plan.steps[position], list(plan.instances)
        address = instances[step.outputs[0]].address
        instances[step.workspace] = dataclasses.replace(instances[step.workspace], address=address)
        with pytest.raises(PlanError, match="live instances apart"):
            verify(dataclasses.replace(plan, instances=tuple(instances)), problem.graph, problem.costs, problem.state)

    @pytest.mark.parametrize("seed", range(6))
    def test_every_small_change_that_would_harm_a_value(self, seed):
        """Plans with one number changed: what the verifier lets pass, a run byte by byte finds right as well."""
        problem = with_workspace(random_problem(seed), 256)
        plan = make_plan(problem, "chain", budgets(problem, "chain")[0])
        run_byte_by_byte(plan, problem)
        rng = random.Random(seed)
        passed = 0
        for _ in range(400):
            number, name = rng.randrange(len(plan.instances)), rng.choice(("address", "birth", "death", "nbytes"))
            instance = plan.instances[number]
            by = rng.choice((-192, -64, 64, 128)) if name == "address" else rng.choice((-64, -8, -2, -1, 1, 2, 8, 64))
            changed = list(plan.instances)
            changed[number] = dataclasses.replace(instance, **{name: getattr(instance, name) + by})
            peak = max(i.address + i.nbytes for i in changed)
            mutant = dataclasses.replace(plan, instances=tuple(changed), peak_bytes=peak, budget_bytes=PLENTY)
            mutant = dataclasses.replace(mutant, live_peak_bytes=live_peak(mutant))
            try:
                verify(mutant, problem.graph, problem.costs, problem.state)
            except PlanError:
                continue
            passed += 1
            run_byte_by_byte(mutant, problem)
        assert passed > 10

    def test_an_update_that_runs_twice(self, case):
        problem, plan = case
        position = next(n for n, s in enumerate(plan.steps) if problem.graph.ops[s.op].updates)
        again = dataclasses.replace(plan.steps[position], recompute=True)
        steps = (*plan.steps[: position + 1], again, *plan.steps[position + 1 :])
        instances = tuple(
            dataclasses.replace(
                i, birth=i.birth + (i.birth > position), death=i.death + (i.death > position or i.death == position)
            )
            for i in plan.instances
        )
        self.refused(case, "no repetition", steps=steps, instances=instances)

    def test_an_old_value_read_after_its_update(self):
        """A repetition, all of whose operands are there, but after the parameter that it reads was updated."""
        problem = random_problem(4)
        graph = problem.graph
        plan = make_plan(problem, "keep", PLENTY)
        first = next(
            s for s in plan.steps if any(graph.tensors[t].role is Role.PARAMETER for t in graph.ops[s.op].inputs)
        )
        last, end = len(plan.steps), plan.peak_bytes
        instances = [i if i.tensor == NO_TENSOR else dataclasses.replace(i, death=last) for i in plan.instances]
        outputs = []
        for tensor in graph.ops[first.op].outputs:
            outputs.append(len(instances))
            instances.append(Instance(tensor, last, last, aligned(graph.tensors[tensor].nbytes), end))
            end += instances[-1].nbytes
        again = dataclasses.replace(first, outputs=tuple(outputs), recompute=True)
        late = dataclasses.replace(
            plan, steps=(*plan.steps, again), instances=tuple(instances), peak_bytes=end, live_peak_bytes=end
        )
        with pytest.raises(PlanError, match="the old value of"):
            verify(late, graph, problem.costs, problem.state)
        # Before the first update the same repetition is allowed.
        position = next(n for n, s in enumerate(plan.steps) if graph.ops[s.op].phase is Phase.BACKWARD)
        moved = [
            dataclasses.replace(i, birth=position, death=position)
            if n in outputs
            else i
            if i.tensor != NO_TENSOR
            else dataclasses.replace(i, birth=i.birth + (i.birth >= position), death=i.death + (i.death >= position))
            for n, i in enumerate(instances)
        ]
        steps = (*plan.steps[:position], again, *plan.steps[position:])
        early = dataclasses.replace(late, steps=steps, instances=tuple(moved))
        early = dataclasses.replace(early, live_peak_bytes=live_peak(early))
        verify(early, graph, problem.costs, problem.state)

    def test_recompute_flag(self, case):
        self.refused(case, "recompute", steps=self.step(case, 0, recompute=True))

    def test_unknown_kernel(self, case):
        self.refused(case, "kernels", steps=self.step(case, 0, kernel=9))

    def test_another_kernel_in_a_repetition(self, case):
        problem, plan = case
        costs = dataclasses.replace(problem.costs, kernels=tuple(row * 2 for row in problem.costs.kernels))
        position = next(n for n, s in enumerate(plan.steps) if s.recompute)
        changed = dataclasses.replace(plan, steps=self.step(case, position, kernel=1))
        with pytest.raises(PlanError, match="the kernel of the first run"):
            verify(changed, problem.graph, costs, problem.state)

    def test_an_unaligned_address(self, case):
        self.refused(case, "aligned", instances=self.instance(case, 0, address=8))

    def test_too_few_bytes(self, case):
        self.refused(case, "bytes", instances=self.instance(case, 0, nbytes=0))

    def test_workspace_of_another_life(self):
        problem = with_workspace(random_problem(0), 256)
        plan = make_plan(problem, "liveness", PLENTY)
        position = next(n for n, s in enumerate(plan.steps) if s.workspace != NO_INSTANCE)
        steps = list(plan.steps)
        steps[position] = dataclasses.replace(steps[position], workspace=NO_INSTANCE)
        with pytest.raises(PlanError, match="256 bytes of workspace"):
            verify(dataclasses.replace(plan, steps=tuple(steps)), problem.graph, problem.costs, problem.state)
        instances = list(plan.instances)
        number = plan.steps[position].workspace
        instances[number] = dataclasses.replace(instances[number], death=len(plan.steps) - 1)
        with pytest.raises(PlanError, match="lives at this step alone"):
            verify(dataclasses.replace(plan, instances=tuple(instances)), problem.graph, problem.costs, problem.state)


def test_kept_outputs_are_the_batch_statistics_alone():
    assert {name: kind.kept for name, kind in KINDS.items() if kind.kept} == {"batch_norm_training": (1, 2)}


def test_simulated_time_is_the_sum_of_the_chosen_kernels():
    problem = random_problem(5)
    plan = make_plan(problem, "chain", budgets(problem, "chain")[1])
    timeline = simulate(plan, problem.costs)
    assert timeline.seconds == pytest.approx(sum(problem.costs.kernels[s.op][s.kernel].seconds for s in plan.steps))
    assert timeline.starts[0] == 0
    assert (timeline.starts[1:] >= timeline.starts[:-1]).all()
