"""The chain planner against an exhaustive search, a replay of every plan, and closed forms."""

import heapq
import math
import random

import numpy as np
import pytest

from bathyal.memory.errors import BudgetError, ConfigError, PlanError
from bathyal.scheduler.chain.at_most_twice import solve_at_most_twice
from bathyal.scheduler.chain.bound import chain_bound_seconds
from bathyal.scheduler.chain.dp import choose_slots, fill_table, write_plan
from bathyal.scheduler.chain.groups import group_chain, make_group_solver
from bathyal.scheduler.chain.least_memory import find_minimum_budget, find_minimum_plan
from bathyal.scheduler.chain.scaled import scale_chain
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.states import StateIndex, index_states
from bathyal.scheduler.chain.types import (
    Backward,
    Chain,
    ChainBlock,
    ChainOption,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
)

EXACT = 10**6  # slots enough that every size here is exact


def random_block(rng, a, d, a_next, d_next, count, wild):
    """Transients from the lowest that make sense to far above the sizes."""
    options = []
    for _ in range(count):
        saved = a_next + rng.randint(0, 5)
        lowest = max(-d, -(saved + d_next))
        options.append(
            ChainOption(
                saved,
                float(rng.randint(0, 5)),
                float(rng.randint(0, 9)),
                rng.choice([0, rng.randint(0, 3), rng.randint(0, wild)]),
                rng.choice([lowest, rng.randint(lowest, 3), rng.randint(lowest, wild)]),
            )
        )
    return ChainBlock(a, d, float(rng.randint(0, 5)), rng.choice([0, rng.randint(0, wild)]), tuple(options))


def random_chain(rng, count, *, options=1, wild=20, runs=False):
    """`count` blocks and the loss, d ≠ a; with `runs` neighbours are often equal."""
    a = [rng.randint(0 if rng.random() < 0.1 else 1, 5) for _ in range(count + 1)]
    d = [rng.choice([0, a[0]])] + [rng.randint(0, 5) for _ in range(count)]
    if runs:
        for i in range(1, count):
            if rng.random() < 0.7:
                a[i + 1], d[i + 1] = a[i], d[i]
    blocks = []
    for i in range(count):
        block = random_block(rng, a[i], d[i], a[i + 1], d[i + 1], rng.randint(1, options), wild)
        if runs and blocks and (a[i], d[i]) == (a[i - 1], d[i - 1]) and rng.random() < 0.9:
            block = blocks[-1]
        blocks.append(block)
    loss = ChainOption(0, 0.0, float(rng.randint(0, 3)), 0, rng.choice([0, rng.randint(0, wild)]))
    return Chain((*blocks, ChainBlock(a[count], d[count], 0.0, 0, (loss,))))


def search(chain, budget):
    """Least time of a persistent plan, by Dijkstra over everything that can be in memory.

    A state is the gradient there and, for each x_i: "" absent, "loose" just computed, "kept" stored, or the option with
    which block i-1 saved it. Stored things leave memory only in their own backward.
    """
    blocks, last = chain.blocks, len(chain.blocks) - 1

    def nbytes(gradient, held):
        total = blocks[gradient].input_gradient_bytes if gradient <= last else 0
        for i, what in enumerate(held):
            if isinstance(what, int):
                total += blocks[i - 1].options[what].saved_bytes
            elif what:
                total += blocks[i].input_bytes
        return total

    def put(held, *changes):
        new = list(held)
        for i, what in changes:
            new[i] = what
        return tuple(new)

    start = (last + 1, ("kept", *[""] * last))
    if nbytes(*start) > budget:
        return math.inf
    best, queue, serial = {start: 0.0}, [(0.0, 0, start)], 0
    while queue:
        seconds, _, state = heapq.heappop(queue)
        if seconds > best[state]:
            continue
        gradient, held = state
        if gradient == 0:
            return seconds
        now = nbytes(*state)
        following = []
        for i in range(min(gradient, last)):
            if held[i] == "" or held[i + 1] != "":
                continue
            block, kept = blocks[i], held[i] if isinstance(held[i], int) else "kept"
            if now + blocks[i + 1].input_bytes + block.plain_forward_transient_bytes <= budget:
                cost = block.plain_forward_seconds
                following.append((cost, (gradient, put(held, (i, kept), (i + 1, "loose")))))
                if held[i] == "loose":
                    following.append((cost, (gradient, put(held, (i, ""), (i + 1, "loose")))))
            for k, option in enumerate(block.options):
                if now + option.saved_bytes + option.forward_transient_bytes <= budget:
                    following.append((option.forward_seconds, (gradient, put(held, (i, kept), (i + 1, k)))))
        i = gradient - 1
        option = None
        if i == last and held[i] != "":
            option = blocks[i].options[0]
        elif i < last and held[i] != "" and isinstance(held[i + 1], int):
            option = blocks[i].options[held[i + 1]]
        if option and now + blocks[i].input_gradient_bytes + option.backward_transient_bytes <= budget:
            new = put(held, (i, held[i] if isinstance(held[i], int) else ""))
            new = put(new, (i + 1, "")) if i < last else new
            following.append((option.backward_seconds, (i, new)))
        for cost, new in following:
            if seconds + cost < best.get(new, math.inf):
                best[new] = seconds + cost
                serial += 1
                heapq.heappush(queue, (seconds + cost, serial, new))
    return math.inf


def replay(chain, solution, budget):
    """Check what every plan must be; its time."""
    peak, seconds = simulate_chain(chain, solution.steps)
    assert peak <= budget
    assert seconds == solution.seconds
    backwards = [s.block for s in solution.steps if isinstance(s, Backward)]
    assert backwards == list(reversed(range(len(chain.blocks))))
    saves = [s.block for s in solution.steps if isinstance(s, ForwardSave)]
    assert sorted(saves) == list(range(len(chain.blocks) - 1))
    return seconds


@pytest.mark.parametrize("seed", range(11))
def test_equals_exhaustive_search(seed):
    rng = random.Random(seed)
    for case in range(100):
        count = rng.choice([1, 2, 2, 3, 3, 4, 4, 5])
        chain = random_chain(rng, count, options=1 + case % 2, wild=rng.choice([3, 20, 60]), runs=case % 3 == 0)
        least = find_minimum_budget(chain)
        assert search(chain, least - 1) == math.inf
        assert solve(chain, least - 1, EXACT) is None
        for budget in (least, least + rng.randint(1, 4), least + rng.randint(3, 12)):
            solution = solve(chain, budget, EXACT)
            assert solution is not None
            assert replay(chain, solution, budget) == search(chain, budget)


def test_minimum_plan_attains_the_minimum_and_keeps_larger_budgets():
    rng = random.Random(20)
    for _ in range(150):
        chain = random_chain(rng, rng.randint(1, 9), options=2, runs=True)
        least = find_minimum_budget(chain)
        assert simulate_chain(chain, find_minimum_plan(chain))[0] == least
        for budget in range(least, least + 20, 4):
            peak, seconds = simulate_chain(chain, find_minimum_plan(chain, budget))
            assert peak <= budget
            best = solve(chain, budget, EXACT)
            assert best is not None
            assert best.seconds <= seconds
        with pytest.raises(BudgetError) as raised:
            find_minimum_plan(chain, least - 1)
        assert str(least) in raised.value.expected


def test_time_never_rises_with_the_budget_at_one_unit():
    rng = random.Random(21)
    for _ in range(25):
        chain = random_chain(rng, 8, options=2)
        least = find_minimum_budget(chain)
        times = [replay(chain, solve(chain, b, EXACT), b) for b in range(least, least + 30)]
        assert times == sorted(times, reverse=True)


def test_no_plan_is_faster_than_the_bound_of_the_chain():
    rng = random.Random(11)
    tight = 0
    for _ in range(120):
        chain = random_chain(rng, rng.randint(1, 6), options=rng.randint(1, 3), wild=6)
        least = find_minimum_budget(chain)
        whole = sum(min(o.forward_seconds + o.backward_seconds for o in b.options) for b in chain.blocks)
        for budget in (least, least + rng.randint(1, 30), 10**6):
            bound, found = chain_bound_seconds(chain, budget), solve(chain, budget, EXACT)
            assert found is not None
            assert bound <= found.seconds + 1e-9
            assert bound >= whole - 1e-9
            tight += abs(bound - found.seconds) < 1e-9
        assert chain_bound_seconds(chain, 10**6) == pytest.approx(whole)
    assert tight > 160
    chain = bottlenecks(6, 32, 120, 6)
    for share in (0.25, 0.5):
        budget = int(share * sum(b.options[0].saved_bytes for b in chain.blocks))
        found = solve(chain, budget)
        assert found is not None
        assert chain_bound_seconds(chain, budget) <= found.seconds <= 1.03 * chain_bound_seconds(chain, budget)


def scaled(chain, factor, rng):
    """The chain with every size times `factor`, less a bit, so that rounding has something to round."""

    def size(nbytes, low=0):
        return max(nbytes * factor - (rng.randrange(factor) if nbytes > 0 else 0), low)

    blocks = []
    for b in chain.blocks:
        options = tuple(
            ChainOption(
                size(o.saved_bytes),
                o.forward_seconds,
                o.backward_seconds,
                size(o.forward_transient_bytes),
                o.backward_transient_bytes * factor,
            )
            for o in b.options
        )
        transient = size(b.plain_forward_transient_bytes)
        blocks.append(
            ChainBlock(size(b.input_bytes), size(b.input_gradient_bytes), b.plain_forward_seconds, transient, options)
        )
    return Chain(tuple(blocks))


def test_rounded_up_is_never_faster_and_rounded_down_never_slower():
    rng = random.Random(22)
    missing = 0
    for _ in range(40):
        chain = scaled(random_chain(rng, 7, options=2), 37, rng)
        least = find_minimum_budget(chain)
        for budget in (least, least + 60, least + 250, least + 700):
            exact = solve(chain, budget, EXACT)
            assert exact is not None
            for slots in (10, 40, 160):
                up, down = solve(chain, budget, slots), solve(chain, budget, slots, rounding="down")
                assert down is not None
                assert down.seconds <= exact.seconds
                assert exact.unit_bytes == 1
                missing += up is None
                if up is not None:
                    assert replay(chain, up, budget) >= exact.seconds
    assert missing  # coarse slots do refuse budgets at the minimum


def test_rounding_down_at_one_byte_is_the_optimum():
    rng = random.Random(23)
    for _ in range(50):
        chain = random_chain(rng, 6)
        budget = find_minimum_budget(chain) + rng.randint(0, 10)
        bound, exact = solve(chain, budget, EXACT, rounding="down"), solve(chain, budget, EXACT)
        assert bound.seconds == pytest.approx(exact.seconds, rel=1e-5)
        assert solve(chain, find_minimum_budget(chain) - 1, EXACT, rounding="down") is None


def test_a_unit_that_all_sizes_share_rounds_nothing():
    rng = random.Random(24)
    for _ in range(30):
        small = random_chain(rng, 6)
        big = scaled(small, 1, rng)
        wide = Chain(
            tuple(
                ChainBlock(
                    b.input_bytes << 20,
                    b.input_gradient_bytes << 20,
                    b.plain_forward_seconds,
                    b.plain_forward_transient_bytes << 20,
                    tuple(
                        ChainOption(
                            o.saved_bytes << 20,
                            o.forward_seconds,
                            o.backward_seconds,
                            o.forward_transient_bytes << 20,
                            o.backward_transient_bytes << 20,
                        )
                        for o in b.options
                    ),
                )
                for b in big.blocks
            )
        )
        assert find_minimum_budget(wide) == find_minimum_budget(small) << 20
        budget = find_minimum_budget(small) + 5
        assert solve(wide, (budget << 20) + 12345, 2000).seconds == solve(small, budget, EXACT).seconds


def index_every_state(chain):
    """A row for each interval: an index that shares nothing."""
    n = len(chain.blocks)
    firsts = np.arange(n)
    rows_before = firsts * n - firsts * (firsts - 1) // 2  # (i, i), …, (i, L) of all blocks before i
    return StateIndex(firsts, firsts, rows_before, rows_before - firsts, n * (n + 1) // 2)


def test_rows_that_states_share_give_the_same_times():
    rng = random.Random(25)
    collapsed = 0
    for _ in range(40):
        chain = random_chain(rng, 14, options=2, runs=True)
        collapsed += index_states(chain).row_count < index_every_state(chain).row_count
        least, scaled_chain = find_minimum_budget(chain), scale_chain(chain)
        most = least + 20 - chain.blocks[0].input_bytes
        shared, single = (fill_table(scaled_chain, index(chain), most) for index in (index_states, index_every_state))
        for room in (most - 20, most - 17, most - 11, most):
            (peak, one), (_, other) = (
                simulate_chain(chain, write_plan(table, chain, room)) for table in (shared, single)
            )
            assert peak <= room + chain.blocks[0].input_bytes
            assert one == other
    assert collapsed > 20


def test_states_of_a_run_are_shared_only_where_the_gradient_above_is_equal():
    block = ChainBlock(2, 2, 1.0, 0, (ChainOption(3, 1.0, 2.0, 0, 0),))
    loss = ChainBlock(2, 9, 0.0, 0, (ChainOption(0, 0.0, 1.0, 0, 0),))
    states = index_states(Chain((block,) * 5 + (loss,)))
    assert states.run_last.tolist() == [3, 3, 3, 3, 4, 5]
    assert states.count_splits() == sum(end - i for i in range(6) for end in range(int(states.run_last[i]), 6))


def plain_table(chain, room):
    """The recurrence cell by cell, in seconds above those without recomputation."""
    b, n = chain.blocks, len(chain.blocks)
    a, d = [x.input_bytes for x in b], [x.input_gradient_bytes for x in b] + [0]
    table = {}
    for length in range(n):
        for i in range(n - length):
            end = i + length
            for m in range(room + 1):
                best = math.inf
                fastest = min(o.forward_seconds + o.backward_seconds for o in b[i].options)
                for o in b[i].options:
                    backward = d[i] + d[i + 1] + o.saved_bytes + o.backward_transient_bytes
                    if m >= max(d[end + 1] + o.saved_bytes + o.forward_transient_bytes, backward):
                        rest = table[i + 1, end, m - o.saved_bytes] if end > i else 0.0
                        best = min(best, o.forward_seconds + o.backward_seconds - fastest + rest)
                for j in range(i + 1, end + 1):
                    need = a[i + 1] + b[i].plain_forward_transient_bytes
                    for q in range(i + 1, j):
                        need = max(need, a[q] + a[q + 1] + b[q].plain_forward_transient_bytes)
                    if m >= d[end + 1] + need:
                        seconds = sum(x.plain_forward_seconds for x in b[i:j])
                        best = min(best, seconds + table[j, end, m - a[j]] + table[i, j - 1, m])
                table[i, end, m] = best
    return table


def test_windows_and_pruning_lose_no_cell():
    rng = random.Random(26)
    for case in range(6):
        chain = random_chain(rng, 9, options=1 + case % 2, wild=8, runs=case % 3 == 0)
        room = 150
        table = fill_table(scale_chain(chain), index_states(chain), room)
        for (i, end, m), seconds in plain_table(chain, room).items():
            assert table.at(i, end, m) == seconds


def homogeneous(count, saved):
    """`count` blocks of 1-byte inputs whose plain forward costs a second; the loss needs as much as a block."""
    block = ChainBlock(1, 0, 1.0, 0, (ChainOption(saved, 0.0, 0.0, 0, 0),))
    return Chain((block,) * count + (ChainBlock(1, 0, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, saved),)),))


def revolve(steps, checkpoints):
    """Forwards that binomial checkpointing runs: Griewank and Walther (2000), r·l - C(c + r, r - 1)."""
    if steps == 1:
        return 0
    repetitions = next(r for r in range(1, steps + 1) if math.comb(checkpoints + r, r) >= steps)
    return repetitions * steps - math.comb(checkpoints + repetitions, repetitions - 1)


def test_revolve_is_the_case_where_saved_tensors_fit_only_once():
    saved = 50
    for count in (1, 2, 3, 7, 20, 45):
        for checkpoints in (1, 2, 3, 5, 9):
            solution = solve(homogeneous(count, saved), 1 + saved + checkpoints, EXACT)
            assert solution.seconds == revolve(count + 1, checkpoints)


def test_a_saved_output_is_also_a_checkpoint():
    # With ā = a each saving forward stores the next input at a checkpoint's price, so revolve is only an upper bound.
    block = ChainBlock(1, 0, 1.0, 0, (ChainOption(1, 1.0, 0.0, 0, 0),))
    loss = ChainBlock(1, 0, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 1),))
    for count in (2, 3, 7, 20):
        chain = Chain((block,) * count + (loss,))
        assert find_minimum_budget(chain) == 3
        # Three bytes: x_0 and two neighbours. Each block is reached from x_0, but for block 1 with its input saved.
        assert solve(chain, 3, EXACT).seconds == count * (count + 1) / 2 + count - 1
        for checkpoints in (2, 3, 5):
            seconds = solve(chain, 1 + 1 + checkpoints, EXACT).seconds
            assert seconds <= revolve(count + 1, checkpoints) + count
        assert solve(chain, 1 + count + 1, EXACT).seconds == count


def test_at_most_twice_keeps_its_word_and_meets_the_optimum_when_generous():
    rng = random.Random(27)
    met = refused = 0
    for _ in range(200):
        chain = random_chain(rng, rng.randint(1, 9), options=2, wild=5)
        least = find_minimum_budget(chain)
        for budget in range(least, least + 40, 5):
            exact, twice = solve(chain, budget, EXACT), solve_at_most_twice(chain, budget, EXACT)
            refused += twice is None
            if twice is None:
                continue
            assert replay(chain, twice, budget) >= exact.seconds
            met += twice.seconds == exact.seconds
            forwards = [s.block for s in twice.steps if not isinstance(s, Backward)]
            assert all(forwards.count(i) <= 2 for i in forwards)
        whole = sum(max(o.saved_bytes for o in b.options) for b in chain.blocks) + 100
        assert solve_at_most_twice(chain, whole, EXACT).seconds == solve(chain, whole, EXACT).seconds
    assert met > 1000
    assert refused


def bottlenecks(*counts):
    """A chain such as a residual network: stages of equal blocks with ā = 12 t, x = 4 t, t halved at each stage."""
    t = 200_704
    blocks = [ChainBlock(602_112, 0, 1e-3, 0, (ChainOption(4 * t, 1e-3, 2e-3, 0, 0),))]
    for count in counts:
        blocks += [ChainBlock(4 * t, 4 * t, 2e-3, 2 * t, (ChainOption(12 * t, 2e-3, 4e-3, t, 2 * t),))] * (count - 1)
        blocks.append(ChainBlock(4 * t, 4 * t, 2e-3, 2 * t, (ChainOption(10 * t, 2e-3, 4e-3, t, 2 * t),)))
        t //= 2
    t *= 2
    return Chain((*blocks, ChainBlock(4 * t // 2, 4 * t // 2, 0.0, 0, (ChainOption(0, 0.0, 1e-5, 0, 4000),))))


def test_groups_keep_the_budget_and_lose_little():
    chain = bottlenecks(47)
    total = sum(b.options[0].saved_bytes for b in chain.blocks)
    found = 0
    for share in (0.12, 0.2, 0.35, 0.6):
        budget = int(share * total)
        bound = solve(chain, budget, 2000, rounding="down").seconds
        for size in (2, 4, 8, 16):
            solution = make_group_solver(chain, budget, size).solve(budget)
            if solution is not None:
                found += 1
                assert bound <= replay(chain, solution, budget)
                assert size > 4 or share < 0.2 or solution.seconds <= 1.02 * bound
    assert found > 10


def test_groups_of_random_runs_are_replayed():
    rng = random.Random(28)
    joined = 0
    for _ in range(50):
        chain = random_chain(rng, 12, options=2, runs=True, wild=6)
        grouped = group_chain(chain, 2)
        joined += len(grouped.chain.blocks) < len(chain.blocks)
        least = find_minimum_budget(grouped.chain)
        for budget in (least, least + 7, least + 20):
            solution = make_group_solver(chain, budget, 2, EXACT).solve(budget)
            assert solution.seconds == solve(grouped.chain, budget, EXACT).seconds
            assert replay(chain, solution, budget) >= solve(chain, budget, EXACT).seconds
    assert joined > 25


def test_long_chains_are_planned_and_replayed():
    chain = bottlenecks(6, 32, 788, 6)
    total = sum(b.options[0].saved_bytes for b in chain.blocks)
    assert choose_slots(chain) == 0
    solution = solve(chain, total // 4)
    twice = solve_at_most_twice(chain, total // 4)
    assert replay(chain, solution, total // 4) <= replay(chain, twice, total // 4)
    least = find_minimum_budget(chain)
    assert simulate_chain(chain, find_minimum_plan(chain))[0] == least


def test_by_default_every_budget_from_the_minimum_on_has_a_plan():
    rng = random.Random(29)
    for _ in range(40):
        chain = scaled(random_chain(rng, 8, runs=True), 4001, rng)
        least = find_minimum_budget(chain)
        for budget in (least, least + 1, least + 9000):
            assert replay(chain, solve(chain, budget), budget) > 0 or all(
                o.forward_seconds + o.backward_seconds == 0 for b in chain.blocks for o in b.options
            )
        assert solve(chain, least - 1) is None


def test_transients_below_what_is_resident_count_as_what_is_resident():
    rng = random.Random(30)
    for _ in range(60):
        chain = random_chain(rng, 5)
        following = [b.input_gradient_bytes for b in chain.blocks[1:]] + [0]
        low, least = [], []
        for b, d_next in zip(chain.blocks, following, strict=True):
            o = b.options[0]
            floor = max(-b.input_gradient_bytes, -(o.saved_bytes + d_next))
            for into, (plain, forward, backward) in ((low, (-50, -50, -50)), (least, (0, 0, floor))):
                option = ChainOption(o.saved_bytes, o.forward_seconds, o.backward_seconds, forward, backward)
                into.append(
                    ChainBlock(b.input_bytes, b.input_gradient_bytes, b.plain_forward_seconds, plain, (option,))
                )
        low, least = Chain(tuple(low)), Chain(tuple(least))
        budget = find_minimum_budget(least)
        assert find_minimum_budget(low) == budget
        assert solve(low, budget + 2, EXACT).seconds == search(least, budget + 2)


def test_one_block_and_none():
    loss = ChainBlock(4, 4, 0.0, 0, (ChainOption(0, 0.0, 1.0, 0, 7),))
    assert find_minimum_budget(Chain((loss,))) == 15
    assert solve(Chain((loss,)), 15).steps == (Backward(0),)
    chain = Chain((ChainBlock(3, 0, 1.0, 0, (ChainOption(5, 2.0, 4.0, 1, 2),)), loss))
    assert find_minimum_budget(chain) == 3 + 4 + 4 + 7  # the loss is the largest: x_0, x_1, δ_1, its transient
    assert solve(chain, 17) is None
    assert solve(chain, 18).steps == (ForwardCheckpoint(0), Backward(1), ForwardSave(0, 0), Backward(0))
    assert solve(chain, 19).steps == (ForwardSave(0, 0), Backward(1), Backward(0))
    assert solve(chain, 19).seconds == 7.0
    assert solve(chain, 0) is None
    assert solve(chain, -5, rounding="down") is None


def test_zero_times_and_a_large_loss():
    block = ChainBlock(2, 2, 0.0, 0, (ChainOption(6, 0.0, 0.0, 0, 0),))
    chain = Chain((block,) * 6 + (ChainBlock(2, 2, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 100),)),))
    least = find_minimum_budget(chain)
    assert least == 2 + 2 + 2 + 100  # x_0, x_6, δ_6 and the loss's own
    solution = solve(chain, least, EXACT)
    assert replay(chain, solution, least) == 0.0


def test_sizes_beyond_32_bits():
    big = 3 << 40
    block = ChainBlock(big, big, 1.0, 0, (ChainOption(3 * big, 1.0, 2.0, 0, 0),))
    chain = Chain((block,) * 10 + (ChainBlock(big, big, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 0),)),))
    budget = 14 * big + 1
    assert replay(chain, solve(chain, budget, 1000), budget) == replay(chain, solve(chain, budget, 14), budget)


def test_what_makes_no_sense_is_refused():
    loss = ChainBlock(1, 1, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 0),))
    good = ChainOption(1, 1.0, 1.0, 0, 0)
    for blocks in (
        (),
        (ChainBlock(1, 1, 0.0, 0, ()), loss),
        (ChainBlock(-1, 1, 0.0, 0, (good,)), loss),
        (ChainBlock(1, 1, math.nan, 0, (good,)), loss),
        (ChainBlock(1, 1, 0.0, 0, (ChainOption(-1, 1.0, 1.0, 0, 0),)), loss),
        (ChainBlock(1, 1, 0.0, 0, (good, good)),),
    ):
        with pytest.raises(ConfigError):
            solve(Chain(blocks), 10)
    with pytest.raises(ConfigError):
        solve(Chain((loss,)), 10, 0)


@pytest.mark.parametrize(
    "steps",
    [
        [Backward(1)],  # no input
        [ForwardSave(0, 0), Backward(0)],  # no gradient
        [ForwardCheckpoint(0), Backward(1), Backward(0)],  # nothing saved
        [ForwardDiscard(0), Backward(1), Backward(0)],  # input freed
        [ForwardSave(0, 0), ForwardSave(0, 0)],  # saved twice
        [ForwardSave(0, 0), ForwardCheckpoint(0)],  # computed though there
        [ForwardSave(0, 1)],  # no such option
        [ForwardSave(0, 0), Backward(1)],  # not finished
        [ForwardSave(0, 0), Backward(1), Backward(0), Backward(0)],  # twice
        [ForwardSave(2, 0)],  # no such block
        [ForwardSave(1, 0)],  # the loss has no forward of its own
    ],
)
def test_replay_refuses(steps):
    block = ChainBlock(2, 2, 1.0, 0, (ChainOption(6, 1.0, 1.0, 0, 0),))
    chain = Chain((block, ChainBlock(2, 2, 0.0, 0, (ChainOption(0, 0.0, 0.0, 0, 0),))))
    with pytest.raises(PlanError):
        simulate_chain(chain, steps)


def test_replay_counts_by_hand():
    block = ChainBlock(2, 3, 1.0, 4, (ChainOption(6, 1.5, 2.5, 1, -3),))
    chain = Chain((block, block, ChainBlock(2, 3, 0.0, 0, (ChainOption(0, 0.0, 0.25, 0, 5),))))
    steps = [ForwardCheckpoint(0), ForwardSave(1, 0), Backward(2), Backward(1), ForwardSave(0, 0), Backward(0)]
    # x_0 2, x_1 2, ā_1 6, then the loss adds δ_2 3 and its own 5.
    assert simulate_chain(chain, steps) == (18, 1.0 + 1.5 + 0.25 + 2.5 + 1.5 + 2.5)
