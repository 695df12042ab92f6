"""The operations that run beside transfers while these are timed."""

import numpy as np
import pytest

import bathyal as bt
from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.planning.alone import make_problem_without_memory
from bathyal.engine.planning.background_load import BackgroundLoad
from bathyal.engine.settings import Settings
from bathyal.layers.graph import Role
from bathyal.memory.arena import Arena
from bathyal.models.registry import build_model

MIB = 2**20


@pytest.fixture(scope="module")
def load():
    settings = Settings(input_shape=(2, 1, 28, 28), optimizer=bt.SGD(0.1), device="reference", costs="analytic")
    problem, _ = make_problem_without_memory(build_model("small_resnet"), settings)
    return BackgroundLoad(problem.graph, problem.costs, ReferenceBackend(), "here")


def operands(graph, op):
    return [graph.tensors[t] for t in (*op.inputs, *op.outputs)]


def test_each_signature_runs_in_turn_for_the_seconds_of_its_cost(load):
    floating = {
        load.graph.signature(op): load.costs.kernels[op.id][0].seconds
        for op in reversed(load.graph.ops)
        if all(
            tensor.dtype.startswith("float") and tensor.role is not Role.SCALARS for tensor in operands(load.graph, op)
        )
    }
    with Arena(16 * MIB) as arena:
        arena.memory[:] = 255  # NaN
        work = load.start(arena, MIB)
        turn = [work() for _ in floating]
        assert sorted(turn) == sorted(floating.values())
        assert [work() for _ in floating] == turn
        assert (arena.memory[:MIB] == 255).all()
        assert not np.isnan(arena.memory[MIB : MIB + 4096].view(np.float32)).all()


def test_what_does_not_fit_is_left_out(load):
    with Arena(64 * 2**10) as arena:
        work = load.start(arena, 4096)
        assert work is not None
        assert work() >= 0
    with Arena(8192) as arena:
        assert load.start(arena, 8192) is None
