"""Every module of `benchmarks/` can be imported and says what it takes, so that no rename breaks one unseen."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(".".join(path.relative_to(FOLDER.parent).with_suffix("").parts) for path in FOLDER.rglob("*.py"))
PROGRAMS = [name for name in MODULES if "__main__" in name or name.count(".") == 1]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name):
    before = list(sys.path)
    assert importlib.import_module(name).__doc__
    assert sys.path == before


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_says_what_it_takes(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main()
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_the_programs_are_those_that_are_there():
    assert len(PROGRAMS) == len([*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py")]) >= 8
