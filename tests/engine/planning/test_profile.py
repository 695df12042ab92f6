"""How kernels are timed: where operands lie, what does not fit, what is kept between runs."""

import json

import pytest

from bathyal.engine.backends.null import NullBackend
from bathyal.engine.planning.lowering import lower
from bathyal.engine.planning.profile import REPETITIONS, estimate, measure
from bathyal.layers import SGD, Conv2d, Flatten, Linear, ReLU, Sequential, forward_graph, training_graph
from bathyal.memory.arena import Arena
from bathyal.memory.devices.host import HostDevice
from bathyal.memory.errors import BudgetError
from bathyal.scheduler.plan.steps import align_address

NETWORK = Sequential(Conv2d(4, 3), ReLU(), Conv2d(2, 3), Flatten(), Linear(3))


class Recorder(NullBackend):
    """Notes the addresses of every launch."""

    def __init__(self):
        self.launched, self.order = {}, []

    def bind(self, graph, op, kernel, repeat, arena):
        def launch(addresses):
            self.launched.setdefault(op.kind, []).append(tuple(addresses))
            self.order.append(graph.signature(op))

        return launch


def timed(nbytes, folder=None, backend=None):
    backend = backend or Recorder()
    graph = lower(training_graph(forward_graph(NETWORK, (2, 3, 8, 8)), SGD(0.1)), backend)
    with HostDevice(Arena(nbytes)) as device:
        costs = measure(graph, backend, device, threads=1, folder=folder)
        return graph, backend, costs, device.arena.committed_bytes


def nbytes_of(graph, op):
    return sum(align_address(graph.tensors[t].nbytes) for t in (*op.inputs, *op.outputs))


def test_kernels_run_in_turn_so_that_each_follows_another():
    graph, backend, costs, committed = timed(2**20)
    first = len(backend.order) // (REPETITIONS + 1)
    assert backend.order == backend.order[:first] * (REPETITIONS + 1)
    assert len(set(backend.order)) > 10
    ends = {op.kind: nbytes_of(graph, op) for op in graph.ops}
    assert max(max(addresses) for launches in backend.launched.values() for addresses in launches) <= max(ends.values())
    assert max(ends.values()) <= committed
    assert all(kernel.seconds > 0 for row in costs.kernels for kernel in row)


def test_an_output_lies_where_an_input_dies():
    _, backend, _, _ = timed(2**20)
    x, y, _ = backend.launched["relu"][0]
    assert x == y
    y, dy, dx, _ = backend.launched["relu_backward"][0]
    assert dx == dy != y
    x, weight, bias, y, _ = backend.launched["conv2d"][0]
    assert len({x, weight, bias, y}) == 4


def test_what_does_not_fit_is_estimated():
    graph, backend, costs, _ = timed(2**12)
    expected = estimate(graph, backend)
    for op in graph.ops:
        if nbytes_of(graph, op) > 2**13:  # in place it may take half
            assert op.kind not in backend.launched
            assert costs.kernels[op.id] == expected.kernels[op.id]
    assert backend.launched


def test_memory_that_is_not_there_is_refused_and_not_touched(monkeypatch):
    monkeypatch.setattr("bathyal.memory.arena.free_memory", lambda: 0)
    monkeypatch.setattr(Arena.commit, "__defaults__", (None, lambda: 0))
    with pytest.raises(BudgetError):
        timed(2**20)


def test_seconds_are_kept_and_a_damaged_file_is_measured_again(tmp_path):
    first = timed(2**20, tmp_path)
    (path,) = tmp_path.iterdir()
    again = timed(2**20, tmp_path)
    assert not again[1].launched
    assert again[2] == first[2]
    for text in ("", "{}", '{"format": 0, "seconds": {}}', json.dumps({"format": 3, "seconds": {"a": "b"}})):
        path.write_text(text)
        assert timed(2**20, tmp_path)[1].launched
        assert json.loads(path.read_text())["seconds"]
