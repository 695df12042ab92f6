"""Plans that break a rule of transfers, each on purpose, and the verifier that must find it."""

import dataclasses
import random

import pytest

from bathyal.layers.graph import STATE
from bathyal.memory.errors import PlanError
from bathyal.scheduler.layout.moves import Move, Transfer
from bathyal.scheduler.plan.steps import PAGE, Fetch, Instance, Offload, Run, Wait
from bathyal.scheduler.plan.verify import verify
from bathyal.scheduler.planner import StrategyPlanner
from tests.support.hand_made import Link, hand_made, planned
from tests.support.plan_checks import PLENTY, live_peak, run_byte_by_byte
from tests.support.random_networks import random_problem
from tests.support.spilling import linked


def least(seed, strategy="offload"):
    problem = linked(random_problem(seed), strategy, seed)
    planner = StrategyPlanner(problem, strategy)
    return problem, planner.plan(planner.least_bytes)


@pytest.fixture(scope="module")
def case():
    """Eleven tensors leave; some come back three times."""
    return least(0)


@pytest.fixture(scope="module")
def roomy():
    """One tensor leaves, is needed by every second operation, and returns: nothing else limits what may be changed."""
    rows = [("concat", (0,), (1,)), ("concat", (1,), (2,)), ("relu", (2,), (3,)), ("concat", (3, 1), (4,))]
    made = hand_made(rows, [PAGE] * 5, [1.0] * 4, Link(PAGE, PAGE), outputs=(4,))
    out, back, wait = (Move(what, 1) for what in (Transfer.OFFLOAD, Transfer.FETCH, Transfer.WAIT))
    return made.problem, planned(made, [0, out, 1, wait, 2, back, wait, 3])


def rearranged(plan, order):
    """The plan with its steps in another order, some of them left out or new; lives and waits follow.

    Args:
        plan: that is changed.
        order: old positions, or new steps as they will be.
    """
    new = {old: position for position, old in enumerate(order) if isinstance(old, int)}
    last = len(order) - 1

    def moved(stay):
        births = [new[n] for n in range(stay.birth, len(plan.steps)) if n in new]
        deaths = [new[n] for n in range(stay.death, -1, -1) if n in new]
        birth, death = (births or [last])[0], (deaths or [0])[0]
        death = last if stay.death == len(plan.steps) - 1 else death
        return dataclasses.replace(stay, birth=0 if stay.birth == 0 else min(birth, death), death=max(birth, death))

    def step(entry):
        if not isinstance(entry, int):
            return entry
        found = plan.steps[entry]
        return Wait(new.get(found.transfer, found.transfer)) if isinstance(found, Wait) else found

    return dataclasses.replace(
        plan,
        steps=tuple(map(step, order)),
        instances=tuple(map(moved, plan.instances)),
        copies=tuple(map(moved, plan.copies)),
    )


def position(plan, kind, index=0):
    return [n for n, s in enumerate(plan.steps) if isinstance(s, kind)][index]


def wait_for(plan, transfer):
    return plan.steps.index(Wait(transfer))


class TestVerifierFinds:
    """Each rule, broken on purpose in a plan that was right."""

    def refused(self, case, match, plan=None, **changes):
        problem, whole = case
        with pytest.raises(PlanError, match=match):
            verify(dataclasses.replace(plan or whole, **changes), problem.graph, problem.costs, problem.state)

    def step(self, case, number, **changes):
        steps = list(case[1].steps)
        steps[number] = dataclasses.replace(steps[number], **changes)
        return tuple(steps)

    def copy(self, case, number, **changes):
        copies = list(case[1].copies)
        copies[number] = dataclasses.replace(copies[number], **changes)
        return tuple(copies)

    def instance(self, case, number, **changes):
        instances = list(case[1].instances)
        instances[number] = dataclasses.replace(instances[number], **changes)
        return tuple(instances)

    def test_nothing_in_a_plan_that_is_only_written_down_anew(self, case):
        problem, plan = case
        verify(rearranged(plan, range(len(plan.steps))), problem.graph, problem.costs, problem.state)

    @pytest.mark.parametrize(
        "changes", [{"address": 64}, {"address": -PAGE}, {"nbytes": PAGE + 64}, {"nbytes": 0}, {"nbytes": -PAGE}]
    )
    def test_a_copy_that_is_not_of_whole_pages(self, case, changes):
        self.refused(case, "copy 3: expected whole pages", copies=self.copy(case, 3, **changes))

    @pytest.mark.parametrize("tensor", [-1, 10_000])
    def test_a_copy_of_no_tensor(self, case, tensor):
        self.refused(case, r"copy 0: expected one of \d+ tensors", copies=self.copy(case, 0, tensor=tensor))

    def test_a_copy_of_state(self, case):
        for tensor in case[0].graph.with_role(*STATE):
            self.refused(case, "state that stays in the arena", copies=self.copy(case, 0, tensor=tensor.id))

    @pytest.mark.parametrize("changes", [{"birth": -1}, {"death": 0}, {"death": 10_000}])
    def test_a_copy_that_lives_outside_the_step(self, case, changes):
        self.refused(case, "copy 0: expected a life within the step", copies=self.copy(case, 0, **changes))

    @pytest.mark.parametrize("by", [-PAGE, PAGE])
    def test_wrong_bytes_outside(self, case, by):
        self.refused(case, "the highest end of a copy", outside_bytes=case[1].outside_bytes + by)

    def test_a_copy_over_another(self, case):
        _, plan = case
        a, b = next(
            (a, b)
            for a, first in enumerate(plan.copies)
            for b, second in enumerate(plan.copies)
            if first.birth < second.birth < first.death and first.address < second.address
        )
        moved = self.copy(case, b, address=plan.copies[a].address)
        end = max(c.address + c.nbytes for c in moved)
        self.refused(case, rf"copy ({a}|{b}): expected copies outside apart", copies=moved, outside_bytes=end)

    @pytest.mark.parametrize("changes", [{"instance": -1}, {"instance": 10_000}, {"copy": -1}, {"copy": 10_000}])
    @pytest.mark.parametrize("kind", [Offload, Fetch])
    def test_an_instance_or_a_copy_that_does_not_exist(self, case, kind, changes):
        steps = self.step(case, position(case[1], kind), **changes)
        self.refused(case, "an instance and a copy of the plan", steps=steps)

    @pytest.mark.parametrize("kind", [Offload, Fetch])
    def test_a_transfer_between_two_tensors(self, case, kind):
        _, plan = case
        number = position(plan, kind)
        tensor = plan.copies[plan.steps[number].copy].tensor
        other = next(n for n, c in enumerate(plan.copies) if c.tensor != tensor)
        self.refused(case, "of one tensor and size", steps=self.step(case, number, copy=other))

    def test_a_transfer_of_workspace(self, case):
        _, plan = case
        nbytes = plan.copies[0].nbytes
        scratch = Instance(-1, 0, len(plan.steps) - 1, nbytes, -(-plan.peak_bytes // PAGE) * PAGE)
        end = scratch.address + nbytes
        changes = {"instances": (*plan.instances, scratch), "peak_bytes": end, "budget_bytes": end}
        steps = self.step(case, position(plan, Offload), instance=len(plan.instances))
        self.refused(case, "of one tensor and size", steps=steps, **changes)

    def test_more_bytes_than_the_instance_has(self, roomy):
        copies = self.copy(roomy, 0, nbytes=2 * PAGE)
        self.refused(roomy, "of one tensor and size", copies=copies, outside_bytes=2 * PAGE)

    @pytest.mark.parametrize("kind", [Offload, Fetch])
    def test_an_instance_at_no_page(self, case, kind):
        _, plan = case
        number = plan.steps[position(plan, kind)].instance
        address = plan.instances[number].address - 64
        self.refused(case, f"aligned to {PAGE}", instances=self.instance(case, number, address=address))

    @pytest.mark.parametrize("kind", [Offload, Fetch])
    def test_an_instance_that_ends_before_the_wait(self, roomy, kind):
        _, plan = roomy
        begin = position(plan, kind)
        number = plan.steps[begin].instance
        self.refused(roomy, "alive", instances=self.instance(roomy, number, death=wait_for(plan, begin) - 1))

    def test_an_instance_that_is_gone_when_it_is_to_leave(self, roomy):
        _, plan = roomy
        number = plan.steps[position(plan, Offload)].instance
        self.refused(roomy, "both ends of a transfer alive", instances=self.instance(roomy, number, death=0))

    def test_a_copy_that_ends_before_the_wait(self, roomy):
        _, plan = roomy
        begin = position(plan, Fetch)
        for death in (begin - 1, begin):
            self.refused(roomy, "both ends of a transfer alive", copies=self.copy(roomy, 0, death=death))

    def test_a_value_that_leaves_before_it_is_there(self, roomy):
        """The operation that makes it comes after the transfer that takes it away."""
        _, plan = roomy
        order = list(range(len(plan.steps)))
        order[0], order[1] = 1, 0
        changed = rearranged(plan, order)
        born = dataclasses.replace(changed.instances[plan.steps[1].instance], birth=0)
        instances = list(changed.instances)
        instances[plan.steps[1].instance] = born
        self.refused(roomy, "present when a transfer from it begins, got absent", changed, instances=tuple(instances))

    def test_a_copy_that_holds_something_already(self, roomy):
        _, plan = roomy
        begin = position(plan, Offload)
        self.refused(roomy, "a fresh copy", copies=self.copy(roomy, 0, birth=0))
        order = [*range(begin + 1), plan.steps[begin], *range(begin + 1, len(plan.steps))]
        self.refused(roomy, "present when a transfer from it begins, got leaving", rearranged(plan, order))

    def test_a_fetch_before_its_offload_has_been_waited_for(self, case):
        _, plan = case
        tried = 0
        for begin, step in enumerate(plan.steps):
            if isinstance(step, Offload) and wait_for(plan, begin) > begin + 1:
                wait = wait_for(plan, begin)
                back = next(n for n, s in enumerate(plan.steps) if isinstance(s, Fetch) and s.copy == step.copy)
                order = list(range(len(plan.steps)))
                order.insert(wait, order.pop(back))
                changed = rearranged(plan, order)
                instances = list(changed.instances)
                fetched = plan.steps[back].instance
                instances[fetched] = dataclasses.replace(instances[fetched], birth=wait)
                self.refused(
                    case, "present when a transfer from it begins, got arriving", changed, instances=tuple(instances)
                )
                tried += 1
        assert tried

    def test_a_fetch_into_what_is_there(self, roomy):
        _, plan = roomy
        begin = position(plan, Fetch)
        number = plan.steps[begin].instance
        self.refused(roomy, "a fresh instance", instances=self.instance(roomy, number, birth=begin - 1))
        original = plan.steps[position(plan, Offload)].instance
        lives = self.instance(roomy, original, death=len(plan.steps) - 1)
        self.refused(roomy, "a fresh instance", steps=self.step(roomy, begin, instance=original), instances=lives)
        order = [*range(begin + 1), plan.steps[begin], *range(begin + 1, len(plan.steps))]
        self.refused(roomy, "present when a transfer from it begins, got leaving", rearranged(plan, order))

    def test_every_wait_that_is_left_out(self, case):
        _, plan = case
        for number, step in enumerate(plan.steps):
            if isinstance(step, Wait):
                order = [n for n in range(len(plan.steps)) if n != number]
                match = "begins, got (arriving|leaving)|reads it, got arriving|a wait for every transfer"
                self.refused(case, match, rearranged(plan, order))

    def test_a_wait_that_is_left_out_where_nobody_needs_the_bytes(self, roomy):
        """The tensor comes back, and nobody reads it."""
        _, plan = roomy
        number = wait_for(plan, position(plan, Fetch))
        first = plan.steps[position(plan, Offload)].instance
        steps = list(plan.steps)
        steps[-1] = dataclasses.replace(steps[-1], inputs=(steps[-1].inputs[0], first))
        changed = dataclasses.replace(plan, steps=tuple(steps), instances=self.instance(roomy, first, death=len(steps)))
        changed = rearranged(changed, [n for n in range(len(steps)) if n != number])
        instances = list(changed.instances)
        instances[first] = dataclasses.replace(instances[first], death=len(steps) - 2)
        self.refused(roomy, "a wait for every transfer", changed, instances=tuple(instances))

    def test_every_wait_that_comes_after_the_use(self, case):
        _, plan = case
        tried = 0
        for number, step in enumerate(plan.steps[:-1]):
            following = plan.steps[number + 1]
            fetched = isinstance(step, Wait) and isinstance(plan.steps[step.transfer], Fetch)
            if fetched and isinstance(following, Run):
                order = list(range(len(plan.steps)))
                order[number], order[number + 1] = number + 1, number
                self.refused(
                    case, "present or leaving when an operation reads it, got arriving", rearranged(plan, order)
                )
                tried += 1
        assert tried

    def test_a_wait_that_comes_twice_or_for_nothing(self, case):
        _, plan = case
        number = position(plan, Wait)
        order = [*range(number + 1), plan.steps[number], *range(number + 1, len(plan.steps))]
        self.refused(case, "has begun and was not waited for yet", rearranged(plan, order))
        for transfer in (-1, 0, number, len(plan.steps), 10_000):
            steps = self.step(case, number, transfer=transfer)
            self.refused(case, "has begun and was not waited for yet", steps=steps)

    def test_a_wait_before_the_transfer(self, case):
        _, plan = case
        number = position(plan, Wait)
        later = next(n for n in range(number + 1, len(plan.steps)) if isinstance(plan.steps[n], Fetch))
        steps = self.step(case, number, transfer=later)
        self.refused(case, "has begun and was not waited for yet", steps=steps)

    def test_a_value_that_is_made_where_another_comes_back(self, roomy):
        """The last operation but one writes into the very instance that is being filled."""
        _, plan = roomy
        begin = position(plan, Fetch)
        fetched, maker = plan.steps[begin].instance, plan.steps[0]
        again = dataclasses.replace(maker, outputs=(fetched,), recompute=True)
        order = [*range(begin + 1), again, *range(begin + 1, len(plan.steps))]
        images = maker.inputs[0]
        changed = rearranged(plan, order)
        instances = list(changed.instances)
        instances[images] = dataclasses.replace(instances[images], death=len(order) - 1)
        self.refused(roomy, "absent when an operation makes it, got arriving", changed, instances=tuple(instances))

    def test_an_output_in_place_of_what_has_not_left_yet(self, roomy):
        """The ReLU may overwrite its input, but not while that is on its way out."""
        problem, plan = roomy
        number = next(n for n, s in enumerate(plan.steps) if isinstance(s, Run) and s.op == 2)
        step = plan.steps[number]
        old, new = step.inputs[0], step.outputs[0]
        assert plan.instances[old].address == plan.instances[new].address
        copy = Instance(plan.instances[old].tensor, number, number + 2, PAGE, plan.outside_bytes)
        order = [
            *range(number),
            Offload(old, len(plan.copies)),
            number,
            Wait(number),
            *range(number + 1, len(plan.steps)),
        ]
        changed = rearranged(plan, order)
        instances = list(changed.instances)
        instances[old] = dataclasses.replace(instances[old], death=number + 2)
        copies = (*changed.copies, copy)
        changes = {"copies": copies, "outside_bytes": plan.outside_bytes + PAGE, "instances": tuple(instances)}
        self.refused(roomy, "outputs apart from inputs", changed, **changes)
        # Beside it, the same is right.
        instances[new] = dataclasses.replace(instances[new], address=plan.peak_bytes)
        peak = {"peak_bytes": plan.peak_bytes + PAGE, "budget_bytes": PLENTY}
        apart = dataclasses.replace(changed, **{**changes, **peak, "instances": tuple(instances)})
        apart = dataclasses.replace(apart, live_peak_bytes=live_peak(apart))
        verify(apart, problem.graph, problem.costs, problem.state)
        run_byte_by_byte(apart, problem)

    def test_bytes_that_are_given_away_before_they_have_left(self, case):
        """Another instance over one that is on its way out."""
        _, plan = case
        begin, made = next(
            (begin, step.outputs[0])
            for begin, offload in enumerate(plan.steps)
            if isinstance(offload, Offload)
            for step in plan.steps[begin : wait_for(plan, begin)]
            if isinstance(step, Run) and offload.instance not in step.inputs
        )
        address = plan.instances[plan.steps[begin].instance].address
        self.refused(case, "live instances apart", instances=self.instance(case, made, address=address))


def mutant(plan, rng):
    """The plan with one thing changed."""
    steps, kind = list(plan.steps), rng.randrange(8)
    transfers = [n for n, s in enumerate(steps) if not isinstance(s, Run)]
    order = list(range(len(steps)))
    number = rng.choice(transfers)
    if kind == 0:
        del order[number]
        return rearranged(plan, order)
    if kind == 1:
        order.insert(max(0, number + rng.choice((-3, -2, -1, 1, 2, 3))), order.pop(number))
        return rearranged(plan, order)
    if kind == 2:
        order.insert(rng.randrange(len(order)), steps[number])
        return rearranged(plan, order)
    if kind == 3:
        other = rng.choice(transfers)
        order[number], order[other] = other, number
        return rearranged(plan, order)
    if kind == 4:
        field = rng.choice([f.name for f in dataclasses.fields(steps[number])])
        steps[number] = dataclasses.replace(
            steps[number], **{field: getattr(steps[number], field) + rng.choice((-1, 1))}
        )
        return dataclasses.replace(plan, steps=tuple(steps))
    name = "copies" if kind < 7 else "instances"
    stays = list(getattr(plan, name))
    if name == "copies":
        which = rng.randrange(len(stays))
    else:
        which = rng.choice([s.instance for s in steps if isinstance(s, Offload | Fetch)])
    field = rng.choice(("address", "birth", "death", "nbytes", "tensor"))
    by = rng.choice((-2, -1, 1, 2)) * (PAGE if field in ("address", "nbytes") else 1)
    stays[which] = dataclasses.replace(stays[which], **{field: getattr(stays[which], field) + by})
    return dataclasses.replace(plan, **{name: tuple(stays)})


@pytest.mark.parametrize("strategy", ["offload", "superneurons-memory"])
@pytest.mark.parametrize("seed", [0, 7])
def test_what_the_verifier_lets_pass_is_right_byte_by_byte(seed, strategy):
    problem, plan = least(seed, strategy)
    run_byte_by_byte(plan, problem)
    rng = random.Random(seed)
    passed = refused = 0
    for _ in range(150):
        changed = mutant(plan, rng)
        peak = max(i.address + i.nbytes for i in changed.instances)
        outside = max(c.address + c.nbytes for c in changed.copies)
        changed = dataclasses.replace(changed, peak_bytes=peak, budget_bytes=PLENTY, outside_bytes=outside)
        changed = dataclasses.replace(changed, live_peak_bytes=live_peak(changed))
        try:
            verify(changed, problem.graph, problem.costs, problem.state)
        except PlanError:
            refused += 1
            continue
        passed += 1
        run_byte_by_byte(changed, problem)
    assert passed > 5
    assert refused > 50
