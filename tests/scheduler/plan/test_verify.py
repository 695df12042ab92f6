"""Plans that break a rule, each on purpose, and the verifier that must find it."""

import dataclasses
import random

import pytest

from bathyal.layers.graph import STATE, Graph, Op, Phase, Role, Tensor
from bathyal.layers.kinds import KINDS
from bathyal.memory.errors import PlanError
from bathyal.scheduler.plan.costs import CostTable, KernelCost
from bathyal.scheduler.plan.state_layout import StateLayout
from bathyal.scheduler.plan.steps import NO_INSTANCE, NO_TENSOR, Instance, Plan, Run, align_address
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import make_plan
from tests.support.plan_checks import PLENTY, budgets, live_peak, run_byte_by_byte, with_workspace
from tests.support.random_networks import random_problem


@pytest.fixture(scope="module")
def case():
    problem = random_problem(4)
    return problem, make_plan(problem, "chain", budgets(problem, "chain")[0])


@pytest.fixture(scope="module")
def kept():
    """A plan in which everything lives for the whole step, so that only the other rules can be broken."""
    problem = random_problem(4)
    return problem, make_plan(problem, "keep", PLENTY)


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
        a, b = next(
            (x, y) for x in state for y in state if x < y and plan.instances[x].nbytes == plan.instances[y].nbytes
        )
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
        problem, _ = case
        plan = make_plan(problem, "liveness", PLENTY)
        case = problem, plan
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
            instances.append(Instance(tensor, last, last, align_address(graph.tensors[tensor].nbytes), end))
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

    @pytest.mark.parametrize(
        ("kind", "inputs", "nbytes", "refused"),
        [
            ("relu", (0,), 64, False),
            ("lrn", (0,), 64, True),
            ("relu", (0,), 128, True),
            ("add", (0, 0), 64, True),
        ],
    )
    def test_what_may_run_in_place(self, kind, inputs, nbytes, refused):
        """A kind that cannot, an output of another size, an input that is read twice."""
        tensors = (
            Tensor(0, "images", (16,), "float32", Role.INPUT, 64),
            Tensor(1, "y", (16,), "float32", Role.ACTIVATION, nbytes),
        )
        graph = Graph("by hand", tensors, (Op(0, kind, "op", inputs, (1,), forward_op=0),), (1,), 1)
        costs = CostTable(((KernelCost("only", 0, 1.0),),))
        instances = (Instance(0, 0, 0, 64, 0), Instance(1, 0, 0, nbytes, 0))
        steps = (Run(0, 0, inputs, (1,), NO_INSTANCE, False),)
        plan = Plan(
            "by hand", graph.fingerprint(), steps, instances, (), 0, nbytes, nbytes, nbytes, nbytes, 1.0, 1.0, 0.0
        )
        if refused:
            with pytest.raises(PlanError, match="outputs apart from inputs"):
                verify(plan, graph, costs, StateLayout({}, 0))
        else:
            verify(plan, graph, costs, StateLayout({}, 0))

    def of_role(self, case, role):
        tensors = case[0].graph.tensors
        return next(
            n for n, i in enumerate(case[1].instances) if i.tensor != NO_TENSOR and tensors[i.tensor].role is role
        )

    def test_a_second_instance_of_what_the_host_writes(self, kept):
        _, plan = kept
        images = dataclasses.replace(plan.instances[self.of_role(kept, Role.INPUT)], address=plan.peak_bytes)
        end = plan.peak_bytes + images.nbytes
        changes = {"peak_bytes": end, "live_peak_bytes": end, "budget_bytes": PLENTY}
        self.refused(kept, "a second", instances=(*plan.instances, images), **changes)

    def test_images_that_come_late_and_state_that_goes_early(self, kept):
        images, weight = self.of_role(kept, Role.INPUT), self.of_role(kept, Role.PARAMETER)
        self.refused(kept, "the whole step", instances=self.instance(kept, images, birth=1))
        self.refused(kept, "the whole step", instances=self.instance(kept, weight, death=len(kept[1].steps) - 2))

    def test_an_output_of_the_graph_that_is_gone_at_the_end(self, kept):
        _, plan = kept
        loss = next(n for n, i in enumerate(plan.instances) if i.tensor == kept[0].graph.outputs[0])
        self.refused(kept, "at the end", instances=self.instance(kept, loss, death=len(plan.steps) - 2))

    def test_a_value_that_is_not_computed_yet(self, kept):
        _, plan = kept
        self.refused(
            kept, "when an operation reads it, got absent", steps=(plan.steps[1], plan.steps[0], *plan.steps[2:])
        )

    def repeated(self, kept, index=NO_INSTANCE, fresh=True):
        """The plan with a repetition of its first batch norm: a new output, the old mean and variance.

        Output number `index` names a new instance or the first run's, whichever `fresh` says.
        """
        problem, plan = kept
        number = next(n for n, s in enumerate(plan.steps) if problem.graph.ops[s.op].kind == "batch_norm_training")
        first, last, end = plan.steps[number], len(plan.steps), plan.peak_bytes
        instances = [
            dataclasses.replace(i, death=last)
            if i.tensor != NO_TENSOR
            else dataclasses.replace(i, birth=i.birth + (i.birth > number), death=i.death + (i.death > number))
            for i in plan.instances
        ]
        new = range(len(instances), len(instances) + len(first.outputs))
        for old in first.outputs:
            instances.append(dataclasses.replace(instances[old], address=end))
            end += instances[old].nbytes
        outputs = [new[0], *first.outputs[1:]]
        if index != NO_INSTANCE:
            outputs[index] = new[index] if fresh else first.outputs[index]
        again = dataclasses.replace(first, outputs=tuple(outputs), recompute=True)
        return dataclasses.replace(
            plan,
            steps=(*plan.steps[: number + 1], again, *plan.steps[number + 1 :]),
            instances=tuple(instances),
            peak_bytes=end,
            live_peak_bytes=end,
            budget_bytes=PLENTY,
        )

    def test_outputs_of_a_repetition(self):
        """The output is made in a new place, while mean and variance are read where they were made."""
        problem = next(
            p for p in map(random_problem, range(24)) if any(op.kind == "batch_norm_training" for op in p.graph.ops)
        )
        kept = problem, make_plan(problem, "keep", PLENTY)
        verify(self.repeated(kept), problem.graph, problem.costs, problem.state)
        for index, fresh, match in ((0, False, "makes it, got present"), (1, True, "reads it, got absent")):
            with pytest.raises(PlanError, match=match):
                verify(self.repeated(kept, index, fresh), problem.graph, problem.costs, problem.state)

    def test_a_workspace_that_is_too_small(self):
        problem = with_workspace(random_problem(0), 256)
        plan = make_plan(problem, "liveness", PLENTY)
        instances = self.instance((problem, plan), plan.steps[0].workspace, nbytes=192)
        with pytest.raises(PlanError, match="256 bytes of workspace"):
            verify(dataclasses.replace(plan, instances=instances), problem.graph, problem.costs, problem.state)

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
