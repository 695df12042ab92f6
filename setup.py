"""Refuses to build from a copy that has lost its links, as ZIP archives and file systems without links do.

`bathyal/` reaches the other folders by links. Where they are plain files the package would be built without its parts.
All else that a build needs to know stands in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup

FOLDERS = ("engine", "layers", "memory", "models", "scheduler")

lost = [name for name in FOLDERS if not (Path(__file__).parent / "bathyal" / name / "__init__.py").is_file()]
if lost:
    raise SystemExit(
        f"bathyal/{lost[0]} is no folder and no link to one: this copy of the source has lost its links, as ZIP "
        "archives do. Take a clone (git clone, with core.symlinks on), a .tar.gz archive, an sdist or a wheel."
    )

setup()
