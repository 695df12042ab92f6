"""`python -m bathyal.depth`."""

import sys

from .commands.depth import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
