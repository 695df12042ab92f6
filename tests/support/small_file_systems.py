"""Small file systems of every kind that a spill folder may lie on, mounted for one test; skips where none can be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_ext4(folder: Path, nbytes: int) -> Iterator[Path]:
    """An ext4 of `nbytes` in a file below `folder`; remount it read-only with `remount_read_only`."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(nbytes)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    with _mounted(folder / "ext4", ["-o", "loop", str(image)]) as mount:
        yield mount


@contextmanager
def mounted_tmpfs(folder: Path, nbytes: int) -> Iterator[Path]:
    """A file system in memory."""
    with _mounted(folder / "tmpfs", ["-t", "tmpfs", "-o", f"size={nbytes}", "none"]) as mount:
        yield mount


@contextmanager
def mounted_overlay(folder: Path) -> Iterator[Path]:
    """An overlay as containers have it; both layers lie below `folder`."""
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    options = ",".join(f"{name}dir={folder / name}" for name in ("lower", "upper", "work"))
    with _mounted(folder / "overlay", ["-t", "overlay", "-o", options, "overlay"]) as mount:
        yield mount


def remount_read_only(mount: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True, capture_output=True)


@contextmanager
def _mounted(mount: Path, arguments: list[str]) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    mount.mkdir()
    done = subprocess.run(["mount", *arguments, str(mount)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True, capture_output=True)
