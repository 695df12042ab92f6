import errno
import fcntl
import logging
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from hashlib import blake2b

import numpy as np
import pytest

from bathyal.engine.checkpoints.folder import find_newest, name_checkpoint, prepare, read_checkpoint, save
from bathyal.memory.errors import CheckpointError, ConfigError

HEADER = {"graph": "3f2a", "seed": 2**64 - 1, "kernels": {"conv1": "jit:avx512"}, "threads": 2, "position": [3, 17]}
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


def arrays():
    rng = np.random.default_rng(0)
    return {
        "weight": rng.standard_normal((3, 4, 5)).astype(np.float32),
        "momentum": rng.standard_normal((7,)),
        "half": np.arange(5, dtype=np.float16),
        "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
        "complex": np.array([1 + 2j, -3j]),
        "flag": np.array([True, False, True]),
        "bytes": np.arange(256, dtype=np.uint8),
        "count": np.array(2**63 - 1, dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "schöner/name": np.array([-1], dtype=np.int8),
    }


def sources(named, pieces=1):
    for name, array in named.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        yield name, array.shape, array.dtype.str, np.array_split(flat, pieces)


def small(directory, step=1, **options):
    """A checkpoint of some hundred bytes."""
    named = {"a": np.arange(5, dtype=np.float32) + step, "b": np.zeros(0), "c": np.array(step)}
    return save(directory, step, {"seed": 1}, sources(named), **options)


def temporaries(directory):
    return [path.name for path in directory.iterdir() if path.name.endswith(".tmp")]


def same(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype and array.shape == right[name].shape
        np.testing.assert_array_equal(array, right[name])


class TestRoundTrip:
    @pytest.mark.parametrize("pieces", [1, 3])
    def test_every_dtype_and_shape(self, tmp_path, pieces):
        path = save(tmp_path, 1234, HEADER, sources(arrays(), pieces))
        assert path == tmp_path / "step-00001234.bathyal"
        checkpoint = read_checkpoint(path)
        assert (checkpoint.path, checkpoint.step, checkpoint.header) == (path, 1234, HEADER)
        assert list(checkpoint.entries) == list(arrays())
        same(dict(checkpoint.arrays()), arrays())
        same(dict(read_checkpoint(path, verify=False).arrays()), arrays())

    def test_nothing_but_a_header(self, tmp_path):
        checkpoint = read_checkpoint(save(tmp_path, 0, {}, []))
        assert (checkpoint.step, checkpoint.header, dict(checkpoint.arrays())) == (0, {}, {})

    def test_reading_into_a_target(self, tmp_path):
        checkpoint = read_checkpoint(save(tmp_path, 1, HEADER, sources(arrays())))
        for name, array in arrays().items():
            target = np.empty_like(array)
            checkpoint.read_into(name, target)
            np.testing.assert_array_equal(target, array)

    def test_reading_by_rows(self, tmp_path):
        array = np.arange(42, dtype=">i2").reshape(7, 2, 3)
        checkpoint = read_checkpoint(save(tmp_path, 1, {}, sources({"a": array, "b": array[:0]})))
        for rows in ((7,), (3, 4), (0, 1, 6), (1,) * 7):
            pieces = list(checkpoint.pieces("a", rows))
            assert [piece.shape[0] for piece in pieces] == list(rows)
            np.testing.assert_array_equal(np.concatenate(pieces), array)
            assert all(piece.dtype == array.dtype for piece in pieces)
        assert [piece.shape for piece in checkpoint.pieces("b", (0,))] == [(0, 2, 3)]
        for rows in ((6,), (4, 4), ()):
            with pytest.raises(CheckpointError, match=rf"expected {sum(rows)} rows, got shape \(7, 2, 3\)"):
                list(checkpoint.pieces("a", rows))
        with pytest.raises(CheckpointError, match="an array 'z'"):
            list(checkpoint.pieces("z", (7,)))

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("f")])
    def test_any_bytes_like_piece(self, tmp_path, kind):
        data = np.arange(4, dtype=np.float32).tobytes()
        checkpoint = read_checkpoint(save(tmp_path, 1, {}, [("a", (4,), np.float32, [kind(data)])]))
        assert dict(checkpoint.arrays())["a"].tolist() == [0, 1, 2, 3]

    def test_an_empty_view(self, tmp_path):
        empty = np.zeros((0, 3), np.float32)
        checkpoint = read_checkpoint(
            save(tmp_path, 1, {}, [("a", (0, 3), "f4", [empty.data]), ("b", (0, 3), "f4", [])])
        )
        same(dict(checkpoint.arrays()), {"a": empty, "b": empty})

    @pytest.mark.parametrize(
        ("name", "target", "message"),
        [
            ("z", np.zeros(5, np.float32), "an array 'z', got 3 others"),
            ("a", np.zeros(4, np.float32), r"float32 \(4,\), as the target has it, got float32 \(5,\) in the file"),
            ("a", np.zeros(5, ">f4"), "expected >f4"),
            ("a", np.zeros(10, np.float32)[::2], "C-contiguous, writable"),
        ],
    )
    def test_targets_that_do_not_fit(self, tmp_path, name, target, message):
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(small(tmp_path)).read_into(name, target)

    def test_the_directory_is_made(self, tmp_path):
        assert small(tmp_path / "runs/first").parent == tmp_path / "runs/first"


class TestStreaming:
    def test_arrays_and_pieces_are_drawn_one_by_one(self, tmp_path, monkeypatch):
        events = []
        written = os.write

        def recorded(descriptor, data):
            if len(data) == 1000:
                events.append("write")
            return written(descriptor, data)

        def pieces(name):
            for index in range(3):
                events.append(f"{name}{index}")
                yield bytes(1000)

        def lazily():
            for name in "ab":
                yield name, (3000,), "u1", pieces(name)

        monkeypatch.setattr(os, "write", recorded)
        save(tmp_path, 1, {}, lazily())
        assert events == [event for name in "ab" for index in range(3) for event in (f"{name}{index}", "write")]

    def test_short_writes_are_continued(self, tmp_path, monkeypatch):
        written = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: written(descriptor, data[:7]))
        path = save(tmp_path, 1, HEADER, sources(arrays()))
        same(dict(read_checkpoint(path).arrays()), arrays())


class TestDamage:
    @pytest.mark.parametrize("flip", [lambda position: 1 << position % 8, lambda position: 0xFF])
    def test_every_flipped_byte_is_detected(self, tmp_path, flip):
        path = small(tmp_path)
        whole = path.read_bytes()
        for position in range(len(whole)):
            flipped = bytearray(whole)
            flipped[position] ^= flip(position)
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=re.escape(str(path))):
                read_checkpoint(path)

    def test_every_flipped_byte_of_the_data_is_detected_when_it_is_read(self, tmp_path):
        path = small(tmp_path)
        whole = path.read_bytes()
        checkpoint = read_checkpoint(path)
        entry = checkpoint.entries["a"]
        for position in range(entry.offset, entry.offset + entry.nbytes):
            flipped = bytearray(whole)
            flipped[position] ^= 0xFF
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match="the stored digest of array 'a'"):
                dict(read_checkpoint(path, verify=False).arrays())
            with pytest.raises(CheckpointError, match="the stored digest of array 'a'"):
                list(checkpoint.pieces("a", (5,)))

    def test_every_truncation_is_detected(self, tmp_path):
        path = small(tmp_path)
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            for verify in (True, False):
                with pytest.raises(CheckpointError, match="damaged"):
                    read_checkpoint(path, verify)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda whole: b"", "got an empty file"),
            (lambda whole: whole + b"\0", r"got \d+. The file is damaged"),
            (lambda whole: whole + whole, "The file is damaged"),
            (lambda whole: b"PK\3\4" + whole[4:], "a Bathyal checkpoint, which begins with"),
            (lambda whole: bytes(len(whole)), "a Bathyal checkpoint, which begins with"),
        ],
    )
    def test_other_files(self, tmp_path, change, message):
        path = small(tmp_path)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(path)

    def test_a_record_left_out_or_from_another_file_is_detected(self, tmp_path):
        first, second = small(tmp_path, 1), small(tmp_path, 2)
        entry = read_checkpoint(first).entries["a"]
        after = entry.offset + entry.nbytes + 32
        begin = first.read_bytes().index(b"ARR\n")
        mixed, shorter = bytearray(first.read_bytes()), bytearray(first.read_bytes())
        mixed[begin:after] = second.read_bytes()[begin:after]
        del shorter[begin:after]
        for content in (mixed, shorter):
            first.write_bytes(content)
            with pytest.raises(CheckpointError, match="the stored digest of the whole file"):
                read_checkpoint(first)

    def preamble(self, version=1, header_nbytes=10):
        start = struct.pack("<8sIQ", b"BATHYAL\n", version, header_nbytes)
        return start + blake2b(start, digest_size=32).digest()

    def test_a_newer_version_is_named(self, tmp_path):
        path = name_checkpoint(tmp_path, 1)
        path.write_bytes(self.preamble(version=2) + b"of another layout")
        with pytest.raises(CheckpointError, match=r"expected version 1, got version 2.*upgrade"):
            read_checkpoint(path)

    def test_huge_lengths_allocate_nothing(self, tmp_path):
        path = small(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(self.preamble(header_nbytes=2**63) + whole[52:])
        with pytest.raises(CheckpointError, match=f"expected {2**63} bytes of the header"):
            read_checkpoint(path)
        begin = whole.index(b"ARR\n")
        path.write_bytes(whole[: begin + 4] + b"\xff\xff\xff\xff" + whole[begin + 8 :])
        with pytest.raises(CheckpointError, match="an array or the end"):
            read_checkpoint(path)
        # A description with a right digest, of an array that the file is too short for.
        text = b'{"name": "a", "shape": [1099511627776], "dtype": "<f8", "nbytes": 8796093022208}'
        record = b"ARR\n" + struct.pack("<I", len(text)) + text
        path.write_bytes(whole[:begin] + record + blake2b(record, digest_size=32).digest() + bytes(100))
        for verify in (True, False):
            with pytest.raises(CheckpointError, match="expected 8796093022208 bytes of array 'a'"):
                read_checkpoint(path, verify)

    @pytest.mark.parametrize(
        "text",
        [
            b"not JSON",
            b"[]",
            b'{"name": "a"}',
            b"[" * 5000,
            b'{"name": "a", "shape": [-1], "dtype": "<f4", "nbytes": -4}',
            b'{"name": "a", "shape": [2.0], "dtype": "<f4", "nbytes": 8}',
            b'{"name": "a", "shape": [1], "dtype": "O", "nbytes": 8}',
            b'{"name": "a", "shape": [1], "dtype": "f4,f4", "nbytes": 8}',
            b'{"name": "a", "shape": [1], "dtype": "nonsense", "nbytes": 8}',
            b'{"name": "a", "shape": [1], "dtype": "<f4", "nbytes": 8}',
        ],
    )
    def test_descriptions_that_make_no_sense(self, tmp_path, text):
        path = small(tmp_path)
        begin = path.read_bytes().index(b"ARR\n")
        record = b"ARR\n" + struct.pack("<I", len(text)) + text
        path.write_bytes(path.read_bytes()[:begin] + record + blake2b(record, digest_size=32).digest() + bytes(100))
        with pytest.raises(CheckpointError, match="array record 0"):
            read_checkpoint(path)

    def test_files_that_cannot_be_opened(self, tmp_path):
        with pytest.raises(CheckpointError, match="No such file"):
            read_checkpoint(tmp_path / "missing")
        with pytest.raises(CheckpointError, match="expected a file"):
            read_checkpoint(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(CheckpointError, match="expected a file, got something else"):
            read_checkpoint(tmp_path / "pipe")

    def test_a_file_that_shrinks_after_it_was_checked(self, tmp_path):
        checkpoint = read_checkpoint(small(tmp_path))
        checkpoint.path.write_bytes(b"")
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.read_into("a", np.zeros(5, np.float32))
        checkpoint.path.unlink()
        with pytest.raises(CheckpointError, match="No such file"):
            dict(checkpoint.arrays())


class TestNewest:
    def test_none_yet(self, tmp_path):
        assert find_newest(tmp_path) == find_newest(tmp_path / "missing") == (None, [])

    def test_the_highest_step_counts_not_the_name_or_date(self, tmp_path):
        for step in (99_999_999, 100_000_000, 7):
            small(tmp_path, step, keep=9)
        (tmp_path / "step-9.bathyal").touch()
        (tmp_path / "step-0000000999999999.bathyal").touch()
        (tmp_path / "step-99999999999.bathyal.bak").touch()
        checkpoint, errors = find_newest(tmp_path)
        assert checkpoint.step == 100_000_000 and errors == []

    def test_damaged_ones_are_named_and_the_one_before_is_used(self, tmp_path, caplog):
        paths = [small(tmp_path, step, keep=3) for step in (1, 2, 3)]
        paths[2].write_bytes(paths[2].read_bytes()[:-1])
        data = bytearray(paths[1].read_bytes())
        data[read_checkpoint(paths[1]).entries["a"].offset] ^= 1
        paths[1].write_bytes(data)
        with caplog.at_level(logging.WARNING):
            checkpoint, errors = find_newest(tmp_path)
        assert checkpoint.step == 1
        assert [error.where for error in errors] == [str(paths[2]), str(paths[1])]
        assert all(path.name in caplog.text for path in paths[1:])

    def test_all_damaged(self, tmp_path):
        small(tmp_path).write_bytes(b"")
        name_checkpoint(tmp_path, 2).mkdir()
        checkpoint, errors = find_newest(tmp_path)
        assert checkpoint is None and len(errors) == 2

    def test_not_a_directory(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match="a directory to read, got Not a directory"):
            find_newest(tmp_path / "file")


class TestKeep:
    def kept(self, directory):
        return sorted(read_checkpoint(path).step for path in directory.glob("*.bathyal"))

    def test_the_newest_two_stay(self, tmp_path):
        for step in range(5):
            small(tmp_path, step)
        assert self.kept(tmp_path) == [3, 4]
        small(tmp_path, 5, keep=1)
        assert self.kept(tmp_path) == [5]

    def test_the_same_step_is_replaced(self, tmp_path):
        small(tmp_path, 1)
        save(tmp_path, 1, {"seed": 2}, [])
        assert self.kept(tmp_path) == [1]
        assert read_checkpoint(name_checkpoint(tmp_path, 1)).header == {"seed": 2}

    def test_later_steps_do_not_push_out_whole_ones(self, tmp_path):
        small(tmp_path, 1)
        small(tmp_path, 9).write_bytes(b"damaged")
        for step in (2, 3):
            small(tmp_path, step)
        assert find_newest(tmp_path)[0].step == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-0000000{step}.bathyal" for step in (2, 3, 9)]

    def test_older_ones_go_only_when_the_new_one_is_durable(self, tmp_path, monkeypatch):
        small(tmp_path, 1)
        order = []
        flush, remove = os.fsync, type(tmp_path).unlink

        def flushed(descriptor):
            order.append("file" if os.path.isfile(f"/proc/self/fd/{descriptor}") else "directory")  # noqa: PTH113
            flush(descriptor)

        def removed(path, missing_ok=False):
            order.append(path.name)
            remove(path, missing_ok)

        monkeypatch.setattr(os, "fsync", flushed)
        monkeypatch.setattr(type(tmp_path), "unlink", removed)
        small(tmp_path, 2, keep=1)
        assert order == ["file", "directory", "step-00000001.bathyal"]

    @pytest.mark.parametrize("wrong", [{"step": -1}, {"step": 1.5}, {"keep": 0}])
    def test_numbers_out_of_range(self, tmp_path, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            small(tmp_path, **wrong)
        assert list(tmp_path.iterdir()) == []


class TestCallersFaults:
    @pytest.mark.parametrize(
        ("header", "given", "message"),
        [
            ({}, [("a", (3,), "f4", [bytes(8)])], "array 'a': expected pieces of 12 bytes together, got 8"),
            ({}, [("a", (3,), "f4", [bytes(8)] * 2)], "expected pieces of 12 bytes together, got more than 12"),
            ({}, [("a", (1,), "u1", [b"x"])] * 2, "each array once, got 'a' twice"),
            ({}, [("a", (1,), "O", [bytes(8)])], "a numeric dtype, got object"),
            ({}, [("a", (1,), "U1", [bytes(4)])], "a numeric dtype, got <U1"),
            ({"seed": np.int64(1)}, [], "a header that JSON can hold"),
        ],
    )
    def test_nothing_is_left_of_it(self, tmp_path, header, given, message):
        small(tmp_path, 1)
        with pytest.raises(CheckpointError, match=message):
            save(tmp_path, 2, header, given)
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.bathyal"]

    def test_an_error_while_drawing_passes_through(self, tmp_path):
        def broken():
            yield bytes(4)
            raise OSError(errno.EIO, "the tier failed")

        small(tmp_path, 1)
        with pytest.raises(OSError, match="the tier failed"):
            save(tmp_path, 2, {}, [("a", (8,), "u1", broken())])
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.bathyal"]


class TestStorageFaults:
    def big(self, step):
        part = 2**18
        return {
            "step": step,
            "header": {},
            "arrays": ((f"a{index}", (part,), "u1", [bytes(part)]) for index in range(4)),
        }

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    @pytest.mark.parametrize("room", [0, 100, 2**19, 2**20])
    def test_a_write_that_fails(self, tmp_path, monkeypatch, code, room):
        small(tmp_path, 1)
        written, total = os.write, 0

        def limited(descriptor, data):
            nonlocal total
            if total + len(data) > room:
                raise OSError(code, os.strerror(code))
            total += len(data)
            return written(descriptor, data)

        monkeypatch.setattr(os, "write", limited)
        with pytest.raises(CheckpointError, match=re.escape(os.strerror(code))) as caught:
            save(tmp_path, **self.big(2))
        monkeypatch.undo()
        whole = save(tmp_path / "elsewhere", **self.big(2)).stat().st_size
        assert caught.value.where == str(name_checkpoint(tmp_path, 2))
        assert f"({whole} bytes)" in caught.value.expected and "bytes) free" in caught.value.actual
        assert temporaries(tmp_path) == []
        assert find_newest(tmp_path)[0].step == 1

    @pytest.mark.parametrize("failing", [1, 2])
    def test_a_flush_that_fails(self, tmp_path, monkeypatch, failing):
        small(tmp_path, 1)
        calls = 0

        def flush(descriptor):
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", flush)
        with pytest.raises(CheckpointError, match="Input/output error"):
            small(tmp_path, 2, keep=1)
        assert temporaries(tmp_path) == []
        assert read_checkpoint(name_checkpoint(tmp_path, 1)).step == 1

    def test_a_directory_that_is_a_file(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=r"file/step-00000001\.bathyal: expected to write .*bytes\) free"):
            small(tmp_path / "file")

    def test_a_checkpoint_that_is_a_directory(self, tmp_path):
        (name_checkpoint(tmp_path, 1) / "inside").mkdir(parents=True)
        with pytest.raises(CheckpointError, match="Is a directory"):
            small(tmp_path, 1)
        assert temporaries(tmp_path) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_directory_without_permission(self, tmp_path):
        small(tmp_path, 1)
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(CheckpointError, match="Permission denied"):
                small(tmp_path, 2)
            assert find_newest(tmp_path)[0].step == 1
        finally:
            tmp_path.chmod(0o700)

    @pytest.fixture
    def disk(self, tmp_path):
        """A file system of 512 KiB."""
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
        yield tmp_path
        subprocess.run(["umount", tmp_path], check=True)

    @root_only
    def test_a_full_disk(self, disk):
        small(disk, 1)
        with pytest.raises(CheckpointError, match=r"No space left on device; 50\d\.0 KiB .*Free some space"):
            save(disk, **self.big(2))
        assert temporaries(disk) == []
        assert find_newest(disk)[0].step == 1
        small(disk, 2)
        assert find_newest(disk)[0].step == 2

    @root_only
    def test_a_read_only_disk(self, disk):
        small(disk, 1)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            small(disk, 2)
        assert find_newest(disk)[0].step == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from bathyal.engine.checkpoints.folder import save

directory, first, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def pieces(step):
    for piece in range(40):
        if moment == f"piece {piece}":
            die()
        yield np.full(1000, step, np.int64)

if moment == "before the flush":
    os.fsync = die
if moment == "before the rename":
    Path.replace = die
if moment == "after the rename":
    rename = Path.replace
    Path.replace = lambda *paths: (rename(*paths), die())
if moment == "before the removal":
    Path.unlink = die
print("ready", flush=True)
step = first
while True:
    save(directory, step, {"step": step}, [(name, (40000,), "i8", pieces(step)) for name in "ab"])
    step += 1
"""


def start(directory, first, moment="random"):
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory), str(first), moment], stdout=subprocess.PIPE, text=True
    )


def whole(directory):
    checkpoint, errors = find_newest(directory)
    assert errors == []
    for _, array in checkpoint.arrays():
        assert (array == checkpoint.step).all()
    assert checkpoint.header == {"step": checkpoint.step}
    return checkpoint.step


def first(directory):
    save(directory, 1, {"step": 1}, [(name, (10,), "i8", [np.full(10, 1, np.int64)]) for name in "ab"])


class TestKilled:
    @pytest.mark.parametrize(
        ("moment", "step", "left"),
        [
            ("piece 0", 1, 1),
            ("piece 20", 1, 1),
            ("before the flush", 1, 1),
            ("before the rename", 1, 1),
            ("after the rename", 2, 0),
            ("before the removal", 3, 0),
        ],
    )
    def test_at_each_stage(self, tmp_path, moment, step, left):
        first(tmp_path)
        with start(tmp_path, 2, moment) as process:
            assert process.wait(60) == -signal.SIGKILL
        assert whole(tmp_path) == step
        assert len(temporaries(tmp_path)) == left
        small(tmp_path, step + 1)
        assert temporaries(tmp_path) == []

    def test_at_random_moments(self, tmp_path):
        first(tmp_path)
        rng = random.Random(0)
        reached = 1
        for _ in range(12):
            with start(tmp_path, reached + 1) as process:
                assert process.stdout.readline() == "ready\n"
                time.sleep(rng.uniform(0, 0.05))
                process.kill()
            assert whole(tmp_path) >= reached
            reached = whole(tmp_path)
        small(tmp_path, reached + 1)
        assert temporaries(tmp_path) == []


class TestTwoProcesses:
    def test_a_temporary_in_use_is_left_alone(self, tmp_path):
        def pieces():
            yield bytes(4)
            small(tmp_path, 7)  # Another save, while this one is half way.
            assert len(temporaries(tmp_path)) == 1
            yield bytes(4)

        save(tmp_path, 8, {}, [("a", (8,), "u1", pieces())])
        assert temporaries(tmp_path) == []
        assert find_newest(tmp_path)[0].step == 8

    def test_a_temporary_of_another_process_in_use_is_left_alone(self, tmp_path):
        name = ".step-00000003.1-0123456789abcdef.tmp"
        code = (
            "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
        )
        arguments = [sys.executable, "-c", code, str(tmp_path / name)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            small(tmp_path, 1)
            assert temporaries(tmp_path) == [name]
            process.kill()
        small(tmp_path, 2)
        assert temporaries(tmp_path) == []

    def test_only_our_temporaries_are_removed(self, tmp_path):
        others = ["notes.tmp", ".step-1.tmp", ".step-00000001.12-xyz.tmp"]
        for name in others:
            (tmp_path / name).touch()
        (tmp_path / ".step-00000001.12-0123456789abcdef.tmp").touch()
        small(tmp_path)
        assert sorted(temporaries(tmp_path)) == sorted(others)

    def test_a_temporary_removed_before_its_lock_is_made_anew(self, tmp_path, monkeypatch):
        locked = fcntl.flock
        lost = []

        def late(descriptor, operation):
            if not lost:
                lost.extend(temporaries(tmp_path))
                (tmp_path / lost[0]).unlink()
            locked(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        small(tmp_path)
        assert len(lost) == 1 and find_newest(tmp_path)[0].step == 1

    def test_a_file_system_without_locks(self, tmp_path, monkeypatch):
        def refuse(descriptor, operation):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        stray = ".step-00000001.12-0123456789abcdef.tmp"
        (tmp_path / stray).touch()
        small(tmp_path)
        assert find_newest(tmp_path)[0].step == 1 and temporaries(tmp_path) == [stray]


def test_preparing_makes_the_directory_and_leaves_nothing_in_it(tmp_path):
    prepare(tmp_path / "deep" / "run")
    assert list((tmp_path / "deep" / "run").iterdir()) == []


def test_preparing_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(CheckpointError, match="to write into"):
            prepare(path)
    assert (tmp_path / "file").read_text() == "mine"
