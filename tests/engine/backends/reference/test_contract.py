"""What every kernel of the numpy backend promises about memory and bits, over every kind of operation."""

import gc
import subprocess
import sys
import tracemalloc
import weakref

import numpy as np
import pytest

from bathyal.engine.backends.reference import ReferenceBackend
from bathyal.engine.backends.reference.registry import IMPLEMENTATIONS
from bathyal.layers import SGD, Conv2d, Flatten, ReLU, Role, Sequential, forward_graph, training_graph
from bathyal.layers.graph import Tensor, TensorSpec
from bathyal.layers.kinds import KINDS
from bathyal.memory.arena import Arena
from bathyal.memory.errors import DataError

ALLOCATION_BYTES = 16 * 1024
DTYPES = ("float32", "float64")
ONLY_LOWERED = {
    "convert",
    "add_relu",
    "batch_norm_relu",
    "batch_norm_relu_backward",
    "batch_norm_relu_inference",
}
"""Kinds that the lowering of another backend inserts."""


def equal_bits(ours, theirs):
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))


def exact_kernels(harness, graph, op):
    return [i for i, k in enumerate(harness.kernels(graph, op)) if k.name != "rows"]


def results(harness, graph, op, inputs, **options):
    result = harness.run(graph, op, inputs, **options)
    updated = [result.inputs[i] for i, t in enumerate(op.inputs) if t in op.updates]
    return [*result.outputs, *updated]


def test_every_kind_that_a_mode_can_emit_is_implemented_and_in_the_catalogue(catalogues):
    assert set(IMPLEMENTATIONS) == {name for name in KINDS if KINDS[name].needs_kernels} - ONLY_LOWERED
    assert not any(ReferenceBackend.computes(name) for name in ONLY_LOWERED)
    for dtype in DTYPES:
        assert {op.kind for _, op, _ in catalogues[dtype].entries} == set(IMPLEMENTATIONS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_agree_to_the_bit_whatever_the_memory_held_and_wherever_operands_lie(harness, catalogues, dtype):
    for graph, op, inputs in catalogues[dtype].entries:
        first = results(harness, graph, op, inputs)
        assert all(np.isfinite(a).all() for a in first), op.kind
        for kernel in exact_kernels(harness, graph, op):
            for poison, shift in ((0xFF, 0), (0x00, 1), (0x5A, 7)):
                again = results(harness, graph, op, inputs, kernel=kernel, poison=poison, shift=shift)
                assert equal_bits(first, again), (op.kind, kernel, poison, shift)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_kernel_allocates(harness, catalogues, dtype):
    def watch(launch, addresses):
        launch(addresses)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            launch(addresses)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()

    largest = 0
    gc.collect()
    for graph, op, inputs in catalogues[dtype].entries:
        largest = max(largest, *(a.nbytes for a in inputs))
        for alias in (None, *KINDS[op.kind].inplace):
            for kernel in range(len(harness.kernels(graph, op))):
                peaks = []
                harness.run(graph, op, inputs, kernel=kernel, alias=alias, watch=watch)
                assert peaks[0] <= ALLOCATION_BYTES, (op.kind, kernel, alias, peaks)
    assert largest > 10 * ALLOCATION_BYTES


def test_tracemalloc_would_see_an_array_of_numpy():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        array = np.ones(ALLOCATION_BYTES)
        assert tracemalloc.get_traced_memory()[0] - before >= array.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_may_lie_on_the_inputs_that_the_kind_declares(harness, catalogues, dtype):
    tried = set()
    for graph, op, inputs in catalogues[dtype].entries:
        apart = harness.run(graph, op, inputs).outputs
        for alias in KINDS[op.kind].inplace:
            for kernel in range(len(harness.kernels(graph, op))):
                together = harness.run(graph, op, inputs, kernel=kernel, alias=alias).outputs
                assert equal_bits(apart, together), (op.kind, alias)
            tried.add((op.kind, alias))
    assert tried == {(kind, alias) for kind in IMPLEMENTATIONS for alias in KINDS[kind].inplace}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_repeated_run_reads_what_is_kept_and_gives_the_same_bits(harness, catalogues, dtype):
    kinds = set()
    for graph, op, inputs in catalogues[dtype].entries:
        if not KINDS[op.kind].kept:
            continue
        kinds.add(op.kind)
        first = harness.run(graph, op, inputs).outputs
        kept = [first[i] for i in KINDS[op.kind].kept]
        for alias in (None, *KINDS[op.kind].inplace):
            again = harness.run(graph, op, inputs, repeat=True, kept=kept, alias=alias).outputs
            assert equal_bits(first, again), (op.kind, alias)
        other = harness.run(graph, op, inputs, repeat=True, kept=[k + 1 for k in kept]).outputs
        assert equal_bits(other[1:], [k + 1 for k in kept])
        assert not equal_bits(other[:1], first[:1])
    assert kinds == {"batch_norm_training"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_scratch_arrays_begin_at_multiples_of_64_and_do_not_overlap(harness, catalogues, dtype):
    for graph, op, _ in catalogues[dtype].entries:
        for variant in harness.backend._of(graph, op, graph.signature(op)):
            ends = [o + s.nbytes for o, s in zip(variant.offsets, variant.scratch, strict=True)]
            assert all(offset % 64 == 0 for offset in variant.offsets)
            assert all(end <= offset for end, offset in zip(ends, variant.offsets[1:], strict=False))
            assert variant.workspace_bytes == max(ends, default=0)


def test_names_of_kernels_are_unique_and_workspaces_of_the_first_bounded(harness, catalogues):
    for graph, op, _ in catalogues["float32"].entries:
        kernels = harness.kernels(graph, op)
        assert len({k.name for k in kernels}) == len(kernels)
        if op.kind == "sgd_update":
            assert kernels[0].workspace_bytes <= 256 * 1024


def test_launches_are_shared_and_hold_no_graph():
    layers = [layer for _ in range(20) for layer in (Conv2d(4, 3, padding=1, bias=False), ReLU())]
    graph = forward_graph(Sequential(*layers), (2, 4, 6, 6))
    backend = ReferenceBackend()
    with Arena(2**20) as arena, Arena(2**20) as other:
        launches = [backend.bind(graph, op, 0, False, arena) for op in graph.ops]
        assert len({id(launch) for launch in launches}) == 2
        assert backend.bind(graph, graph.ops[0], 0, True, arena) is launches[0]
        assert backend.bind(graph, graph.ops[0], 1, False, arena) is not launches[0]
        assert backend.bind(graph, graph.ops[0], 0, False, other) is not launches[0]
        reachable, todo = set(), list(launches)
        while todo:
            found = todo.pop()
            if id(found) in reachable or isinstance(found, type | type(np)):
                continue
            reachable.add(id(found))
            todo.extend(r for r in gc.get_referents(found) if not isinstance(r, dict) or "__name__" not in r)
        assert id(graph) not in reachable and id(graph.tensors) not in reachable
        gone = weakref.ref(launches[0])
        del launches, todo, found
        gc.collect()
        assert gone() is None


def test_lowering_changes_nothing():
    graph = training_graph(forward_graph(Sequential(Conv2d(4, 3), Flatten()), (2, 3, 5, 5)), SGD())
    assert ReferenceBackend().lower(graph) is graph
    assert all(t.nbytes == t.spec.nbytes and not t.layout for t in graph.tensors)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_decode_undoes_encode(dtype):
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((3, 4, 2)) * 50).astype(dtype)
    tensor = Tensor(0, "t", (3, 4, 2), dtype, Role.ACTIVATION, values.nbytes)
    backend = ReferenceBackend()
    for given in (values, np.asfortranarray(values), np.repeat(values, 2, axis=2)[:, :, ::2]):
        content = backend.encode(tensor, given)
        assert content.dtype == np.uint8 and content.shape == (values.nbytes,)
        back = backend.decode(tensor, content)
        np.testing.assert_array_equal(back, values)
        content = content.copy()
        content[:] = 0
        np.testing.assert_array_equal(back, values)


def test_encode_and_decode_refuse_what_does_not_fit():
    backend, tensor = ReferenceBackend(), Tensor(0, "t", (3, 4), "float32", Role.ACTIVATION, 48)
    with pytest.raises(DataError, match=r"\(4, 3\)"):
        backend.encode(tensor, np.zeros((4, 3), np.float32))
    with pytest.raises(DataError, match="complex"):
        backend.encode(tensor, np.zeros((3, 4), np.complex64))
    np.testing.assert_array_equal(backend.encode(tensor, np.ones((3, 4))).view(np.float32), np.ones(12))
    with pytest.raises(DataError, match="48 bytes"):
        backend.decode(tensor, np.zeros(47, np.uint8))


def test_version_names_what_the_bits_depend_on():
    version = ReferenceBackend().version()
    assert f"numpy {np.__version__}" in version
    assert "threads" in version
    assert version == ReferenceBackend().version()


def test_version_does_not_depend_on_what_else_is_imported():
    """A library that brings another BLAS: plans and checkpoints must not be refused for it."""
    code = (
        "from bathyal.engine.backends.reference import ReferenceBackend; before = ReferenceBackend().version();"
        "import sklearn.datasets; assert ReferenceBackend().version() == before, ReferenceBackend().version()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_network_that_diverges_warns_of_nothing(harness):
    x = np.full((2, 3, 4, 4), np.inf, np.float32)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    y, *_ = harness.compute(
        "batch_norm_inference", [x, ones, zeros, zeros, ones], {"eps": 0.0}, [TensorSpec(x.shape, "float32")]
    )
    assert np.isinf(y).all()
    assert np.isnan(harness.compute("add", [x, -x])[0]).all()
