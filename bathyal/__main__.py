"""The command `bathyal`, also as `python -m bathyal`."""

import sys

from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
