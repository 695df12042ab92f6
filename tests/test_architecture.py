"""The layout that the code promises: who may import whom, what is installed, what is documented."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDERS = ("memory", "layers", "models", "scheduler", "engine", "bathyal")
MAY_IMPORT = {
    "memory": set(),
    "layers": {"memory"},
    "models": {"memory", "layers"},
    "scheduler": {"memory", "layers"},
    "engine": {"memory", "layers", "models", "scheduler"},
    "bathyal": {"memory", "layers", "models", "scheduler", "engine"},
}
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LONGEST = 420


def name(path):
    return str(path.relative_to(ROOT))


def imported_folders(path):
    """The top folders that a module imports from, by resolving its relative imports."""
    package = path.relative_to(ROOT).parts[:-1]
    parts = ("bathyal", *package) if package[0] != "bathyal" else package
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                full = [*target, alias.name]
                if full[0] == "bathyal" and len(full) > 1 and full[1] in FOLDERS:
                    yield full[1]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert not any(n.split(".")[0] in FOLDERS for n in names), (
                f"{name(path)} imports {names}: use relative imports"
            )


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_import_rule(path):
    folder = path.relative_to(ROOT).parts[0]
    assert set(imported_folders(path)) - {folder} <= MAY_IMPORT[folder]


def test_packages_listed_are_the_folders_on_disk():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {
        ".".join(
            ("bathyal", *path.relative_to(ROOT).parts[:-1])
            if path.relative_to(ROOT).parts[0] != "bathyal"
            else ("bathyal",)
        )
        for path in MODULES
        if path.name == "__init__.py"
    }
    assert set(project["packages"]) == on_disk
    assert all(path.parent / "__init__.py" in MODULES for path in MODULES)


def test_type_checker_sees_every_module():
    linked = {p.name: p.resolve() for p in (ROOT / ".types" / "bathyal").iterdir()}
    expected = {p.name: p for p in (ROOT / "bathyal").iterdir() if p.name != "__pycache__"}
    expected |= {folder: ROOT / folder for folder in FOLDERS if folder != "bathyal"}
    assert linked == expected


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_public_names_have_docstrings(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module says what it decides"
    missing = []

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                public = not child.name.startswith("_")
                if public and not ast.get_docstring(child):
                    missing.append(f"{inside}{child.name}")
                if isinstance(child, ast.ClassDef) and public:
                    visit(child, f"{child.name}.")

    visit(tree, "")
    assert not missing


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_one_concept_a_file(path):
    assert len(path.read_text().splitlines()) <= LONGEST
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}


def test_no_state_at_module_level():
    """Module-level names are constants: no empty list, dict or set that code fills later."""
    found = []
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            value = getattr(node, "value", None)
            empty = isinstance(value, (ast.List, ast.Dict, ast.Set)) and not ast.unparse(value).strip("[]{}")
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and empty:
                found.append(f"{name(path)}: {ast.unparse(node)}")
            if any(isinstance(n, ast.Global) for n in ast.walk(node)):
                found.append(f"{name(path)}: global")
    assert not found


def code_blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.S)


def test_readme_opens_with_the_two_commands():
    first = code_blocks("README.md", "sh")[0].split()
    assert first == ["make", "train", "make", "test"]


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_commands_in_the_documents_exist(document):
    from bathyal.cli import parser

    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in code_blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert {w for w in words[1:] if "=" not in w} <= targets, line
            elif words[:1] == ["bathyal"]:
                parser().parse_args(words[1:])
            elif words[:2] == ["python", "-m"]:
                importlib.import_module(words[2]).parser().parse_args(words[3:])


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_python_in_the_documents_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scope = {}
    for block in code_blocks(document, "python"):
        exec(compile(block, document, "exec"), scope)
