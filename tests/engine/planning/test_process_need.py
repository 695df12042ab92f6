import pytest

import bathyal as bt
from bathyal.engine.data.sources import count_queue_bytes
from bathyal.engine.data.synthetic import Synthetic
from bathyal.engine.planning.budget import Budget, BudgetChoice, choose_budget
from bathyal.engine.planning.process_need import ProcessNeed, estimate_process_need
from bathyal.engine.programs import Mode, make_mode_graph
from bathyal.engine.settings import Settings
from bathyal.memory.errors import BudgetError, DataError

MIB = 2**20
SHAPE = (4, 3, 16, 16)


class Room:
    """A machine with so many bytes free, all of them for whoever asks."""

    name = "host"

    def __init__(self, free):
        self.free = free

    def free_bytes(self):
        return self.free

    def default_budget(self, process_need):
        return self.free - process_need

    def largest_budget(self, process_need):
        return max(0, self.free - process_need)

    def open(self, nbytes):
        raise AssertionError("no arena is made here")


class Holder:
    """As much of a backend as a budget is chosen with."""

    def __init__(self, free):
        self.machine = Room(free)


def make_net(width=4):
    return bt.Sequential(bt.Conv2d(width, 3, padding=1), bt.ReLU(), bt.Flatten(), bt.Linear(10))


def estimate(net, settings, queue_bytes=0):
    return estimate_process_need(make_mode_graph(net, settings, Mode.TRAINING, settings.input_shape[0]), queue_bytes)


def test_the_need_grows_with_operations_state_and_batches():
    settings = Settings(input_shape=SHAPE)
    small, wide = estimate(make_net(), settings), estimate(make_net(64), settings)
    deep = estimate(bt.Sequential(*(bt.ReLU() for _ in range(100)), make_net()), settings)
    assert wide.state - small.state == 2 * (64 - 4) * 16 * 16 * 10 * 4
    assert deep.planning > small.planning and deep.kernels > small.kernels
    assert estimate(make_net(), settings, 5 * MIB).nbytes == small.nbytes + 5 * MIB
    assert small.nbytes == small.planning + small.kernels + small.state + small.batches + small.reserve


def test_the_library_packs_the_operands_of_a_matrix_product():
    settings = Settings(input_shape=(256, 4096))
    need = estimate(bt.Sequential(bt.Linear(2048)), settings)
    assert need.kernels > (256 * 4096 + 2048 * 4096) * 4


def test_a_saved_plan_is_followed_in_less():
    graph = make_mode_graph(make_net(), Settings(input_shape=SHAPE), Mode.TRAINING, 4)
    made, followed = (estimate_process_need(graph, 0, plans=plans) for plans in (True, False))
    assert followed.planning < made.planning and followed.kernels == made.kernels


def test_sources_say_what_they_take_and_others_are_taken_for_two_batches():
    assert count_queue_bytes(None, 7) == count_queue_bytes([], 7) == 14
    assert count_queue_bytes(Synthetic((3, 8, 8), 10, 4, 2), 7) == 4 * (768 + 8) + 4 * 768

    class Odd:
        queue_bytes = "many"

    with pytest.raises(DataError, match="queue_bytes"):
        count_queue_bytes(Odd(), 7)


NEED = ProcessNeed(planning=20 * MIB, kernels=5 * MIB, state=10 * MIB, batches=15 * MIB, reserve=0)


def test_the_default_budget_is_what_is_free_less_the_need():
    budget = choose_budget(Settings(input_shape=SHAPE), Room(200 * MIB), NEED, None)
    assert (budget.nbytes, budget.is_default) == (150 * MIB, True)


def test_a_budget_that_does_not_fit_beside_the_need_is_refused_with_the_largest_that_does():
    fits = Settings(input_shape=SHAPE, memory=150 * MIB)
    assert choose_budget(fits, Room(200 * MIB), NEED, None).nbytes == 150 * MIB
    with pytest.raises(BudgetError, match=f"--memory {150 * MIB}") as caught:
        choose_budget(Settings(input_shape=SHAPE, memory=151 * MIB), Room(200 * MIB), NEED, None)
    assert "50.0 MiB outside the arena (planning 20.0 MiB" in str(caught.value)
    with pytest.raises(BudgetError, match="Raise the limit"):
        choose_budget(fits, Room(40 * MIB), NEED, None)


def test_a_saved_plan_brings_its_budget():
    budget = choose_budget(Settings(input_shape=SHAPE), Room(200 * MIB), NEED, 60 * MIB)
    assert (budget.nbytes, budget.is_default) == (60 * MIB, False)


@pytest.mark.parametrize(("least", "words"), [(140, f"--memory {140 * MIB}"), (180, "30.0 MiB more")])
def test_a_refused_default_says_that_it_was_one_and_what_works(least, words):
    budget = Budget(100 * MIB, True, NEED, 200 * MIB)
    with pytest.raises(BudgetError) as caught, budget.explain_refusals():
        raise BudgetError("memory", "more", "less", "Hint.", least_bytes=least * MIB)
    told = str(caught.value)
    assert "No memory was given: the default is what is free, 200.0 MiB, less 50.0 MiB outside the arena" in told
    assert words in told and told.endswith("Hint.") and caught.value.least_bytes == least * MIB


def test_a_refused_budget_that_was_given_is_told_as_it_is():
    with pytest.raises(BudgetError) as caught, Budget(100 * MIB, False, NEED, 200 * MIB).explain_refusals():
        raise BudgetError("memory", "more", "less", least_bytes=MIB)
    assert "No memory was given" not in str(caught.value)


class Hungry:
    """A source whose batches take much."""

    queue_bytes = 500 * MIB


def test_data_that_are_known_before_the_budget_are_left_room_for():
    plain, told = (BudgetChoice(make_net(), Settings(input_shape=SHAPE), Holder(1000 * MIB)) for _ in range(2))
    told.expect(Hungry())
    assert plain.choose(None).nbytes - told.choose(None).nbytes == 500 * MIB - 2 * 4 * 3 * 16 * 16 * 4


def test_data_that_come_too_late_are_refused_where_there_is_no_room_for_them():
    backend = Holder(1000 * MIB)
    choice = BudgetChoice(make_net(), Settings(input_shape=SHAPE), backend)
    choice.choose(None)
    choice.expect(Hungry())
    backend.machine.free = 400 * MIB
    with pytest.raises(BudgetError, match="expect"):
        choice.expect(Hungry())


def test_a_trainer_leaves_room_for_the_data_that_it_expects():
    class Large:
        queue_bytes = 2**50

    with bt.Trainer(make_net(), SHAPE, memory="4 MiB", costs="analytic") as trainer:
        trainer.expect(Large())
        with pytest.raises(BudgetError, match="batches 1024"):
            _ = trainer.plan
