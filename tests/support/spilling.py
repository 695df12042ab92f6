"""What tests of plans with transfers share: a link for strategies that need one, and a place outside the arena."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from bathyal.scheduler.layout.problem import Problem
from bathyal.scheduler.plan.link import Link
from bathyal.scheduler.plan.steps import Plan
from bathyal.scheduler.strategies.names import StrategyName, find_link_use
from bathyal.scheduler.strategies.strategy import LinkUse
from tests.support.host_tier import HostTier


def needs_link(strategy: str | StrategyName) -> bool:
    """Whether a strategy always may move tensors out of the arena, so that it is refused without a link."""
    return find_link_use(strategy) is LinkUse.REQUIRED


def random_link(seed: int) -> Link:
    """From far slower than the computation to far faster."""
    rng = random.Random(seed)
    return Link(*(10 ** rng.uniform(8, 11) for _ in range(2)))


def with_link(problem: Problem, link: Link) -> Problem:
    """The problem, with that link."""
    return replace(problem, costs=replace(problem.costs, link=link))


def linked(problem: Problem, strategy: str, seed: int = 0) -> Problem:
    """The problem, with a link where `strategy` moves tensors."""
    if not needs_link(strategy):
        return problem
    return with_link(problem, random_link(seed))


def tier_for(plan: Plan) -> AbstractContextManager[HostTier | None]:
    """Memory for what a plan moves out; nothing for one that moves nothing."""
    return HostTier(plan.outside_bytes) if plan.outside_bytes else nullcontext()
