"""Strategies that a program adds from outside the package: planned, trained with, and refused where they are wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bathyal as bt
from bathyal.cli import main
from bathyal.layers.graph import Phase, Role
from bathyal.scheduler.planner import StrategyPlanner, make_plan
from bathyal.scheduler.strategies import (
    STRATEGIES,
    Move,
    Order,
    Placer,
    StrategyName,
    Transfer,
    list_spellings,
    parse_strategy,
)
from tests.support.own_strategies import MOVE, RECOMPUTE, OneOrder, RecomputeCheap, register_strategies
from tests.support.plan_checks import PLENTY, run_byte_by_byte
from tests.support.random_networks import natural_order, random_problem
from tests.support.spilling import random_link, with_link


def network() -> bt.Layer:
    return bt.Sequential(
        *(bt.Conv2d(8, 3, padding=1), bt.BatchNorm2d(), bt.ReLU(), bt.Conv2d(8, 3, padding=1), bt.ReLU()),
        *(bt.Dropout(0.2), bt.MaxPool2d(2), bt.Flatten(), bt.Linear(16), bt.Tanh(), bt.Linear(5)),
    )


def train(strategy: str, **choices: object) -> tuple[str, list[float], bt.Plan]:
    rng = np.random.default_rng(0)
    data = bt.ArrayDataset(
        rng.normal(size=(20, 3, 12, 12)).astype("float32"), rng.integers(0, 5, 20), batch=8
    )  # the last batch is shorter: it has a plan of its own
    with bt.Trainer(
        network(),
        (8, 3, 12, 12),
        optimizer=bt.SGD(0.05, momentum=0.9),
        memory="16 MiB",
        strategy=strategy,
        kernels="fixed",
        costs="analytic",
        **choices,  # type: ignore[arg-type]
    ) as trainer:
        losses = [result.loss for result in trainer.fit(data, epochs=2)]
        losses.append(trainer.evaluate(data).loss)
        return trainer.state.weights_sha256(), losses, trainer.plan


def test_it_is_told_of_read_and_taken_back_like_the_packages_own():
    before = list(STRATEGIES)
    with register_strategies(RECOMPUTE):
        assert list(STRATEGIES) == [*before, "own-recompute-cheap"]
        assert list_spellings()[-2:] == ("own-recompute-cheap", "own-recompute-cheap:K")
        assert parse_strategy("own-recompute-cheap:2") == StrategyName("own-recompute-cheap", 2)
        with pytest.raises(bt.ConfigError, match="own-recompute-cheap:K with a whole number"):
            parse_strategy("own-recompute-cheap:two")
        with pytest.raises(bt.ConfigError, match="Did you mean 'own-recompute-cheap:2'"):
            parse_strategy("recompute-cheep:2")
        with pytest.raises(bt.ConfigError, match="not taken"):
            bt.register_strategy(bt.StrategyKind("keep", RecomputeCheap.make))
    assert list(STRATEGIES) == before
    with pytest.raises(bt.ConfigError, match="one of auto"):
        parse_strategy("own-recompute-cheap")
    with pytest.raises(bt.ConfigError, match="an added one"):
        bt.unregister_strategy("keep")


def test_training_with_it_gives_the_bits_of_keep():
    weights, losses, _ = train("keep")
    with register_strategies(RECOMPUTE):
        for strategy, least in (("own-recompute-cheap", 3), ("own-recompute-cheap:1", 1)):
            own_weights, own_losses, plan = train(strategy)
            assert plan.strategy == strategy
            assert plan.recomputed_ops >= least
            assert (own_weights, own_losses) == (weights, losses)


def test_training_with_one_that_moves_gives_the_bits_of_keep(tmp_path):
    weights, losses, _ = train("keep")
    with register_strategies(MOVE):
        own_weights, own_losses, plan = train("own-move-activations", link="500 MB", spill_dir=str(tmp_path))
        assert plan.offloaded_bytes > 0 and plan.fetched_bytes == plan.offloaded_bytes
        assert (own_weights, own_losses) == (weights, losses)


@pytest.mark.parametrize("seed", range(4))
def test_its_plans_hold_byte_by_byte(seed):
    problem = random_problem(seed)
    linked_problem = with_link(problem, random_link(seed))
    with register_strategies(RECOMPUTE, MOVE):
        for case, name in ((problem, "own-recompute-cheap"), (linked_problem, "own-move-activations")):
            planner = StrategyPlanner(case, name)
            plan = planner.plan(planner.least_bytes)
            run_byte_by_byte(plan, case)
            with pytest.raises(bt.BudgetError, match="'stream' needs"):
                planner.plan(planner.least_bytes - 1)
        with pytest.raises(bt.ConfigError, match=r"'own-move-activations' can move .* Give --link OUT,IN"):
            StrategyPlanner(problem, "own-move-activations")


def test_the_command_line_takes_its_name(capsys):
    network = ["small_resnet", "--batch", "8", "--device", "null"]
    with register_strategies(RECOMPUTE):
        assert main(["plan", *network, "--memory", "64 MiB", "--strategy", "own-recompute-cheap", "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert row["strategy"] == "own-recompute-cheap"
        assert row["recomputed_ops"] > 3
        assert main(["curve", *network, "--strategies", "own-recompute-cheap:3", "--points", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["strategy"] == "own-recompute-cheap:3"
        assert main(["info", "--json"]) == 0
        assert "own-recompute-cheap:K" in json.loads(capsys.readouterr().out)["strategies"]
    assert main(["plan", *network, "--memory", "64 MiB", "--strategy", "own-recompute-cheap"]) != 0
    assert "expected one of auto, keep" in capsys.readouterr().err


def wrong_orders(problem):
    own = natural_order(problem.graph)
    turn = next(op.id for op in problem.graph.ops if op.phase is not Phase.FORWARD)
    activation = next(t.id for t in problem.graph.tensors if t.role is Role.ACTIVATION)
    return {
        "every operation to run, got 1 that do not": own[:-1],
        r"entry 0 of the order \(.*\): expected an operation before it that makes": own[::-1],
        rf"expected one of {len(own)} operations, got {len(own)}": [*own, len(own)],
        "expected one of .* operations, got -1": [*own, -1],
        "no repetition of an update, a loss or a gradient": [*own, own[-1]],
        "a transfer of tensor .* to wait for, got none": [*own, Move(Transfer.WAIT, activation)],
        "a copy of tensor .* outside the arena to fetch": [*own[:turn], Move(Transfer.FETCH, activation), *own[turn:]],
    }


class Given(OneOrder):
    """Proposes an order that a test has written."""

    def __init__(self, placer: Placer, order: Order) -> None:
        super().__init__(placer)
        self.given = order

    def order(self) -> Order:
        return self.given


def test_orders_that_are_no_plan_are_refused_by_the_rule_that_they_break():
    problem = random_problem(1)
    for message, order in wrong_orders(problem).items():
        kind = bt.StrategyKind("own-wrong", lambda placer, name, order=order: Given(placer, order), natural_first=False)
        with register_strategies(kind), pytest.raises(bt.PlanError, match=message):
            make_plan(problem, "own-wrong", PLENTY)


def test_one_that_exceeds_the_budget_is_refused():
    class Boasting(OneOrder):
        def order(self):
            return natural_order(self.placer.problem.graph)

        def smallest(self):
            placed = super().smallest()
            return replace(placed, end=placed.end // 2)

        def fastest(self, budget_bytes):
            return super().smallest()

    with register_strategies(
        bt.StrategyKind("own-boasting", lambda placer, name: Boasting(placer), natural_first=False)
    ):
        planner = StrategyPlanner(random_problem(1), "own-boasting")
        with pytest.raises(bt.PlanError, match=f"at most {planner.least_bytes} bytes"):
            planner.plan(planner.least_bytes)


def test_a_trainer_refuses_a_wrong_one_before_anything_runs():
    class Forgetful(OneOrder):
        def order(self):
            return natural_order(self.placer.problem.graph)[:-1]

    with (
        register_strategies(
            bt.StrategyKind("own-forgetful", lambda placer, name: Forgetful(placer), natural_first=False)
        ),
        pytest.raises(bt.PlanError, match="every operation to run"),
    ):
        train("own-forgetful")


def test_the_example_of_the_contributing_page_plans():
    page = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "register_strategy" in block]
    before = set(STRATEGIES)
    try:
        exec(compile(example, "CONTRIBUTING.md", "exec"), {})
        (name,) = set(STRATEGIES) - before
        planner = StrategyPlanner(random_problem(0), name)
        assert planner.plan(planner.least_bytes).strategy == name
    finally:
        for name in set(STRATEGIES) - before:
            bt.unregister_strategy(name)


@pytest.mark.parametrize("natural_first", [True, False])
def test_the_least_budget_of_one_that_leaves_operations_out_is_not_believed(natural_first):
    class Empty(OneOrder):
        def order(self):
            return []

    class Nothing(OneOrder):
        def smallest(self):
            return None

    for made, found in ((Empty, "every operation to run"), (Nothing, "a PlacedOrder")):
        kind = bt.StrategyKind("own-empty", lambda placer, name, made=made: made(placer), natural_first=natural_first)
        with register_strategies(kind), pytest.raises(bt.PlanError, match=found):
            _ = StrategyPlanner(random_problem(0), "own-empty").least_bytes


def test_a_name_that_nobody_has_read_is_read():
    for name in (StrategyName("nope"), StrategyName("chain", "3"), StrategyName("sequential", "x")):
        with pytest.raises(bt.ConfigError, match="strategy"):
            parse_strategy(name)
    assert str(parse_strategy(parse_strategy("sequential:4"))) == "sequential:4"
