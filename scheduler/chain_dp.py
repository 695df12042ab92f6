"""The fastest memory-persistent plan of a chain within a budget, by dynamic programming over intervals and bytes.

OPT(i,l,m) is the least time from the gradient of block l's output to that of block i's input, x_i resident (not counted
in m), the waiting gradient δ_{l+1} counted in m; the answer is OPT(0, L, budget - a_0). With sizes a, d, ā as in
`chain_steps`, P what a run of plain forwards needs and A what a saving block needs:

    P(i,j,l) = d_{l+1} + max( a_{i+1} + plain_i, max_{i<q<j} a_q + a_{q+1} + plain_q )
    A(i,l,k) = max( d_{l+1} + ā_k + forward_k,  d_i + d_{i+1} + ā_k + backward_k )
    split at j (m >= P):    Σ_{i<=q<j} plain seconds + OPT(j, l, m - a_j) + OPT(i, j-1, m)
    save with k (m >= A):   forward + backward seconds + OPT(i+1, l, m - ā_k)

Bytes are counted in units, each size rounded up on its own, so a plan found keeps the budget; where all sizes share a
unit that gives few enough slots, nothing is rounded. Rounded down, the same program is a lower bound for all
memory-persistent plans (a plan that drops a stored tensor early can be faster; that problem is NP-hard).

The table holds the seconds above those of a step without recomputation, in float32; plans are replayed in float64.
Not checked: that the chain's numbers describe a network. Source: Herrmann, Beaumont et al., arXiv 1911.13214, theorem 1,
with the conditions on memory corrected (d_{l+1} beside every forward, d_{i+1} beside every backward).
"""

from __future__ import annotations

from ..memory.errors import ConfigError
from .chain_ladder import Ladder, TabledGroups, default_slots, solve_within
from .chain_memory import minimum_budget, minimum_plan
from .chain_rows import Rounding
from .chain_steps import (
    Backward,
    Block,
    Chain,
    ChainSolution,
    ForwardCheckpoint,
    ForwardDiscard,
    ForwardSave,
    Option,
    Step,
    check_chain,
    simulate_chain,
)
from .chain_table import Table, TabledChain
from .chain_twice import solve_at_most_twice

__all__ = [
    "Backward",
    "Block",
    "Chain",
    "ChainSolution",
    "ForwardCheckpoint",
    "ForwardDiscard",
    "ForwardSave",
    "Option",
    "Step",
    "Table",
    "default_slots",
    "minimum_budget",
    "minimum_plan",
    "simulate_chain",
    "solve",
    "solve_at_most_twice",
    "solve_grouped",
]


def solve(
    chain: Chain,
    budget_bytes: int,
    slots: int | None = None,
    *,
    rounding: Rounding = "up",
    collapse_runs: bool = True,
    max_seconds: float | None = None,
) -> ChainSolution | None:
    """The fastest plan found within a budget, which counts the chain's input too; None if there is none.

    With `slots` the exact program at that many units a budget; None may then be the rounding's fault. Without, what
    `chain_ladder` chooses by the chain's length, or within `max_seconds` of planning, which are counted, not timed: more
    never give a slower plan. None then means a budget below `minimum_budget`.

    `rounding="down"` gives a certified lower bound for memory-persistent plans instead of a plan, by default with
    `default_slots` or else 100; None then means that no such plan fits. `collapse_runs=False` is the same program with
    one row for each interval.

    Raises:
        ConfigError: numbers that make no sense, no slots, fewer than no seconds.
    """
    check_chain(chain)
    if slots is None and rounding == "down":
        slots = default_slots(chain) or 100
    if slots is None:
        if max_seconds is None:
            return Ladder(chain, budget_bytes).solution(budget_bytes)
        if not max_seconds >= 0:
            raise ConfigError("chain planner", "at least 0 seconds", str(max_seconds))
        return solve_within(chain, budget_bytes, max_seconds)
    if slots < 1:
        raise ConfigError("chain planner", "at least one slot", str(slots))
    if budget_bytes < 1:
        return None
    return TabledChain(chain, budget_bytes, slots, rounding=rounding, collapse_runs=collapse_runs).solution(
        budget_bytes
    )


def solve_grouped(chain: Chain, budget_bytes: int, size: int, slots: int | None = None) -> ChainSolution | None:
    """The fastest plan where `size` neighbours of a run are taken as one; None if none fits, or still too long a chain.

    Raises:
        ConfigError: numbers that make no sense, no slots.
    """
    check_chain(chain)
    return TabledGroups(chain, budget_bytes, size, slots).solution(budget_bytes) if budget_bytes > 0 else None
