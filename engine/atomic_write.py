"""Writing a small file so that nobody ever sees half of it: aside, synced, renamed.

Decides nothing about the content. A link is followed, so that it stays one; what is no regular file is not replaced.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ..memory.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, or leave what was there.

    Raises:
        ConfigError: there is something at `path` that is no regular file.
        OSError: it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise ConfigError(str(path), "a file to write, or a name that is free", "something that is no regular file")
    aside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the name that was asked for, not the one aside
        raise
