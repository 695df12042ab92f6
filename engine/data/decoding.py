"""One image file becomes RGB pixels of a given size, decoded by Pillow.

Decides the pixels from the file, the size and, for augmentation, a random generator. Grey is repeated, 16 bits a
channel keep their high byte, CMYK and palettes are converted, alpha is dropped (as torchvision does), the EXIF
orientation is applied. A centred box of the target's shape is resized by Pillow's antialiased bilinear filter; with a
generator the box is random (area 8 % to 100 %, aspect ratio 3/4 to 4/3: Szegedy et al., "Going deeper with
convolutions", 2015, section 6) and half of the images are mirrored. Does not normalize.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...memory.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

_AREA = (0.08, 1.0)
_ASPECT_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_PIXEL_BYTES = 4
_IMAGES_AT_A_TIME = 3
_EXIF_ORIENTATION = 0x0112


def decode_image(path: str, size: tuple[int, int], rng: np.random.Generator | None = None) -> npt.NDArray[np.uint8]:
    """Return the image as (H, W, 3) uint8: a centred box of it, or a random one where `rng` is given.

    Raises:
        DataError: the file is missing, truncated, or not an image that can become RGB; names it.
    """
    from PIL import Image

    try:
        with Image.open(path) as opened:
            opened.load()
            image = _turn_upright(convert_to_rgb(opened), _read_orientation(opened, path))
            height, width = size
            box = (
                _place_centred_box(image.size, width / height)
                if rng is None
                else _draw_random_box(image.size, width / height, rng)
            )
            image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
            if rng is not None and rng.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return np.asarray(image)
    except DataError as error:
        raise DataError(path, error.expected, error.actual, error.hint) from error
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them meet.
        hint = "The file is damaged or is no image: replace it, or remove it from the folder."
        raise DataError(path, "an image that Pillow can decode", f"{type(error).__name__}: {error}", hint) from error


def count_decoding_bytes(path: str) -> int:
    """Return how many bytes decoding a file takes at most, by the size that its header tells; 0 where it tells none.

    Pillow holds a pixel of RGB in four bytes, and three images are there at a time: as it was read, as RGB, turned
    upright.
    """
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return int(opened.width) * int(opened.height) * _PIXEL_BYTES * _IMAGES_AT_A_TIME
    except Exception:  # a damaged file is named when its pixels are asked for
        return 0


def convert_to_rgb(image: Image) -> Image:
    """Return `image` in mode RGB, 8 bits a channel.

    Pillow's own conversion clips 16-bit grey to 255 instead of scaling it, and knows no range for 32 bits.

    Raises:
        DataError: more than 16 bits a channel.
    """
    from PIL import Image as Pillow

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if image.mode == "F" or values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise DataError("image", "8 or 16 bits a channel", f"mode {image.mode!r}", "Convert it to 8 bits.")
        image = Pillow.fromarray((values >> 8).astype(np.uint8))
    elif "transparency" in image.info:
        image = image.convert("RGBA")  # Straight to RGB, Pillow warns about palettes whose colours are transparent.
    return image.convert("RGB")


def _turn_upright(image: Image, orientation: int) -> Image:
    """Turn the image as its EXIF orientation says: 1 to 8, what the first row and column of the pixels are."""
    from PIL.Image import Transpose

    moves = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(moves[orientation]) if orientation in moves else image


def _read_orientation(image: Image, path: str) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception as error:  # A damaged EXIF block is common, and no reason to lose the pixels.
        logger.warning("%s: EXIF data cannot be read, the image is taken as it lies (%s)", path, error)
        return 1


def _place_centred_box(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """Return the largest centred box (left, top, right, bottom) whose width is `ratio` times its height."""
    width, height = size
    box_width, box_height = min(width, height * ratio), min(height, width / ratio)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, min(left + box_width, width), min(top + box_height, height)


def _draw_random_box(
    size: tuple[int, int], ratio: float, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    width, height = size
    for _ in range(_ATTEMPTS):
        area = width * height * rng.uniform(*_AREA)
        aspect = math.exp(rng.uniform(math.log(_ASPECT_RATIO[0]), math.log(_ASPECT_RATIO[1])))
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(rng.integers(width - box_width + 1))
            top = int(rng.integers(height - box_height + 1))
            return left, top, left + box_width, top + box_height
    return _place_centred_box(size, ratio)
