"""The baselines against closed forms, counts by hand, PyTorch's cuts, and the chain planner, which they never beat."""

import math
from collections import Counter

import pytest

from bathyal.memory.errors import BudgetError, ConfigError
from bathyal.scheduler.chain.revolve import count_most_slots, write_revolve_steps
from bathyal.scheduler.chain.sequential import write_sequential_steps
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.types import (
    Backward,
    Chain,
    ChainBlock,
    ChainOption,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
)
from bathyal.scheduler.layout.kernels import Kernels
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from bathyal.scheduler.strategies.baselines import SEGMENTS, SLOTS, TRIED, list_candidates
from tests.support.plan_checks import PLENTY
from tests.support.random_networks import random_problem


def homogeneous(count, saved=1):
    """`count` equal blocks of unit input, and a loss that takes nothing."""
    block = ChainBlock(1, 1, 1.0, 0, (ChainOption(saved, 1.0, 1.0, 0, 0),))
    return Chain((block,) * count + (ChainBlock(1, 1, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 0),)),))


def fewest(length, slots, known):
    """t(l, s) by trying every split: an oracle that knows no binomials."""
    if length == 1:
        return 0
    if slots == 0:
        return math.inf
    if (length, slots) not in known:
        known[length, slots] = min(
            k + fewest(length - k, slots - 1, known) + fewest(k, slots, known) for k in range(1, length)
        )
    return known[length, slots]


def forward_steps(length, slots):
    """t(l, s) in closed form: Griewank and Walther (2000), r·l - β(s + 1, r - 1), r the least with l <= β(s, r)."""
    repeated = next(r for r in range(length + 1) if length <= math.comb(slots + r, slots))
    return repeated * length - math.comb(slots + repeated, repeated - 1) if repeated else 0


def plain(steps):
    return sum(isinstance(step, (ForwardCheckpoint, ForwardDiscard)) for step in steps)


def test_revolve_takes_as_many_forward_steps_as_the_closed_form_and_no_schedule_takes_fewer():
    known = {}
    for length in range(1, 41):
        chain = homogeneous(length)
        for slots in range(1, length + 2):
            steps = write_revolve_steps(chain, slots)
            assert plain(steps) == forward_steps(length, slots) == fewest(length, slots, known)
            _, seconds = simulate_chain(chain, steps)
            assert seconds == forward_steps(length, slots) + 2 * length


def test_revolve_keeps_to_its_slots_and_saves_right_before_the_backward():
    for length, slots in ((1, 1), (2, 1), (7, 2), (30, 3), (100, 5)):
        steps = write_revolve_steps(homogeneous(length), slots)
        stored, most = {0}, 1
        for step, following in zip(steps, (*steps[1:], None), strict=True):
            match step:
                case ForwardCheckpoint(block):
                    stored.add(block)
                case Backward(block):
                    stored.discard(block)
                case ForwardSave(block):
                    assert following == Backward(length if block == length - 1 else block)
            most = max(most, len(stored))
        assert most <= slots
        backwards = [step.block for step in steps if isinstance(step, Backward)]
        assert backwards == list(reversed(range(length + 1)))


def test_revolve_at_a_thousand_blocks():
    chain = homogeneous(1000)
    for slots in (8, 10, 999):
        assert plain(write_revolve_steps(chain, slots)) == forward_steps(1000, slots)
    assert count_most_slots(chain) == 999
    assert forward_steps(1000, 999) == forward_steps(1000, 5000) == 999
    with pytest.raises(ConfigError):
        write_revolve_steps(chain, 0)
    assert write_revolve_steps(Chain(chain.blocks[-1:]), 1) == (Backward(0),)


def cuts_of_pytorch(count, segments):
    """First and last function of each part, as `torch.utils.checkpoint.checkpoint_sequential` computes them."""
    size = count // segments
    parts, end = [], -1
    for start in range(0, size * (segments - 1), size):
        end = start + size - 1
        parts.append((start, end))
    return [*parts, (end + 1, count - 1)]


def test_sequential_cuts_where_pytorch_does_and_repeats_all_but_the_last_segment():
    for count in range(1, 14):
        chain = homogeneous(count)
        for segments in range(1, count + 1):
            steps = write_sequential_steps(chain, segments)
            simulate_chain(chain, steps)
            parts = cuts_of_pytorch(count, segments)
            runs = Counter(s.block for s in steps if not isinstance(s, Backward))
            last = range(parts[-1][0], count)
            assert runs == {block: 1 if block in last else 2 for block in range(count)}
            stored = [s.block for s in steps if isinstance(s, ForwardCheckpoint)]
            assert stored == [start for start, _ in parts[:-1]]


def test_sequential_counts_by_hand():
    # Segments {0, 1} and {2, 3}: x_0, x_2 and what 2 and 3 save; the peak is in the backward pass of the last block.
    assert simulate_chain(homogeneous(4, saved=3), write_sequential_steps(homogeneous(4, saved=3), 2)) == (10.0, 10.0)


def test_sequential_refuses_numbers_that_make_no_sense():
    for segments, nearest in ((0, 1), (-2, 1), (5, 4)):
        with pytest.raises(ConfigError, match=f"'sequential:{nearest}'"):
            write_sequential_steps(homogeneous(4), segments)


def test_no_baseline_beats_the_optimum_of_the_same_bytes():
    for count, saved in ((5, 1), (9, 2), (12, 4)):
        chain = homogeneous(count, saved)
        plans = [write_sequential_steps(chain, k) for k in range(1, count + 1)]
        plans += [write_revolve_steps(chain, s) for s in range(1, count)]
        for steps in plans:
            peak, seconds = simulate_chain(chain, steps)
            assert solve(chain, peak, 10**6).seconds <= seconds


@pytest.mark.parametrize("kernels", list(Kernels))
@pytest.mark.parametrize("seed", range(8))
def test_never_faster_than_chain_in_the_same_budget(seed, kernels):
    problem = random_problem(seed, kernels)
    chain = StrategyPlanner(problem, "chain")
    for name in ("sequential", "revolve", "sequential:2"):
        try:
            baseline = StrategyPlanner(problem, name)
        except ConfigError:
            continue  # a single block
        assert chain.least_bytes <= baseline.least_bytes
        most = max(baseline.plan(PLENTY).peak_bytes, baseline.least_bytes)
        for share in range(3):
            budget = baseline.least_bytes + (most - baseline.least_bytes) * share // 2
            seconds = chain.plan(budget).predicted_seconds
            assert seconds <= baseline.plan(budget).predicted_seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_sequential_takes_the_best_number_that_fits(seed):
    problem = random_problem(seed)
    each = []
    for segments in range(1, 40):
        try:
            each.append(StrategyPlanner(problem, f"sequential:{segments}"))
        except ConfigError:
            break
    best = StrategyPlanner(problem, "sequential")
    assert best.least_bytes == min(planner.least_bytes for planner in each)
    for planner in each:
        plan = best.plan(planner.least_bytes)
        possible = [p.plan(planner.least_bytes) for p in each if p.least_bytes <= planner.least_bytes]
        assert plan.predicted_seconds == pytest.approx(min(p.predicted_seconds for p in possible), rel=1e-8)


def test_refusals_say_what_the_strategy_itself_needs():
    problem = random_problem(2)
    for name in ("sequential", "sequential:2", "revolve"):
        with pytest.raises(BudgetError, match=f"'{name}'.*Strategy 'chain' needs") as refused:
            make_plan(problem, name, 1)
        assert make_plan(problem, name, refused.value.least_bytes).peak_bytes == refused.value.least_bytes


def test_long_chains_are_thinned_and_keep_both_ends():
    chain = homogeneous(300, saved=3)
    for pattern in (SEGMENTS, SLOTS):
        found = list_candidates(chain, pattern)
        assert len(found) <= TRIED
        assert [c.seconds for c in found] == sorted(c.seconds for c in found)
        peaks = [c.peak_bytes for c in found]
        assert peaks == sorted(peaks, reverse=True)
    assert list_candidates(chain, SEGMENTS)[0].number == 1
    assert list_candidates(chain, SLOTS)[-1].number == 1
