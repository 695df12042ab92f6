"""`python -m bathyal.resnet2500`."""

import sys

from .commands.resnet2500 import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
