"""Chains of random blocks, and budgets from their least to no recomputation."""

from bathyal.scheduler.chain.least_memory import find_minimum_budget
from bathyal.scheduler.chain.simulate import simulate_chain
from bathyal.scheduler.chain.step_writer import keep_everything
from bathyal.scheduler.chain.types import Chain, ChainBlock, ChainOption


def random_chain(rng, count, runs=False):
    blocks = []
    while len(blocks) < count:
        options = [
            ChainOption(rng.randint(8, 40), rng.uniform(1, 3), rng.uniform(1, 6), rng.randint(0, 9), rng.randint(-5, 9))
            for _ in range(rng.randint(1, 3))
        ]
        size = rng.randint(2, 8)
        block = ChainBlock(size, size, min(o.forward_seconds for o in options), rng.randint(0, 9), tuple(options))
        blocks += [block] * (rng.randint(5, 20) if runs else 1)
    return Chain((*blocks, ChainBlock(4, 4, 0.0, 0, (ChainOption(0, 0.0, 0.5, 0, 3),))))


def budgets_of(chain, count):
    least, most = find_minimum_budget(chain), simulate_chain(chain, keep_everything(chain))[0]
    return [least + (most - least) * k // (count - 1) for k in range(count)]
