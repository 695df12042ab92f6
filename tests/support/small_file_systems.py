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
def mount_ext4(folder: Path, nbytes: int) -> Iterator[Path]:
    """Mount an ext4 of `nbytes` that lies in a file below `folder`."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(nbytes)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    with _mount(folder / "ext4", ["-o", "loop", str(image)]) as mount:
        yield mount


@contextmanager
def mount_tmpfs(folder: Path, nbytes: int) -> Iterator[Path]:
    """Mount a file system in memory."""
    with _mount(folder / "tmpfs", ["-t", "tmpfs", "-o", f"size={nbytes}", "none"]) as mount:
        yield mount


@contextmanager
def mount_overlay(folder: Path) -> Iterator[Path]:
    """Mount an overlay as containers have it, with both layers below `folder`."""
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    options = ",".join(f"{name}dir={folder / name}" for name in ("lower", "upper", "work"))
    with _mount(folder / "overlay", ["-t", "overlay", "-o", options, "overlay"]) as mount:
        yield mount


def remount_read_only(mount: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True, capture_output=True)


@contextmanager
def _mount(mount: Path, arguments: list[str]) -> Iterator[Path]:
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
