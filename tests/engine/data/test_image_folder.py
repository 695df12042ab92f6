import builtins
import logging
import threading
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from bathyal.engine.data.decoding import decode_image
from bathyal.engine.data.image_folder import IMAGENET_MEAN, IMAGENET_STD, ImageFolder
from bathyal.engine.data.prefetch import THREAD_NAME
from bathyal.memory.errors import ConfigError, DataError, DeviceError

PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def picture(seed=0, height=12, width=16):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def gradient(height, width):
    """Smooth, so that JPEG and resizing change little; all four corners differ."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [rows * 255 / height, columns * 255 / width, (rows + columns) * 255 / (height + width)]
    return np.stack(channels, axis=2).astype(np.uint8)


def fill(root, names=("cat", "dog", "eel"), count=5):
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.full((8, 8, 3), 10 * (label * count + index), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def identities(batches):
    """The number that `fill` gave each image."""
    return [round(float(image[0, 0, 0]) * 255 / 10) for images, _ in batches for image in images]


class TestEpochs:
    def test_classes_are_the_sorted_folders(self, tmp_path):
        fill(tmp_path, ("dog", "Ant", "cat"), 2)
        (tmp_path / "notes.txt").write_text("not an image")
        (tmp_path / ".git").mkdir()
        source = ImageFolder(tmp_path, 8, 2)
        assert source.classes == ("Ant", "cat", "dog")
        assert [file.label for file in source.files] == [0, 0, 1, 1, 2, 2]

    def test_images_lie_at_any_depth_and_in_any_case(self, tmp_path):
        fill(tmp_path, ("a",), 1)
        (tmp_path / "a/deep/er").mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / "a/deep/er/x.JPG", format="jpeg")
        (tmp_path / "a/._0.png").write_bytes(b"a resource fork")
        (tmp_path / "a/readme.txt").write_text("")
        (tmp_path / "a/deep/back").symlink_to(tmp_path / "a")
        names = [file.path for file in ImageFolder(tmp_path, 8, 1).files]
        assert names == [str(tmp_path / "a/0.png"), str(tmp_path / "a/deep/er/x.JPG")]

    def test_without_shuffle_the_order_is_by_class_and_name(self, tmp_path):
        source = ImageFolder(fill(tmp_path), 8, 4, shuffle=False, **PLAIN)
        batches = list(source.epoch(0))
        assert identities(batches) == list(range(15))
        assert [len(labels) for _, labels in batches] == [4, 4, 4, 3] and source.batches_per_epoch == 4
        assert np.concatenate([labels for _, labels in batches]).tolist() == [0] * 5 + [1] * 5 + [2] * 5

    def test_drop_last(self, tmp_path):
        source = ImageFolder(fill(tmp_path), 8, 4, drop_last=True)
        assert [len(labels) for _, labels in source.epoch(0)] == [4, 4, 4]
        assert source.batches_per_epoch == 3

    def test_shuffled_epochs_show_each_image_once_with_its_label(self, tmp_path):
        source = ImageFolder(fill(tmp_path), 8, 4, seed=3, **PLAIN)
        orders = []
        for number in range(2):
            batches = list(source.epoch(number))
            orders.append(identities(batches))
            assert sorted(orders[-1]) == list(range(15))
            assert np.concatenate([labels for _, labels in batches]).tolist() == [index // 5 for index in orders[-1]]
        assert orders[0] != orders[1]

    @pytest.mark.parametrize("augment", [False, True])
    @pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (2, 4), (5, 2)])
    def test_threads_change_nothing(self, tmp_path, workers, ahead, augment):
        fill(tmp_path)
        alone = ImageFolder(tmp_path, 6, 2, seed=1, workers=1, ahead=1, augment=augment)
        source = ImageFolder(tmp_path, 6, 2, seed=1, workers=workers, ahead=ahead, augment=augment)
        same(source.epoch(1), alone.epoch(1))
        same(source.epoch(1, 3), islice(alone.epoch(1), 3, None))
        assert threads() == []

    def test_resuming_does_not_read_what_it_skips(self, tmp_path):
        source = ImageFolder(fill(tmp_path), 8, 5, shuffle=False)
        (tmp_path / "cat/0.png").unlink()
        assert [set(labels) for _, labels in source.epoch(0, 1)] == [{1}, {2}]
        with pytest.raises(DataError, match=r"cat/0.png.*FileNotFoundError"):
            next(source.epoch(0))
        with pytest.raises(DataError, match="first_batch of at most 3"):
            source.epoch(0, 4)

    def test_normalization_and_sizes(self, tmp_path):
        (tmp_path / "a").mkdir()
        Image.fromarray(picture(0, 7, 5)).save(tmp_path / "a/0.png")
        source = ImageFolder(tmp_path, (7, 5), 1, ahead=3)
        ((images, labels),) = source.epoch(0)
        expected = (picture(0, 7, 5) / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
        np.testing.assert_allclose(images[0], expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-6)
        assert images.dtype == np.float32 and images.flags.c_contiguous and labels.dtype == np.int64
        assert source.batch_bytes == images.nbytes + labels.nbytes
        assert source.queue_bytes == 4 * source.batch_bytes + 2 * (7 * 5 * 4 * 3), "and two decoded images"

    def test_batches_ahead_are_bounded_by_their_bytes(self, tmp_path):
        (tmp_path / "a").mkdir()
        Image.fromarray(picture(0, 7, 5)).save(tmp_path / "a/0.png")
        assert [ImageFolder(tmp_path, 224, batch).ahead for batch in (8, 64, 100, 256)] == [4, 3, 2, 1]
        assert ImageFolder(tmp_path, 224, 256, ahead=6).ahead == 6


class TestThreads:
    def test_leaving_early_ends_the_threads(self, tmp_path):
        for _ in ImageFolder(fill(tmp_path), 8, 1).epoch(0):
            assert threads() != []
            break
        assert threads() == []

    def test_a_damaged_file_comes_in_its_place_is_named_and_ends_the_threads(self, tmp_path):
        source = ImageFolder(fill(tmp_path), 8, 2, shuffle=False, workers=3)
        file = tmp_path / "dog/0.png"
        file.write_bytes(file.read_bytes()[:40])
        batches = source.epoch(0)
        assert [len(next(batches)[1]) for _ in range(2)] == [2, 2]
        with pytest.raises(DataError, match=r"dog/0\.png: expected an image that Pillow can decode") as caught:
            next(batches)
        assert caught.value.where == str(file)
        assert threads() == []


class TestFaults:
    @pytest.mark.parametrize(
        ("prepare", "message"),
        [
            (lambda root: None, "sub-folder of images for each class .*got an empty folder"),
            (lambda root: (root / "a.txt").touch(), "got 1 files and no sub-folder"),
            (lambda root: (root / "a.png").touch(), "got 1 images but no sub-folder. Put the images of each class"),
            (lambda root: (root / "cat").mkdir(), r"cat: expected images .*got none among 0 entries"),
            (lambda root: [(root / "cat").mkdir(), (root / "cat/a.gif").touch()], "got none among 1 entries"),
            (lambda root: root.rmdir(), "got No such file or directory"),
            (lambda root: [root.rmdir(), root.touch()], "got Not a directory"),
        ],
    )
    def test_folders_that_hold_no_classes(self, tmp_path, prepare, message):
        root = tmp_path / "data"
        root.mkdir()
        prepare(root)
        with pytest.raises(DataError, match=message):
            ImageFolder(root, 8, 1)

    def test_too_few_for_a_batch(self, tmp_path):
        with pytest.raises(DataError, match="at least one batch of 4, got 2 samples"):
            ImageFolder(fill(tmp_path, ("a", "b"), 1), 8, 4, drop_last=True)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"size": 0},
            {"size": (4, -1)},
            {"batch": 0},
            {"workers": 0},
            {"ahead": 0},
            {"seed": -1},
            {"mean": (1, 2)},
            {"std": (1, 0, 1)},
            {"std": (1, float("nan"), 1)},
        ],
    )
    def test_numbers_out_of_range(self, tmp_path, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ImageFolder(**{"root": fill(tmp_path, ("a",), 1), "size": 8, "batch": 1, **wrong})

    def test_missing_pillow_says_what_to_install(self, tmp_path, monkeypatch):
        found = builtins.__import__

        def missing(name, *rest):
            if name.startswith("PIL"):
                raise ImportError("No module named 'PIL'")
            return found(name, *rest)

        fill(tmp_path)
        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(DeviceError, match=r'pip install "bathyal\[examples\]"'):
            ImageFolder(tmp_path, 8, 1)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "ppm", "tif", "webp"])
    @pytest.mark.parametrize("share", [0, 0.05, 0.5, 0.9])
    def test_truncated_files(self, tmp_path, suffix, share):
        file = tmp_path / f"x.{suffix}"
        Image.fromarray(picture(0, 64, 64)).save(file)
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match=rf"{file}: .*damaged"):
            decode_image(str(file), (8, 8))

    @pytest.mark.parametrize("content", [b"", b"not an image at all", b"\x89PNG\r\n\x1a\n" + b"\xff" * 100])
    def test_files_that_are_no_images(self, tmp_path, content):
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.png"):
            decode_image(str(tmp_path / "x.png"), (8, 8))

    def test_a_broken_link_is_named(self, tmp_path):
        fill(tmp_path, ("a",), 1)
        (tmp_path / "a/x.png").symlink_to("nowhere")
        with pytest.raises(DataError, match=r"a/x\.png: .*FileNotFoundError"):
            list(ImageFolder(tmp_path, 8, 1).epoch(0))


class TestModes:
    """Images of every mode, against what their pixels mean."""

    def decoded(self, tmp_path, image, suffix="png", **options):
        file = tmp_path / f"x.{suffix}"
        image.save(file, **options)
        return decode_image(str(file), (image.height, image.width))

    def test_rgb(self, tmp_path):
        np.testing.assert_array_equal(self.decoded(tmp_path, Image.fromarray(picture())), picture())

    @pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "pgm"])
    def test_grey(self, tmp_path, suffix):
        grey = picture()[..., 0]
        decoded = self.decoded(tmp_path, Image.fromarray(grey), suffix)
        np.testing.assert_array_equal(decoded, np.repeat(grey[..., None], 3, axis=2))

    def test_black_and_white(self, tmp_path):
        bits = picture()[..., 0] > 127
        decoded = self.decoded(tmp_path, Image.fromarray(bits))
        np.testing.assert_array_equal(decoded, np.where(bits, 255, 0)[..., None].repeat(3, axis=2))

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_alpha_is_dropped(self, tmp_path, mode):
        image = Image.fromarray(picture()).convert(mode)
        image.putalpha(Image.fromarray(picture(1)[..., 0]))
        expected = np.asarray(Image.fromarray(picture()).convert(mode[:-1]).convert("RGB"))
        np.testing.assert_array_equal(self.decoded(tmp_path, image), expected)

    @pytest.mark.parametrize("transparency", [None, 3, bytes(range(256))])
    def test_palettes(self, tmp_path, transparency):
        indices = picture()[..., 0]
        palette = np.random.default_rng(2).integers(0, 256, (256, 3), dtype=np.uint8)
        image = Image.fromarray(indices)
        image.putpalette(palette.tobytes())
        options = {} if transparency is None else {"transparency": transparency}
        np.testing.assert_array_equal(self.decoded(tmp_path, image, **options), palette[indices])

    def test_cmyk(self, tmp_path):
        cmyk = np.zeros((8, 8, 4), np.uint8)
        cmyk[:4, :, 0] = 255  # Cyan above, black below.
        cmyk[4:, :, 3] = 255
        decoded = self.decoded(tmp_path, cmyk_image(cmyk), "tif")
        assert decoded[0, 0].tolist() == [0, 255, 255] and decoded[7, 0].tolist() == [0, 0, 0]

    def test_cmyk_in_jpeg(self, tmp_path):
        cmyk = np.zeros((16, 16, 4), np.uint8)
        cmyk[..., 1] = 255
        decoded = self.decoded(tmp_path, cmyk_image(cmyk), "jpg", quality=95).astype(int)
        assert abs(decoded - [255, 0, 255]).max() <= 4

    @pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
    def test_16_bits_are_scaled_not_clipped(self, tmp_path, suffix):
        deep = np.random.default_rng(3).integers(0, 2**16, (6, 9), dtype=np.uint16)
        deep[0, :3] = 0, 255, 65535
        decoded = self.decoded(tmp_path, Image.fromarray(deep), suffix)
        np.testing.assert_array_equal(decoded, (deep >> 8).astype(np.uint8)[..., None].repeat(3, axis=2))

    def test_16_bits_big_endian(self, tmp_path):
        deep = np.arange(0, 60000, 1000, dtype=">u2").reshape(6, 10)
        image = Image.frombytes("I;16B", (10, 6), deep.tobytes())
        np.testing.assert_array_equal(self.decoded(tmp_path, image, "tif")[..., 1], deep >> 8)

    @pytest.mark.parametrize("values", [np.full((4, 4), 70000, np.int32), np.zeros((4, 4), np.float32)])
    def test_32_bits_are_refused(self, tmp_path, values):
        with pytest.raises(DataError, match=r"x\.tif: expected 8 or 16 bits a channel"):
            self.decoded(tmp_path, Image.fromarray(values), "tif")


def cmyk_image(pixels):
    return Image.frombytes("CMYK", (pixels.shape[1], pixels.shape[0]), pixels.tobytes())


class TestGeometry:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
    def test_exif_orientation(self, tmp_path, orientation, suffix):
        upright = gradient(24, 40)
        # What a camera stores, so that turning it as the EXIF standard says (6: a quarter clockwise) shows `upright`.
        stored = {
            1: upright,
            2: upright[:, ::-1],
            3: upright[::-1, ::-1],
            4: upright[::-1],
            5: upright.transpose(1, 0, 2),
            6: np.rot90(upright),
            7: upright[::-1, ::-1].transpose(1, 0, 2),
            8: np.rot90(upright, -1),
        }[orientation]
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = tmp_path / f"x.{suffix}"
        Image.fromarray(np.ascontiguousarray(stored)).save(
            file, exif=exif, **({"quality": 95} if suffix == "jpg" else {})
        )
        decoded = decode_image(str(file), (24, 40)).astype(int)
        assert abs(decoded - upright).max() <= (8 if suffix == "jpg" else 0)

    def test_a_damaged_exif_block_loses_no_pixels(self, tmp_path, caplog, monkeypatch):
        def damaged(image):
            raise SyntaxError("not a TIFF file")

        Image.fromarray(picture()).save(tmp_path / "x.png")
        monkeypatch.setattr(Image.Image, "getexif", damaged)
        with caplog.at_level(logging.WARNING):
            decoded = decode_image(str(tmp_path / "x.png"), (12, 16))
        np.testing.assert_array_equal(decoded, picture())
        assert "x.png: EXIF data cannot be read" in caplog.text

    @pytest.mark.parametrize(("height", "width"), [(20, 60), (60, 20), (31, 20), (20, 20)])
    def test_the_centre_is_cut_out(self, tmp_path, height, width):
        Image.fromarray(picture(4, height, width)).save(tmp_path / "x.png")
        decoded = decode_image(str(tmp_path / "x.png"), (20, 20))
        top, left = (height - 20) // 2, (width - 20) // 2
        if (height - 20) % 2 == 0:
            np.testing.assert_array_equal(decoded, picture(4, height, width)[top : top + 20, left : left + 20])
        else:  # Half a pixel off: the mean of both neighbours.
            pair = picture(4, height, width).astype(int)[top : top + 21, left : left + 20]
            assert abs(decoded - (pair[:-1] + pair[1:]) / 2).max() <= 1

    @pytest.mark.parametrize(("height", "width"), [(90, 150), (150, 90), (1, 7), (300, 2)])
    @pytest.mark.parametrize("size", [(32, 32), (24, 48), (1, 1)])
    @pytest.mark.parametrize("augment", [False, True])
    def test_any_size_gives_the_size_asked_for(self, tmp_path, height, width, size, augment):
        Image.fromarray(gradient(height, width)).save(tmp_path / "x.png")
        rng = np.random.default_rng(0) if augment else None
        decoded = decode_image(str(tmp_path / "x.png"), size, rng)
        assert decoded.shape == (*size, 3) and decoded.dtype == np.uint8

    def test_augmentation_varies_by_epoch_and_repeats(self, tmp_path):
        (tmp_path / "a").mkdir()
        for index in range(4):
            Image.fromarray(gradient(40, 40)).save(tmp_path / f"a/{index}.png")

        def images(epoch, seed=5):
            source = ImageFolder(tmp_path, 16, 4, shuffle=False, augment=True, seed=seed)
            return next(source.epoch(epoch))[0]

        np.testing.assert_array_equal(images(0), images(0))
        assert len({image.tobytes() for image in [*images(0), *images(1), *images(0, seed=6)]}) == 12

    def test_augmentation_mirrors_half_of_the_images(self, tmp_path):
        Image.fromarray(gradient(40, 40)).save(tmp_path / "x.png")
        rng = np.random.default_rng(0)
        mirrored = 0
        for _ in range(200):
            row = decode_image(str(tmp_path / "x.png"), (8, 8), rng)[4, :, 1].astype(int)
            mirrored += row[0] > row[-1]
        assert 70 < mirrored < 130


def test_parts_of_the_data_are_not_taken_for_classes(tmp_path):
    for part in ("train", "Val"):
        fill(tmp_path / part)
    with pytest.raises(ConfigError, match=r"parts of the data, not classes: give .*Val"):
        ImageFolder(tmp_path, 8, 4)
    assert ImageFolder(tmp_path / "train", 8, 4).classes == ("cat", "dog", "eel")
    fill(tmp_path, ("other",))
    assert ImageFolder(tmp_path, 8, 4).classes == ("Val", "other", "train")


def test_classes_may_be_called_as_parts_are(tmp_path):
    assert ImageFolder(fill(tmp_path, ("test", "train")), 8, 4).classes == ("test", "train")


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, (4, 3)), (True, (4,))])
def test_the_sizes_of_batches_are_known_ahead(tmp_path, drop_last, sizes):
    assert ImageFolder(fill(tmp_path), 8, 4, drop_last=drop_last).batch_sizes() == sizes


@pytest.mark.parametrize(
    "given",
    [
        *({"size": size} for size in (0, (8,), (8, 8, 8), "8", 8.0, True, 10**30)),
        *({"batch": batch} for batch in (0, "4", 10**30)),
        *({"workers": workers} for workers in (0, 10**9, None)),
        *({name: value} for name in ("shuffle", "augment", "drop_last") for value in (1, "no", None)),
        *({"mean": mean} for mean in ("red", (1, 2), (1, 2, float("nan")), None, (10**400, 0, 0))),
        *({"root": root} for root in (None, 3)),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, given):
    with pytest.raises(ConfigError):
        ImageFolder(**{"root": fill(tmp_path), "size": 8, "batch": 4, **given})
