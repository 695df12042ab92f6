"""The CUDA backend's own kernels on images in bfloat16, run on the CPU, against the numpy backend.

A kernel is to give what the float32 one gives of the same numbers, rounded once. Where the float32 kernels have the
bits of the numpy backend, so must these have; where those are an ulp of float32 off, a neighbour is right as well.
"""

import itertools

import numpy as np
import pytest

from bathyal.engine.backends.cuda.kernel_programs import PROGRAMS, bias_gradient
from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST, PLAIN, OpRequest
from bathyal.layers.graph import TensorSpec
from bathyal.layers.pooling import pooled_size
from bathyal.memory.errors import DeviceError
from tests.support.bfloat16 import is_nan, nearly_same, round_to_nearest, same_numbers, steps, widen
from tests.support.cuda_programs import compute, operand, request_for, run, spec

SHAPES = [
    (2, 8, 3, 5),
    (1, 3, 7, 7),
    (3, 1, 5, 4),
    (2, 6, 1, 1),
    (1, 1, 1, 1),
    (2, 12, 3, 3),
    (5, 33, 2, 9),
    (2, 64, 9, 8),
]
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -90.0, 90.0], np.float32)
EVERY = np.arange(2**16, dtype=np.uint16)
KEY = np.array([11, 3])


def normal(*shape, seed=0):
    return round_to_nearest(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def special(*shape, seed=0):
    """Normal numbers among which lie all the unusual ones, as far as there is room."""
    values = normal(*shape, seed=seed)
    places = np.random.default_rng(seed + 1).permutation(values.size)[: SPECIAL.size]
    values.reshape(-1)[places] = round_to_nearest(SPECIAL[: places.size])
    return values


def exact(harness, kind, inputs, attrs=None, outputs=None):
    """What the numpy backend makes of the numbers in float32, with floats rounded."""
    wide = [widen(a) if a.dtype == np.uint16 else a for a in inputs]
    specs = None if outputs is None else [TensorSpec(o.shape, o.dtype.replace("bfloat16", "float32")) for o in outputs]
    with np.errstate(all="ignore"):
        made = harness.compute(kind, wide, attrs, specs)
    return [round_to_nearest(a) if a.dtype == np.float32 else a for a in made]


def image(shape, dtype="bfloat16"):
    return TensorSpec(shape, dtype)


class TestCasts:
    def test_every_bfloat16_becomes_its_float32(self):
        (found,) = compute("convert", [EVERY], {}, [image(EVERY.shape, "float32")]).outputs
        np.testing.assert_array_equal(found.view(np.uint32), EVERY.astype(np.uint32) << 16)

    def test_floats_become_the_nearest_and_of_two_the_even(self):
        uppers = EVERY.astype(np.uint32)[:, None] << 16
        ties = uppers | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        others = np.random.default_rng(0).integers(0, 2**32, 100_003, np.uint32)
        x = np.concatenate([ties.reshape(-1), others]).view(np.float32)
        (found,) = compute("convert", [x], {}, [image(x.shape)]).outputs
        same_numbers(found, round_to_nearest(x))
        assert (found[is_nan(found)] & 0x40).all()

    @pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 9, 64, 1001])
    def test_vectors_of_any_length(self, count):
        narrow = special(count)
        x = widen(narrow)
        same_numbers(compute("convert", [x], {}, [image((count,))]).outputs[0], narrow)
        np.testing.assert_array_equal(compute("convert", [narrow], {}, [spec(x)]).outputs[0], x)

    @pytest.mark.parametrize("shape", [*SHAPES, (2, 70, 9, 11), (1, 32, 8, 4), (3, 9, 33, 1), (2, 40, 2, 4)], ids=str)
    def test_with_changes_of_layout(self, shape):
        uneven = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        narrow, layouts = special(shape[0], *shape[1:]), (PLAIN, CHANNELS_LAST)
        wide = widen(narrow)
        for pair in itertools.product(layouts, layouts):
            made = compute("convert", [uneven], {}, [image(shape)], layouts=pair).outputs[0]
            same_numbers(made, round_to_nearest(uneven))
            made = compute("convert", [narrow], {}, [image(shape, "float32")], layouts=pair).outputs[0]
            np.testing.assert_array_equal(made.view(np.uint32), wide.view(np.uint32))
            made = compute("convert", [narrow], {}, [image(shape)], layouts=pair).outputs[0]
            np.testing.assert_array_equal(made, narrow)

    @pytest.mark.parametrize("shape", [*SHAPES, (2, 70, 9, 11), (3, 9, 33, 1), (2, 40, 2, 4)], ids=str)
    def test_between_images_and_rows(self, shape):
        narrow = special(*shape)
        rows = widen(narrow).reshape(shape[0], -1)
        uneven = np.random.default_rng(1).standard_normal(rows.shape).astype(np.float32)
        for layout in (PLAIN, CHANNELS_LAST):
            found = compute("flatten", [narrow], {}, [spec(rows)], layouts=[layout, PLAIN]).outputs[0]
            np.testing.assert_array_equal(found.view(np.uint32), rows.view(np.uint32))
            found = compute("reshape", [uneven], {}, [image(shape)], layouts=[PLAIN, layout]).outputs[0]
            same_numbers(found, round_to_nearest(uneven).reshape(shape))

    def test_what_moves_nothing_keeps_every_bit_and_may_run_in_place(self):
        x = EVERY.reshape(4, 2**14, 1, 1)
        for alias in (None, (0, 0)):
            np.testing.assert_array_equal(compute("convert", [x], {}, [spec(x)], alias=alias).outputs[0], x)


class TestElementwise:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize(
        ("kind", "check"),
        [
            ("relu", same_numbers),
            ("relu_backward", same_numbers),
            ("sigmoid", nearly_same),
            ("sigmoid_backward", same_numbers),
            ("tanh", nearly_same),
            ("tanh_backward", same_numbers),
            ("add", same_numbers),
        ],
    )
    def test_one_rounding_of_what_the_reference_gives(self, harness, kind, check, shape):
        inputs = [special(*shape, seed=3 * s) for s in range(2 if kind == "add" or "backward" in kind else 1)]
        (right,) = exact(harness, kind, inputs, {}, [image(shape)])
        for alias in (None, *((0, i) for i in range(len(inputs)))):
            check(compute(kind, inputs, {}, [image(shape)], alias=alias).outputs[0], right)

    @pytest.mark.parametrize("kind", ["sigmoid", "tanh", "relu"])
    def test_every_number(self, harness, kind):
        x = EVERY.reshape(2, 8, 64, 64)
        check = same_numbers if kind == "relu" else nearly_same
        check(compute(kind, [x]).outputs[0], exact(harness, kind, [x])[0])

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_sum_and_relu_in_one(self, harness, shape):
        inputs = [special(*shape), special(*shape, seed=3)]
        with np.errstate(all="ignore"):
            right = round_to_nearest(harness.compute("relu", harness.compute("add", [widen(a) for a in inputs]))[0])
        for alias in (None, (0, 1), (0, 0)):
            found = compute("add_relu", inputs, {}, [image(shape)], alias=alias).outputs[0]
            assert not steps(found, right).any()

    @pytest.mark.parametrize("shape", [*SHAPES, (2, 5, 8, 4), (3, 4, 1, 7), (1, 7, 13, 13)], ids=str)
    @pytest.mark.parametrize(("p", "stream"), [(0.5, 0), (0.3, 2**40)])
    def test_dropout(self, harness, shape, p, stream):
        inputs, attrs = [special(*shape), KEY], {"p": p, "stream": stream}
        (right,) = exact(harness, "dropout_training", inputs, attrs, [image(shape)])
        for kind, alias in itertools.product(("dropout_training", "dropout_backward"), (None, (0, 0))):
            same_numbers(compute(kind, inputs, attrs, [image(shape)], alias=alias).outputs[0], right)


@pytest.mark.parametrize("size", [(1, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("channels", [(4, 8), (3, 5), (1, 1, 1), (8, 4, 4), (16, 8, 40)], ids=str)
def test_concat_and_split_keep_every_bit(channels, size):
    parts = [np.random.default_rng(c).integers(0, 2**16, (3, c, *size), np.uint16) for c in channels]
    (whole,) = compute("concat", parts).outputs
    np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))
    for found, part in zip(compute("split", [whole], {}, [spec(p) for p in parts]).outputs, parts, strict=True):
        np.testing.assert_array_equal(found, part)


def window(kernel, stride, padding=(0, 0), ceil_mode=False):
    return {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}


POOLS = {
    "2x2": ((3, 4, 8, 6), window((2, 2), (2, 2))),
    "stem, odd channels": ((2, 3, 15, 14), window((3, 3), (2, 2), (1, 1))),
    "stem, ceil": ((2, 8, 16, 14), window((3, 3), (2, 2), (1, 1), True)),
    "overlapping": ((2, 16, 7, 6), window((3, 3), (1, 1), (1, 1))),
    "rectangular": ((2, 12, 9, 12), window((2, 5), (3, 1), (1, 2))),
    "ceil hangs over": ((2, 2, 5, 5), window((2, 2), (2, 2), (0, 0), True)),
    "one pixel": ((1, 1, 1, 1), window((1, 1), (1, 1))),
    **{f"large, {c} channels": ((1, c, 20, 18), window((17, 17), (2, 2), (3, 3))) for c in (1, 4, 8)},
}


def tied(shape, seed):
    """Few distinct values, so that windows have ties, among them zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(seed)
    made = rng.integers(-3, 4, shape).astype(np.float32)
    for value, share in ((-0.0, 0.1), (np.inf, 0.03), (-np.inf, 0.1), (np.nan, 0.05)):
        made[rng.random(shape) < share] = value
    return round_to_nearest(made)


def pooled(shape, options):
    sizes = zip(shape[2:], options["kernel"], options["stride"], options["padding"], strict=True)
    return (*shape[:2], *(pooled_size(*size, options["ceil_mode"]) for size in sizes))


class TestPooling:
    @pytest.mark.parametrize("name", POOLS)
    def test_max(self, harness, name):
        shape, options = POOLS[name]
        x = tied(shape, 0)
        found, right = compute("max_pool", [x], options).outputs, exact(harness, "max_pool", [x], options)
        same_numbers(found[0], right[0])
        np.testing.assert_array_equal(found[1], right[1])
        inputs = [special(*found[0].shape), found[1]]
        (gradient,) = exact(harness, "max_pool_backward", inputs, options, [image(shape)])
        same_numbers(compute("max_pool_backward", inputs, options, [image(shape)]).outputs[0], gradient)

    @pytest.mark.parametrize("counted", [False, True])
    @pytest.mark.parametrize("name", POOLS)
    def test_average(self, harness, name, counted):
        shape, options = POOLS[name]
        options = {**options, "count_include_pad": counted}
        x, dy = special(*shape), special(*pooled(shape, options))
        same_numbers(compute("avg_pool", [x], options).outputs[0], exact(harness, "avg_pool", [x], options)[0])
        (gradient,) = exact(harness, "avg_pool_backward", [dy], options, [image(shape)])
        same_numbers(compute("avg_pool_backward", [dy], options, [image(shape)]).outputs[0], gradient)

    @pytest.mark.parametrize("shape", [*SHAPES, (2, 520, 7, 7), (1, 7, 100, 20)], ids=str)
    def test_global_average(self, harness, shape):
        x, dy = special(*shape), special(*shape[:2], 1, 1)
        nearly_same(compute("global_avg_pool", [x]).outputs[0], exact(harness, "global_avg_pool", [x])[0])
        (gradient,) = exact(harness, "global_avg_pool_backward", [dy], {}, [image(shape)])
        same_numbers(compute("global_avg_pool_backward", [dy], {}, [image(shape)]).outputs[0], gradient)


@pytest.mark.parametrize("shape", [*SHAPES, (1, 600, 2, 1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
        {"size": 4, "alpha": 0.3, "beta": 0.6, "k": 2.0},
        {"size": 300, "alpha": 2.0, "beta": 0.75, "k": 1.0},
    ],
    ids=lambda o: f"size {o['size']}",
)
def test_response_normalization(harness, shape, options):
    x, dy = normal(*shape), normal(*shape, seed=1)
    nearly_same(compute("lrn", [x], options).outputs[0], exact(harness, "lrn", [x], options)[0])
    (gradient,) = exact(harness, "lrn_backward", [x, dy], options, [image(shape)])
    nearly_same(compute("lrn_backward", [x, dy], options, [image(shape)]).outputs[0], gradient)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalization_by_running_statistics(harness, shape):
    rng = np.random.default_rng(1)
    vectors = [rng.standard_normal(shape[1]).astype(np.float32) for _ in range(3)]
    vectors.append(rng.uniform(0, 3, shape[1]).astype(np.float32))
    inputs, attrs = [special(*shape), *vectors], {"eps": 1e-3, "momentum": 0.1}
    (right,) = exact(harness, "batch_norm_inference", inputs, attrs, [image(shape)])
    positive = round_to_nearest(np.maximum(widen(right), 0))
    for alias in (None, (0, 0)):
        same_numbers(compute("batch_norm_inference", inputs, attrs, [image(shape)], alias=alias).outputs[0], right)
        found = compute("batch_norm_relu_inference", inputs, attrs, [image(shape)], alias=alias).outputs[0]
        assert not steps(found, positive).any()


@pytest.mark.parametrize("shape", [*SHAPES, (2, 40, 80, 30)], ids=str)
def test_gradient_of_a_bias_is_in_float32(shape):
    dy = round_to_nearest(widen(normal(*shape)) + np.float32(1))
    request = OpRequest("bias_gradient", (operand(spec(dy)),), (operand(image((shape[1],), "float32")),), {})
    found = run(bias_gradient(shape, "bfloat16"), request, [dy]).outputs[0]
    # Both sums are exact far below the rounding to float32, so that they differ by that alone, and hardly ever.
    np.testing.assert_allclose(found, widen(dy).sum((0, 2, 3), np.float64).astype(np.float32), 1.3e-7)


class TestRefused:
    @pytest.mark.parametrize("kind", ["add", "relu_backward", "add_relu", "concat", "lrn_backward"])
    def test_images_of_two_types(self, kind):
        narrow = normal(2, 4, 3, 3)
        inputs = [narrow, widen(narrow)]
        outputs = [image((2, 8, 3, 3) if kind == "concat" else narrow.shape)]
        for order in (inputs, inputs[::-1]):
            with pytest.raises(DeviceError, match="tensors of one element type"):
                PROGRAMS[kind](request_for(kind, order, {"size": 3, "alpha": 1.0}, outputs))

    @pytest.mark.parametrize("kind", ["relu", "max_pool", "avg_pool", "global_avg_pool"])
    def test_an_output_of_another_type(self, kind):
        x, options = normal(2, 4, 3, 3), {**window((3, 3), (1, 1)), "count_include_pad": True}
        shape = x.shape if kind == "relu" else (2, 4, 1, 1)
        outputs = [image(shape, "float32"), *([image(shape, "uint8")] if kind == "max_pool" else [])]
        with pytest.raises(DeviceError, match="tensors of one element type"):
            PROGRAMS[kind](request_for(kind, [x], options, outputs))

    def test_types_that_are_neither(self):
        x = np.zeros((2, 4, 3, 3), np.float16)
        for kind in ("relu", "convert", "global_avg_pool"):
            with pytest.raises(DeviceError, match="float32 or bfloat16"):
                PROGRAMS[kind](request_for(kind, [x], {}, [spec(x)]))
        with pytest.raises(DeviceError, match="float32 or bfloat16"):
            bias_gradient((2, 4, 3, 3), "float64")

    def test_statistics_weights_and_logits_in_bfloat16(self):
        x, vector = normal(2, 4, 3, 3), normal(4)
        with pytest.raises(DeviceError, match="float32 tensors"):
            PROGRAMS["batch_norm_inference"](request_for("batch_norm_inference", [x, *[vector] * 4], {}, [spec(x)]))
        with pytest.raises(DeviceError, match="float32 tensors"):
            PROGRAMS["batch_norm_update"](request_for("batch_norm_update", [vector] * 4, {}, []))
        with pytest.raises(DeviceError, match="float32 tensors"):
            PROGRAMS["sgd_update"](request_for("sgd_update", [x, x, np.zeros(2)], {}, []))
        with pytest.raises(DeviceError, match="float32 tensors"):
            logits = normal(2, 4)
            PROGRAMS["softmax_cross_entropy"](request_for("softmax_cross_entropy", [logits, np.zeros(2, np.int64)]))
