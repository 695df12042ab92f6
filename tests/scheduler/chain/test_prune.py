"""Fewer options for long chains: what must stay, and that plans speak of the whole chain's options."""

import random

import pytest

from bathyal.scheduler.chain.least_memory import find_minimum_budget
from bathyal.scheduler.chain.prune import prune_options
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.solve import solve
from bathyal.scheduler.chain.types import Chain, ChainBlock, ChainOption, ForwardSave


def chain_of(seed, count=12):
    rng = random.Random(seed)

    def option():
        saved = rng.randint(1, 40)
        return ChainOption(saved, 1.0, 2.0 + 20 / saved + rng.random(), rng.randint(0, 9), rng.randint(-5, 15))

    blocks = [
        ChainBlock(rng.randint(1, 9), rng.randint(1, 9), 1.0, rng.randint(0, 5), tuple(option() for _ in range(30)))
    ]
    blocks = [
        rng.choice(blocks) if rng.random() < 0.7 else ChainBlock(3, 3, 1.0, 1, tuple(option() for _ in range(20)))
        for _ in range(count)
    ]
    return Chain((*blocks, ChainBlock(2, 2, 0.0, 0, (ChainOption(0, 0.0, 0.1, 0, 1),))))


@pytest.mark.parametrize("seed", range(12))
def test_the_extremes_stay(seed):
    chain = chain_of(seed)
    pruned = prune_options(chain)
    for whole, fewer, kept in zip(chain.blocks, pruned.chain.blocks, pruned.options, strict=True):
        assert fewer.options == tuple(whole.options[i] for i in kept)
        assert list(kept) == sorted(set(kept))
        for measure in (
            lambda o: o.saved_bytes,
            lambda o: o.forward_seconds + o.backward_seconds,
            lambda o: o.saved_bytes + o.backward_transient_bytes,
            lambda o: o.saved_bytes + max(o.forward_transient_bytes, 0),
        ):
            assert min(map(measure, fewer.options)) == min(map(measure, whole.options))


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_nearly_as_good_and_name_the_options_of_the_whole_chain(seed):
    chain = chain_of(seed)
    pruned = prune_options(chain)
    assert any(
        len(few.options) < len(all_.options) for few, all_ in zip(pruned.chain.blocks, chain.blocks, strict=True)
    )
    least = find_minimum_budget(chain)
    for budget in (least * 2, least * 3, least * 5):
        best, found = solve(chain, budget), solve(pruned.chain, budget)
        assert best is not None and found is not None
        steps = pruned.restore_options(found.steps)
        assert simulate_chain(chain, steps) == simulate_chain(pruned.chain, found.steps)
        assert best.seconds <= found.seconds * (1 + 1e-6)
        assert found.seconds <= best.seconds * 1.02
        assert [s for s in steps if not isinstance(s, ForwardSave)] == [
            s for s in found.steps if not isinstance(s, ForwardSave)
        ]
