"""Every module of `benchmarks/` can be imported and says what it takes, so that no rename breaks one unseen."""

import ast
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


@pytest.mark.parametrize("name", MODULES)
def test_what_functions_import_is_there(name):
    """`gpu_check` imports within its sections, which run only where a GPU is."""
    source = (FOLDER.parent / name.replace(".", "/")).with_suffix(".py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] in ("bathyal", "tests"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
