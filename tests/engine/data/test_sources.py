import builtins
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bathyal.engine.data.checks import as_batch, as_images
from bathyal.engine.data.random_streams import Use, draw_order, make_random_stream
from bathyal.engine.data.sources import (
    ArrayDataset,
    FromIterable,
    Source,
    find_batch_sizes,
)
from bathyal.engine.data.synthetic import Synthetic, digits
from bathyal.layers import Target
from bathyal.memory.errors import ConfigError, DataError, DeviceError

SHAPE = (4, 3, 5, 6)


def numbered(count):
    """Images that tell their own number, and labels equal to it."""
    return np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, 1, 2, 2)), np.arange(count)


def seen(batches):
    return np.concatenate([labels for _, labels in batches])


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_sources_are_told_from_other_iterables():
    pairs = [numbered(2)]
    synthetic = Synthetic((1, 2, 2), 2, 2, 2)
    assert all(isinstance(source, Source) for source in (ArrayDataset(*numbered(2), 1), FromIterable(pairs), synthetic))
    assert not isinstance(pairs, Source) and not isinstance(iter(pairs), Source)


class TestArrayDataset:
    @given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 5))
    def test_an_epoch_shows_every_sample_once(self, count, batch, shuffle, seed, epoch):
        data = ArrayDataset(*numbered(count), batch, shuffle=shuffle, seed=seed)
        batches = list(data.epoch(epoch))
        assert len(batches) == data.batches_per_epoch == -(-count // batch)
        assert all(len(labels) == batch for _, labels in batches[:-1])
        assert sorted(seen(batches)) == list(range(count))
        for images, labels in batches:
            np.testing.assert_array_equal(images[:, 0, 0, 0], labels)

    @given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 3), st.data())
    def test_resuming_gives_the_rest_of_the_epoch(self, count, batch, epoch, data):
        source = ArrayDataset(*numbered(count), batch, seed=3)
        first = data.draw(st.integers(0, source.batches_per_epoch))
        same(source.epoch(epoch, first), islice(source.epoch(epoch), first, None))

    def test_epochs_and_seeds_differ_and_repeat(self):
        source = ArrayDataset(*numbered(50), 10, seed=1)
        orders = [tuple(seen(source.epoch(number))) for number in (0, 1, 0)]
        other = tuple(seen(ArrayDataset(*numbered(50), 10, seed=2).epoch(0)))
        assert orders[0] == orders[2]
        assert len({orders[0], orders[1], other}) == 3

    def test_a_later_epoch_does_not_depend_on_earlier_ones(self):
        used = ArrayDataset(*numbered(20), 6)
        list(used.epoch(0))
        same(used.epoch(7), ArrayDataset(*numbered(20), 6).epoch(7))

    def test_the_order_is_pinned(self):
        # Checkpoints store a position in this order: it may never change.
        words = make_random_stream(5, Use.SHUFFLE, 3).random_raw(8)
        assert draw_order(8, 5, Use.SHUFFLE, 3).tolist() == sorted(range(8), key=lambda index: words[index])
        assert draw_order(8, 5, Use.SHUFFLE, 3).tolist() == [4, 6, 7, 5, 1, 0, 2, 3]

    def test_without_shuffle_the_order_is_that_of_the_arrays(self):
        assert seen(ArrayDataset(*numbered(7), 3, shuffle=False).epoch(4)).tolist() == list(range(7))

    def test_drop_last_leaves_the_short_batch_out(self):
        source = ArrayDataset(*numbered(7), 3, drop_last=True)
        assert [len(labels) for _, labels in source.epoch(0)] == [3, 3]
        assert source.batches_per_epoch == 2

    @pytest.mark.parametrize(
        ("images", "labels", "batch", "drop_last", "message"),
        [
            (np.zeros((3, 1)), np.zeros(2), 1, False, "a label for each of 3 images, got 2"),
            (np.zeros((0, 1)), np.zeros(0), 1, False, "at least one batch of 1, got 0 samples"),
            (np.zeros((3, 1)), np.zeros(3), 4, True, "at least one batch of 4, got 3 samples. Lower batch"),
            ([[0]], np.zeros(1), 1, False, "images: expected a numpy array, got a list"),
            (np.ma.zeros((3, 1)), np.zeros(3), 1, False, "without a mask"),
            (np.zeros((3, 1)), np.array(3), 1, False, "labels: expected an array whose first axis"),
        ],
    )
    def test_bad_arrays_are_refused(self, images, labels, batch, drop_last, message):
        with pytest.raises(DataError, match=message):
            ArrayDataset(images, labels, batch, drop_last=drop_last)

    @pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": True}, {"batch": 2.0}, {"seed": -1}, {"seed": 2**64}])
    def test_bad_numbers_are_refused(self, wrong):
        with pytest.raises(ConfigError, match=f"ArrayDataset: expected {next(iter(wrong))} as a whole number"):
            ArrayDataset(*numbered(5), **{"batch": 2, **wrong})

    def test_a_position_beyond_the_epoch_is_refused_at_once(self):
        source = ArrayDataset(*numbered(5), 2)
        assert list(source.epoch(0, 3)) == []
        with pytest.raises(DataError, match="first_batch of at most 3"):
            source.epoch(0, 4)
        with pytest.raises(ConfigError, match="epoch"):
            source.epoch(-1)


class TestFromIterable:
    def test_a_list_is_read_again_each_epoch(self):
        pairs = [numbered(2), numbered(3)]
        source = FromIterable(pairs)
        assert source.batches_per_epoch == 2
        same(source.epoch(0), pairs)
        same(source.epoch(1), pairs)
        same(source.epoch(1, 1), pairs[1:])
        assert list(source.epoch(1, 2)) == []

    def test_a_generator_serves_one_epoch_wherever_it_begins(self):
        source = FromIterable(numbered(count) for count in (1, 2, 3))
        assert source.batches_per_epoch is None
        assert [len(labels) for _, labels in source.epoch(5, 1)] == [2, 3]
        with pytest.raises(DataError, match=r"epoch 6: expected an iterable that can be read again.*Pass a list"):
            source.epoch(6)

    def test_a_callable_is_called_each_epoch(self):
        source = FromIterable(lambda: (numbered(count) for count in (1, 2)))
        for number in range(3):
            assert [len(labels) for _, labels in source.epoch(number)] == [1, 2]

    def test_a_callable_that_returns_a_used_generator_is_noticed(self):
        used = iter([numbered(1)])
        source = FromIterable(lambda: used)
        assert len(list(source.epoch(0))) == 1
        with pytest.raises(DataError, match=r"at least one batch.*fresh iterator"):
            list(source.epoch(1))

    @pytest.mark.parametrize(
        ("pairs", "message"),
        [
            (numbered(2), "batch 0: expected a pair .*got a ndarray. Give an iterable of pairs, or ArrayDataset"),
            ([(1, 2, 3)], "batch 0: expected a pair .*got 3 values"),
            ([numbered(1), {"images": 0}], "batch 1: expected a pair .*got a dict"),
            ([], "at least one batch"),
        ],
    )
    def test_what_is_no_pair_is_named(self, pairs, message):
        with pytest.raises(DataError, match=message):
            list(FromIterable(pairs).epoch(0))

    def test_an_end_before_the_position_to_resume_is_an_error(self):
        with pytest.raises(DataError, match="at least 3 batches, to resume after them, got 2"):
            list(FromIterable([numbered(1)] * 2).epoch(0, 3))

    @pytest.mark.parametrize("wrong", [3, None])
    def test_neither_iterable_nor_callable(self, wrong):
        with pytest.raises(DataError, match="data: expected an iterable"):
            FromIterable(wrong)
        with pytest.raises(DataError, match="a callable that returns an iterable"):
            FromIterable(lambda: wrong).epoch(0)


class TestSynthetic:
    def test_shapes_and_repetition(self):
        source = Synthetic((3, 4, 5), classes=7, batch=6, batches=4, seed=9)
        batches = list(source.epoch(2))
        assert len(batches) == source.batches_per_epoch == 4
        for images, labels in batches:
            assert images.shape == (6, 3, 4, 5) and images.dtype == np.float32
            assert labels.shape == (6,) and labels.dtype == np.int64 and set(labels) <= set(range(7))
        same(source.epoch(2, 1), batches[1:])
        same(Synthetic((3, 4, 5), 7, 6, 4, seed=9).epoch(2), batches)

    def test_batches_epochs_and_seeds_differ(self):
        def first(seed, epoch, position):
            images, _ = next(Synthetic((1, 2, 2), 2, 3, 5, seed=seed).epoch(epoch, position))
            return images.tobytes()

        assert len({first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1)}) == 4

    def test_the_class_can_be_learned(self):
        source = Synthetic((3, 8, 8), classes=4, batch=400, batches=2, seed=0)
        (images, labels), (others, answers) = source.epoch(0)
        means = np.stack([images[labels == label].mean(axis=0) for label in range(4)]).reshape(4, -1)
        distances = ((others.reshape(400, 1, -1) - means) ** 2).sum(axis=2)
        assert (distances.argmin(axis=1) == answers).mean() > 0.95

    @pytest.mark.parametrize(
        "wrong", [{"shape": ()}, {"shape": (0, 2)}, {"classes": 0}, {"batch": 0}, {"batches": 0}, {"seed": -1}]
    )
    def test_bad_sizes(self, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Synthetic(**{"shape": (1, 2, 2), "classes": 2, "batch": 2, "batches": 2, **wrong})


class TestDigits:
    def test_the_sets_are_disjoint_and_scaled(self):
        train, test = digits(64, seed=1)
        assert (len(train.images), len(test.images)) == (1438, 359)
        assert train.images.shape[1:] == (1, 8, 8) and train.images.dtype == np.float32
        assert train.shuffle and not test.shuffle
        both = np.concatenate([train.images, test.images])
        assert abs(both.mean()) < 1e-3 and abs(both.std() - 1) < 1e-3
        assert len({image.tobytes() for image in both}) == 1797
        assert set(train.labels) == set(test.labels) == set(range(10))

    def test_the_seed_decides_the_split(self):
        np.testing.assert_array_equal(digits(8, seed=1)[1].labels, digits(16, seed=1)[1].labels)
        assert digits(8, seed=1)[1].labels.tolist() != digits(8, seed=2)[1].labels.tolist()

    @pytest.mark.parametrize("share", [0, 1, -0.5, 1e-9, 1 - 1e-9, float("nan")])
    def test_a_share_that_leaves_a_set_empty(self, share):
        with pytest.raises(ConfigError, match="held_out"):
            digits(8, held_out=share)

    def test_missing_scikit_learn_says_what_to_install(self, monkeypatch):
        found = builtins.__import__

        def missing(name, *rest):
            if name.startswith("sklearn"):
                raise ImportError("No module named 'sklearn'")
            return found(name, *rest)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(DeviceError, match=r'pip install "bathyal\[examples\]"'):
            digits(8)


def good(count=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, (count, *SHAPE[1:])).astype(np.float32), np.arange(count)


def check(images, labels, dtype=np.float32, classes=10):
    return as_batch(images, labels, SHAPE, lambda n: Target((n,), "int64", classes), dtype, 7)


class TestAsBatch:
    @pytest.mark.parametrize("target", [np.float32, np.float64])
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("code", ["f2", "f4", "f8", "u1", "u2", "u4", "i1", "i2", "i4", "i8", "?"])
    def test_any_real_type_and_byte_order_keeps_its_values(self, code, order, target):
        images, labels = good()
        stored = images.astype(np.dtype(code).newbyteorder(order))
        converted, _ = check(stored, labels, target)
        assert converted.dtype == target and converted.dtype.isnative and converted.flags.c_contiguous
        np.testing.assert_array_equal(converted, images)

    @pytest.mark.parametrize(
        "view",
        [
            lambda array: array[::-1],
            lambda array: array[:, :, ::-1, ::-1],
            lambda array: np.asfortranarray(array),
            lambda array: np.repeat(array, 2, axis=3)[..., ::2],
            lambda array: array.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
            lambda array: np.broadcast_to(array[:1], array.shape),
        ],
    )
    def test_any_strides_keep_their_values(self, view):
        array = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
        expected = np.array(view(array).tolist())
        converted, labels = check(view(array), np.arange(8)[::-2])
        assert converted.flags.c_contiguous
        np.testing.assert_array_equal(converted, expected)
        assert labels.tolist() == [7, 5, 3, 1] and labels.flags.c_contiguous

    def test_unaligned_data_becomes_aligned(self):
        images, labels = good()
        raw = np.frombuffer(b"x" + images.tobytes(), dtype=np.uint8)[1:].view(np.float32).reshape(SHAPE)
        converted, _ = check(raw, labels)
        assert converted.flags.aligned
        np.testing.assert_array_equal(converted, images)

    def test_what_fits_is_not_copied(self):
        images, labels = good()
        converted, numbers = check(images, labels)
        assert np.shares_memory(converted, images) and np.shares_memory(numbers, labels)

    def test_a_memory_map_is_taken(self, tmp_path):
        images, labels = good()
        (tmp_path / "images").write_bytes(images.tobytes())
        mapped = np.memmap(tmp_path / "images", np.float32, "r", shape=SHAPE)
        converted, _ = check(mapped, labels)
        assert type(converted) is np.ndarray
        np.testing.assert_array_equal(converted, images)

    def test_a_short_batch_is_taken(self):
        converted, labels = check(*good(2))
        assert converted.shape == (2, *SHAPE[1:]) and labels.shape == (2,)

    @pytest.mark.parametrize("code", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
    @pytest.mark.parametrize("order", ["<", ">"])
    def test_labels_of_any_integer_type(self, code, order):
        images, _ = good()
        _, labels = check(images, np.array([0, 9, 5, 1], dtype=order + code))
        assert labels.dtype == np.int64 and labels.dtype.isnative and labels.tolist() == [0, 9, 5, 1]

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            (np.zeros(SHAPE, complex), "real numbers, got dtype complex128"),
            (np.zeros(SHAPE, object), "real numbers, got dtype object.*astype"),
            (np.zeros(SHAPE, "U3"), "real numbers, got dtype <U3"),
            (np.zeros(SHAPE, "M8[s]"), "real numbers, got dtype datetime64"),
            (np.zeros(SHAPE, [("r", "f4")]), r"real numbers, got dtype \["),
            (np.ma.zeros(SHAPE), "without a mask"),
            (np.zeros((4, 4)).view(np.matrix), "a plain numpy array, got a matrix"),
            ([[1.0]], "a numpy array, got a list"),
            (None, "a numpy array, got a NoneType"),
            (np.float32(1), "a numpy array, got a float32"),
            (np.array(1.0), r"shape \(1 to 4, 3, 5, 6\), got shape \(\)"),
            (np.zeros((4, 5, 6, 3)), r"transpose\(0, 3, 1, 2\)"),
            (np.zeros((3, 5, 6)), r"images\[None\]"),
            (np.zeros((4, 3, 6, 5)), r"expected shape \(1 to 4, 3, 5, 6\), got shape \(4, 3, 6, 5\)$"),
            (np.zeros((0, 3, 5, 6)), "1 to 4 images, got 0"),
            (np.zeros((5, 3, 5, 6)), "1 to 4 images, got 5"),
        ],
    )
    def test_images_that_are_refused(self, images, message):
        with pytest.raises(DataError, match=rf"batch 7, images: .*{message}"):
            check(images, np.zeros(4, int))

    def test_a_missing_channel_axis_is_hinted_at(self):
        with pytest.raises(DataError, match=r"images\[:, None\]"):
            as_batch(
                np.zeros((4, 8, 8)), np.zeros(4, int), (4, 1, 8, 8), lambda n: Target((n,), "int64", 10), np.float32, 0
            )

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("code", ["<f4", ">f4", "f8", "f2"])
    def test_values_that_are_not_finite(self, value, code):
        images, labels = good()
        images = images.astype(code)
        images[2, 1, 4, 3] = value
        with pytest.raises(DataError, match=rf"batch 7, image 2: expected finite values, got {value} at \(1, 4, 3\)"):
            check(images, labels)

    def test_values_too_large_for_the_type(self):
        images, labels = good()
        images = images.astype(np.float64)
        images[3, 0, 0, 1] = -1e39
        with pytest.raises(DataError, match=r"image 3: expected values within ±3.403e\+38 \(float32\), got -1e\+39"):
            check(images, labels)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (np.zeros(3, int), r"labels: expected shape \(4,\), a label for each image, got shape \(3,\)"),
            (np.zeros((4, 1), int), r"Drop the second axis: labels\[:, 0\]"),
            (np.zeros((4, 10)), r"labels.argmax\(axis=1\)"),
            (np.zeros(4), "labels: expected integers, numbers of classes, got dtype float64.*astype"),
            (np.zeros(4, bool), "got dtype bool"),
            (np.zeros(4, object), "got dtype object"),
            (np.zeros(4, "m8[s]"), "got dtype timedelta64"),
            (np.ma.zeros(4, int), "without a mask"),
            ([0, 0, 0, 0], "a numpy array, got a list"),
            (np.array([0, 1, -1, 2]), r"label 2: expected a class in \[0, 10\), got -1$"),
            (np.array([0, 10, 3, 11]), r"label 1: expected a class in \[0, 10\), got 10. Classes count from 0"),
            (np.array([0, 1, 2, 2**64 - 1], np.uint64), "label 3: .*got 18446744073709551615"),
            (np.array([0, 1, 2, 256], ">i4"), "label 3: .*got 256"),
            (np.array([0, 1, 2, -128], np.int8), "label 3: .*got -128"),
        ],
    )
    def test_labels_that_are_refused(self, labels, message):
        with pytest.raises(DataError, match=rf"batch 7, .*{message}"):
            check(good()[0], labels)

    def test_more_classes_than_the_label_type_can_name(self):
        _, labels = check(good()[0], np.array([0, 127, 1, 2], np.int8), classes=1000)
        assert labels.tolist() == [0, 127, 1, 2]


def check_targets(targets, dtype="float32", shape=(4, 2)):
    return as_batch(good(len(targets))[0], targets, SHAPE, lambda n: Target((n, *shape[1:]), dtype), np.float32, 7)[1]


class TestTargetsThatAreNoClasses:
    @pytest.mark.parametrize("code", ["<f4", ">f8", "f2", "i2", "?"])
    def test_real_numbers_of_any_type_keep_their_values(self, code):
        given = np.array([[0, 1], [1, 0], [1, 1], [0, 0]], code)
        converted = check_targets(np.asfortranarray(given))
        assert converted.dtype == np.float32 and converted.flags.c_contiguous
        np.testing.assert_array_equal(converted, given.astype(float))

    def test_integers_are_converted_where_the_type_holds_them(self):
        converted = check_targets(np.array([[0, -5], [3, 100], [7, 8]]), "int32")
        assert converted.dtype == np.int32 and converted.tolist() == [[0, -5], [3, 100], [7, 8]]

    @pytest.mark.parametrize(
        ("targets", "dtype", "message"),
        [
            (np.zeros(4), "float32", r"targets: expected shape \(4, 2\), a target .*got shape \(4,\)"),
            (np.zeros((4, 3)), "float32", r"targets: expected shape \(4, 2\), .*got shape \(4, 3\)"),
            (np.zeros((4, 2), object), "float32", "targets: expected real numbers, got dtype object.*targets.astype"),
            (np.array([[0, 1], [2, np.nan]] * 2), "float32", r"target 1: expected finite values, got nan at \(1,\)"),
            (np.full((4, 2), 1e300), "float32", r"target 0: expected values within"),
            (np.zeros((4, 2)), "int32", r"targets: expected integers, got dtype float64.*numpy.int32"),
            (np.full((4, 2), 2**31), "int32", r"targets: expected values from -2147483648 to .*got 2147483648"),
        ],
    )
    def test_targets_that_are_refused(self, targets, dtype, message):
        with pytest.raises(DataError, match=f"batch 7, {message}"):
            check_targets(targets, dtype)

    def test_a_missing_last_axis_is_hinted_at(self):
        with pytest.raises(DataError, match=r"targets\[:, None\]"):
            check_targets(np.zeros(4), shape=(4, 1))

    @pytest.mark.parametrize("wrong", [((), "float32", 0), ((4,), "complex64", 0), ((4,), "float32", 3)])
    def test_a_target_that_makes_no_sense(self, wrong):
        with pytest.raises(ConfigError, match=r"^Target: expected"):
            Target(*wrong)


def test_images_alone_are_checked_as_in_a_batch():
    images, labels = good()
    np.testing.assert_array_equal(as_images(images[:2], SHAPE, np.float64, 3), check(images[:2], labels[:2])[0])
    with pytest.raises(DataError, match=r"batch 3, images: .*1 to 4 images, got 0"):
        as_images(images[:0], SHAPE, np.float32, 3)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [3, 4, 7, 8, 9])
def test_a_source_says_the_sizes_of_its_batches(count, drop_last):
    source = ArrayDataset(*numbered(count), 3, drop_last=drop_last)
    found = {len(labels) for epoch in range(2) for _, labels in source.epoch(epoch)}
    assert source.batch_sizes() == find_batch_sizes(source) == tuple(sorted(found, reverse=True))


def test_a_batch_that_is_larger_than_the_data_is_short():
    assert ArrayDataset(*numbered(2), 3).batch_sizes() == (2,)


def test_sizes_of_batches_of_lists_are_known_and_of_others_are_not():
    pairs = [numbered(n) for n in (2, 4, 2, 3)]
    assert FromIterable(pairs).batch_sizes() == FromIterable(tuple(pairs)).batch_sizes() == (4, 3, 2)
    for unknown in (iter(pairs), lambda: pairs, [], [*pairs, None], [(None, None)]):
        assert FromIterable(unknown).batch_sizes() is None
    assert len(list(FromIterable(pairs).epoch(0))) == 4
    assert Synthetic((1, 2, 2), 3, 5, 4).batch_sizes() == (5,)


def test_a_source_that_says_no_sizes_is_a_source():
    class Own:
        batches_per_epoch = None

        def epoch(self, number, first_batch=0):
            return iter(())

    assert isinstance(Own(), Source)
    assert find_batch_sizes(Own()) is None


def test_an_iterator_that_was_used_up_is_named():
    pairs = iter([numbered(2)])
    assert len(list(FromIterable(pairs).epoch(0))) == 1
    with pytest.raises(DataError, match="used up by an earlier loop"):
        list(FromIterable(pairs).epoch(0))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: ArrayDataset(*numbered(4), "2"), "batch"),
        (lambda: ArrayDataset(*numbered(4), 2.0), "batch"),
        (lambda: ArrayDataset(*numbered(4), 2, shuffle=1), "shuffle as True or False"),
        (lambda: ArrayDataset(*numbered(4), 2, drop_last="no"), "drop_last as True or False"),
        (lambda: ArrayDataset(*numbered(4), 2, seed=-1), "seed"),
        (lambda: ArrayDataset(*numbered(4), 2, seed=2**64), "seed"),
        (lambda: Synthetic(1000, 3, 2, 2), "shape"),
        (lambda: Synthetic((1, 2.0), 3, 2, 2), "shape"),
        (lambda: Synthetic((1, 2), True, 2, 2), "classes"),
        (lambda: Synthetic((1, 2), 3, 10**30, 2), "batch"),
    ],
)
def test_arguments_that_make_no_sense(make, part):
    with pytest.raises(ConfigError, match=part):
        make()
    with pytest.raises(TypeError):
        ArrayDataset(*numbered(4), 2, True)
