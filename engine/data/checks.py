"""The border between a user's arrays and the arena: every batch is checked and converted here, once.

Decides whether a pair of arrays can be a batch of the planned shape, from the arrays alone, and turns it into
C-contiguous arrays of the machine's byte order: images of the computing type, labels int64. Values are converted, not
scaled: a uint8 pixel 255 becomes 255.0. What could be misread is refused with its position; nothing is guessed.

Does not check that the images are what the labels say, nor that they are normalized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...memory.errors import DataError

_IMAGE_KINDS = "fiub"
_LABEL_KINDS = "iu"


def as_batch(
    images: object,
    labels: object,
    expected_shape: tuple[int, ...],
    classes: int,
    dtype: npt.DTypeLike,
    position: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return images (n, C, H, W) of `dtype` and labels (n,) int64, both C-contiguous and native; 1 ≤ n ≤ N.

    Arrays that are so already are returned without a copy. n < N is a last short batch.

    Args:
        images: real numbers of any width, byte order and strides; finite after the conversion.
        labels: integers of any width and byte order, in [0, classes).
        expected_shape: (N, C, H, W).
        classes: number of classes.
        dtype: a floating type.
        position: number of the batch in its epoch, for errors.

    Raises:
        DataError: says which batch, image or label, what was expected and what came.
    """
    where = f"batch {position}"
    image_array = _as_array(f"{where}, images", images)
    _check_images(f"{where}, images", image_array, expected_shape)
    label_array = _as_array(f"{where}, labels", labels)
    _check_labels(where, label_array, len(image_array), classes)
    converted = _convert(where, image_array, np.dtype(dtype))
    return converted, np.require(label_array, np.int64, ["C", "A"])


def _as_array(where: str, value: object) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(where, "a numpy array without a mask", "a masked array", "Fill the gaps: array.filled(value).")
    if isinstance(value, np.matrix):
        raise DataError(where, "a plain numpy array", "a matrix", "Convert it: numpy.asarray(matrix), then reshape.")
    if not isinstance(value, np.ndarray):
        hint = "Pass tensor.numpy()." if hasattr(value, "numpy") else "Convert it with numpy.asarray."
        raise DataError(where, "a numpy array", f"a {type(value).__name__}", hint)
    return np.asarray(value)  # Memory maps and other subclasses become plain views.


def _check_images(where: str, images: npt.NDArray[Any], expected_shape: tuple[int, ...]) -> None:
    if images.dtype.kind not in _IMAGE_KINDS:
        hint = "Convert them with images.astype(numpy.float32)." if images.dtype.kind in "OV" else ""
        raise DataError(where, "real numbers", f"dtype {images.dtype}", hint)
    most, sample = expected_shape[0], expected_shape[1:]
    if images.ndim != len(expected_shape) or images.shape[1:] != sample:
        expected = f"shape {_batch_shape(expected_shape)}"
        raise DataError(where, expected, f"shape {images.shape}", _layout_hint(images.shape, sample))
    if not 1 <= len(images) <= most:
        hint = "The plan is made for that many." if len(images) > most else "Leave empty batches out."
        raise DataError(where, f"1 to {most} images", str(len(images)), hint)


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


def _convert(where: str, images: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    assert dtype.kind == "f", dtype
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.require(images, dtype.newbyteorder("="), ["C", "A"])
        # Least and largest value together show any NaN or infinity without a temporary of the size of the batch.
        if np.isfinite(converted.min()) and np.isfinite(converted.max()):
            return converted
    bad = tuple(int(axis) for axis in np.unravel_index(int(np.argmin(np.isfinite(converted))), converted.shape))
    value = images[bad]
    if np.isfinite(value):
        limit = np.finfo(dtype).max
        raise DataError(f"{where}, image {bad[0]}", f"values within ±{limit:.4g} ({dtype})", f"{value} at {bad[1:]}")
    raise DataError(f"{where}, image {bad[0]}", "finite values", f"{value} at {bad[1:]}")


def _check_labels(where: str, labels: npt.NDArray[Any], count: int, classes: int) -> None:
    if labels.shape != (count,):
        expected = f"shape ({count},), a label for each image"
        raise DataError(f"{where}, labels", expected, f"shape {labels.shape}", _label_hint(labels, count, classes))
    if labels.dtype.kind not in _LABEL_KINDS:
        hint = "Convert them with labels.astype(numpy.int64)." if labels.dtype.kind in "bf" else ""
        raise DataError(f"{where}, labels", "integers, numbers of classes", f"dtype {labels.dtype}", hint)
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        hint = "Classes count from 0." if labels[first] == classes else ""
        raise DataError(f"{where}, label {first}", f"a class in [0, {classes})", str(int(labels[first])), hint)


def _label_hint(labels: npt.NDArray[Any], count: int, classes: int) -> str:
    if labels.shape == (count, 1):
        return "Drop the second axis: labels[:, 0]."
    if labels.shape == (count, classes):
        return "One-hot labels become numbers by labels.argmax(axis=1)."
    return ""
