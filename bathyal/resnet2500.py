"""`python -m bathyal.resnet2500`, the same as `bathyal resnet2500`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bathyal resnet2500` and return its exit status."""
    return cli.main(["resnet2500", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
