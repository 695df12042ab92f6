"""The border between a user's arrays and the arena: every batch is checked and converted here, once.

Decides whether a pair of arrays can be a batch of the planned shape, from the arrays and from what the loss declares of
its target, and turns it into C-contiguous arrays of the machine's byte order: images of the computing type, targets of
the type that the loss declares, such as int64 labels. Values are converted, not scaled: a uint8 pixel 255 becomes
255.0. What could be misread is refused with its position; nothing is guessed.

Does not check that the images are what the labels say, nor that they are normalized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...layers.losses.loss import Target
from ...memory.errors import DataError

_REAL_KINDS = "fiub"
_INTEGER_KINDS = "iu"

Array = npt.NDArray[Any]


def as_batch(
    images: object,
    targets: object,
    expected_shape: tuple[int, ...],
    find_target: Callable[[int], Target],
    dtype: npt.DTypeLike,
    position: int,
) -> tuple[Array, Array]:
    """Return images (n, C, H, W) of `dtype` and as many targets, both C-contiguous and native; 1 ≤ n ≤ N.

    Arrays that are so already are returned without a copy. n < N is a last short batch.

    Args:
        images: real numbers of any width, byte order and strides; finite after the conversion.
        targets: labels, integers of any width and byte order in [0, classes); or what else the loss compares with.
        expected_shape: (N, C, H, W).
        find_target: tells what the loss declares of a batch of so many samples.
        dtype: a floating type.
        position: number of the batch in its epoch, for errors.

    Raises:
        DataError: says which batch, image or label, what was expected and what came.
    """
    where = f"batch {position}"
    image_array = _as_array(f"{where}, images", images)
    _check_images(f"{where}, images", image_array, expected_shape)
    target = find_target(len(image_array))
    target_array = _as_array(f"{where}, {'labels' if target.classes else 'targets'}", targets)
    if target.classes:
        _check_labels(where, target_array, len(image_array), target.classes)
    else:
        _check_targets(f"{where}, targets", target_array, target.shape, target.dtype)
    converted = _convert(f"{where}, image", image_array, np.dtype(dtype))
    if target.dtype.startswith("float"):
        return converted, _convert(f"{where}, target", target_array, np.dtype(target.dtype))
    return converted, np.require(target_array, target.dtype, ["C", "A"])


def as_images(images: object, expected_shape: tuple[int, ...], dtype: npt.DTypeLike, position: int) -> Array:
    """Return images as `as_batch` does, without a target.

    Raises:
        DataError: says which batch or image, what was expected and what came.
    """
    where = f"batch {position}"
    array = _as_array(f"{where}, images", images)
    _check_images(f"{where}, images", array, expected_shape)
    return _convert(f"{where}, image", array, np.dtype(dtype))


def _as_array(where: str, value: object) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(where, "a numpy array without a mask", "a masked array", "Fill the gaps: array.filled(value).")
    if isinstance(value, np.matrix):
        raise DataError(where, "a plain numpy array", "a matrix", "Convert it: numpy.asarray(matrix), then reshape.")
    if not isinstance(value, np.ndarray):
        hint = "Pass tensor.numpy()." if hasattr(value, "numpy") else "Convert it with numpy.asarray."
        raise DataError(where, "a numpy array", f"a {type(value).__name__}", hint)
    return np.asarray(value)  # Memory maps and other subclasses become plain views.


def _check_images(where: str, images: Array, expected_shape: tuple[int, ...]) -> None:
    _check_real(where, images, "images")
    most, sample = expected_shape[0], expected_shape[1:]
    if images.ndim != len(expected_shape) or images.shape[1:] != sample:
        expected = f"shape {_batch_shape(expected_shape)}"
        raise DataError(where, expected, f"shape {images.shape}", _layout_hint(images.shape, sample))
    if not 1 <= len(images) <= most:
        hint = "The plan is made for that many." if len(images) > most else "Leave empty batches out."
        raise DataError(where, f"1 to {most} images", str(len(images)), hint)


def _check_real(where: str, values: Array, name: str) -> None:
    if values.dtype.kind not in _REAL_KINDS:
        hint = f"Convert them with {name}.astype(numpy.float32)." if values.dtype.kind in "OV" else ""
        raise DataError(where, "real numbers", f"dtype {values.dtype}", hint)


def _batch_shape(expected_shape: tuple[int, ...]) -> str:
    return f"(1 to {', '.join(map(str, expected_shape))})"


def _layout_hint(shape: tuple[int, ...], sample: tuple[int, ...]) -> str:
    if shape == sample:
        return "A batch has a first axis: images[None]."
    if len(sample) != 3:
        return ""
    channels, height, width = sample
    if shape[1:] == (height, width, channels):
        return "The channels come last here: images.transpose(0, 3, 1, 2)."
    if channels == 1 and shape[1:] == (height, width):
        return "The axis of the channels is missing: images[:, None]."
    return ""


def _convert(where: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """The values in a floating type; raises DataError, which names `where` and the sample, where one is not finite."""
    assert dtype.kind == "f", dtype
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.require(values, dtype.newbyteorder("="), ["C", "A"])
        # Least and largest value together show any NaN or infinity without a temporary of the size of the batch.
        if np.isfinite(converted.min()) and np.isfinite(converted.max()):
            return converted
    bad = tuple(int(axis) for axis in np.unravel_index(int(np.argmin(np.isfinite(converted))), converted.shape))
    value = values[bad]
    if np.isfinite(value):
        limit = np.finfo(dtype).max
        raise DataError(f"{where} {bad[0]}", f"values within ±{limit:.4g} ({dtype})", f"{value} at {bad[1:]}")
    raise DataError(f"{where} {bad[0]}", "finite values", f"{value} at {bad[1:]}")


def _check_targets(where: str, targets: Array, shape: tuple[int, ...], dtype: str) -> None:
    """Check the targets of a loss that does not compare with classes."""
    if targets.shape != shape:
        lacks_last_axis = shape[-1] == 1 and targets.shape == shape[:-1]
        hint = "Add the last axis: targets[:, None]." if lacks_last_axis and len(shape) == 2 else ""
        raise DataError(where, f"shape {shape}, a target for each image", f"shape {targets.shape}", hint)
    if np.dtype(dtype).kind == "f":
        _check_real(where, targets, "targets")
        return
    if targets.dtype.kind not in _INTEGER_KINDS:
        hint = f"Convert them with targets.astype(numpy.{dtype})." if targets.dtype.kind in "bf" else ""
        raise DataError(where, "integers", f"dtype {targets.dtype}", hint)
    limits = np.iinfo(dtype)
    for value in (int(targets.min()), int(targets.max())):
        if not limits.min <= value <= limits.max:
            raise DataError(where, f"values from {limits.min} to {limits.max} ({dtype})", str(value))


def _check_labels(where: str, labels: Array, count: int, classes: int) -> None:
    if labels.shape != (count,):
        expected = f"shape ({count},), a label for each image"
        raise DataError(f"{where}, labels", expected, f"shape {labels.shape}", _label_hint(labels, count, classes))
    if labels.dtype.kind not in _INTEGER_KINDS:
        hint = "Convert them with labels.astype(numpy.int64)." if labels.dtype.kind in "bf" else ""
        raise DataError(f"{where}, labels", "integers, numbers of classes", f"dtype {labels.dtype}", hint)
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        hint = "Classes count from 0." if labels[first] == classes else ""
        raise DataError(f"{where}, label {first}", f"a class in [0, {classes})", str(int(labels[first])), hint)


def _label_hint(labels: Array, count: int, classes: int) -> str:
    if labels.shape == (count, 1):
        return "Drop the second axis: labels[:, 0]."
    if labels.shape == (count, classes):
        return "One-hot labels become numbers by labels.argmax(axis=1)."
    return ""
