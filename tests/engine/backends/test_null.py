"""The backend that computes nothing."""

import numpy as np

from bathyal.engine.backends.null import NullBackend
from bathyal.layers import SGD, BatchNorm2d, Conv2d, Flatten, Linear, Role, Sequential, forward_graph, training_graph
from bathyal.layers.graph import Tensor
from bathyal.memory.arena import Arena


def network():
    return forward_graph(Sequential(Conv2d(4, 3), BatchNorm2d(), Flatten(), Linear(3)), (2, 3, 5, 5))


def test_one_kernel_without_workspace_for_everything_and_no_launch_writes():
    graph, backend = training_graph(network(), SGD(momentum=0.9)), NullBackend()
    assert backend.name == "null" and backend.version() == "null"
    assert backend.lower(graph) is graph
    with Arena(4096) as arena:
        arena.poison(0xA5, 0, arena.nbytes)
        for op in graph.ops:
            (kernel,) = backend.kernels(graph, op)
            assert kernel.workspace_bytes == 0
            for repeat in (False, True):
                # Addresses may lie anywhere: networks larger than the arena are planned with it.
                backend.bind(graph, op, 0, repeat, arena)([10**15] * (len(op.inputs) + len(op.outputs) + 1))
        assert (arena.memory == 0xA5).all()


def test_encode_and_decode_give_zeros_of_the_right_size():
    backend, tensor = NullBackend(), Tensor(0, "t", (3, 4), "float64", Role.PARAMETER, 96)
    content = backend.encode(tensor, np.ones((3, 4)))
    assert content.dtype == np.uint8 and content.shape == (96,) and not content.any()
    values = backend.decode(tensor, content)
    assert values.shape == (3, 4) and values.dtype == np.float64 and not values.any()
