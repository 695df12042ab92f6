"""Types of arguments that several commands take: names of files and folders, which an empty text is not."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_name(text: str) -> str:
    """Return a name that was given on the command line; refuse an empty one."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def parse_file_name(text: str) -> Path:
    """Return the name of a file that was given on the command line; refuse an empty one."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file, got an empty text")
    return Path(text)


def parse_folder(text: str) -> Path:
    """Return the name of a folder that was given on the command line; refuse an empty one."""
    return Path(parse_name(text))


def add_json_argument(command: argparse.ArgumentParser) -> None:
    """Add `--json`, which every command has."""
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
