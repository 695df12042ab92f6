"""`python -m bathyal.depth`, the same as `bathyal depth`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bathyal depth` and return its exit status."""
    return cli.main(["depth", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
