"""The layout that the code promises: who may import whom, what is installed, what is documented."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from bathyal.engine.backends.registry import BACKENDS, unregister_backend
from bathyal.engine.operations import unregister_operation
from bathyal.layers.kinds import KINDS
from bathyal.scheduler.strategies import STRATEGIES, unregister_strategy

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
MODULES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if folder != "bathyal" or not set(path.relative_to(ROOT / folder).parts).intersection(FOLDERS)
)
LONGEST = 340
BELOW_SCHEDULER = {
    "plan": set(),
    "chain": set(),
    "layout": {"plan", "chain"},
    "blocks": {"plan", "chain", "layout"},
    "offload": {"plan", "chain", "layout"},
    "strategies": {"plan", "chain", "layout", "blocks", "offload"},
    "": {"plan", "chain", "layout", "blocks", "offload", "strategies"},
}
"""What each folder of the scheduler may import from the others; "" are the files that lie in none."""

IRREGULAR = re.compile(
    "begun|bought|broken|brought|built|caught|chosen|dealt|done|drawn|driven|found|forgotten|frozen|given|gone|grown|"
    "heard|held|hidden|kept|known|laid|led|left|lent|lost|made|meant|met|overwritten|paid|seen|sent|shaken|shown|"
    "shrunk|sold|sought|spent|stolen|struck|taken|thought|thrown|told|torn|understood|undone|withheld|won|worn|"
    "woven|written"
)
"""Participles that do not end in "ed"; all words that do are taken for participles too, but for those below."""
NO_PARTICIPLES = {"embed", "exceed", "feed", "need", "proceed", "seed", "speed"}
ADJECTIVES = {"aligned", "fused", "hidden", "pooled", "saved", "squared"}
"""Participles that begin the name of what a function returns, as in `squared_error`, where another word follows."""

WRAPPERS = {"MappingProxyType", "Registry", "frozenset", "tuple"}
"""What makes a constant of a list, dict or set that is handed to it."""
MAKERS = {"ChainMap", "Counter", "OrderedDict", "bytearray", "defaultdict", "deque", "dict", "fromkeys", "list", "set"}
MAKERS |= {"sorted", "split", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary"}
"""Functions and methods that return something that can be changed."""
READERS = {"all", "any", "join", "len", "max", "min", "sum"}
"""Functions and methods that keep nothing of what they are handed."""
CONSTANT_BY_CUSTOM = {"__all__", "_fields_"}
"""Names that Python and ctypes read and that must be lists, or usually are."""


def name(path):
    return str(path.relative_to(ROOT))


def imported_modules(path):
    """The modules of the package that a module imports from, as their parts, by resolving its relative imports."""
    package = path.relative_to(ROOT).parts[:-1]
    parts = ("bathyal", *package) if package[0] != "bathyal" else package
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield [*target, alias.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert not any(n.split(".")[0] in (*FOLDERS, "tests", "benchmarks") for n in names), (
                f"{name(path)} imports {names}: use relative imports"
            )


def named_imports(tree):
    """What a module imports by a name that it has as text: the arguments of `import_module` and of `__import__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            (named, *_) = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield "".join(part.value for part in ast.walk(named) if isinstance(getattr(part, "value", None), str))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_module_of_the_package_is_imported_by_its_name_as_text(path):
    """Such an import would pass the rules below unseen."""
    for text in named_imports(ast.parse(path.read_text())):
        assert text and text.split(".")[0] not in ("", "bathyal", *FOLDERS, "tests", "benchmarks"), text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('importlib.import_module("bathyal.engine")', "bathyal.engine"),
        ('import_module(f"bathyal.{name}")', "bathyal."),
        ('__import__(name="bathyal")', "bathyal"),
        ("import_module(name)", ""),
    ],
)
def test_what_counts_as_an_import_by_name(source, expected):
    assert list(named_imports(ast.parse(source))) == [expected]


def imported_folders(path):
    """The top folders that a module imports from."""
    return {full[1] for full in imported_modules(path) if full[0] == "bathyal" and full[1] in FOLDERS}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_import_rule(path):
    folder = path.relative_to(ROOT).parts[0]
    assert set(imported_folders(path)) - {folder} <= MAY_IMPORT[folder]


@pytest.mark.parametrize("path", [path for path in MODULES if path.is_relative_to(ROOT / "scheduler")], ids=name)
def test_import_rule_below_the_scheduler(path):
    def folder(parts):
        return parts[0] if parts[0] in BELOW_SCHEDULER else ""

    own = folder(path.relative_to(ROOT / "scheduler").parts)
    imported = {folder(full[2:]) for full in imported_modules(path) if full[:2] == ["bathyal", "scheduler"]}
    assert imported - {own} <= BELOW_SCHEDULER[own]


def test_the_rule_below_the_scheduler_names_the_folders_on_disk():
    folders = {path.parent.name for path in (ROOT / "scheduler").glob("*/__init__.py")}
    assert folders == set(BELOW_SCHEDULER) - {""}


def test_the_chain_knows_no_graph():
    for path in (ROOT / "scheduler" / "chain").glob("*.py"):
        assert "layers" not in imported_folders(path), name(path)


def test_the_checkout_is_the_package():
    """`bathyal/` holds a link to each folder, so that the checkout and an installation have the same imports."""
    for folder in FOLDERS[:-1]:
        link = ROOT / "bathyal" / folder
        assert link.is_symlink() and str(link.readlink()) == f"../{folder}"
    assert all(path.parent / "__init__.py" in MODULES for path in MODULES)


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


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=name)
def test_a_package_says_in_a_sentence_what_is_in_it(path):
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    assert len(first.split()) >= 4 and first.endswith("."), first


def is_named_by_a_participle(function):
    """Whether the first word of a function's name is a participle; properties are attributes, which may be."""
    decorators = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
    own = function.name.strip("_")
    word = own.split("_")[0]
    is_one = IRREGULAR.fullmatch(word) or (word.endswith("ed") and word not in NO_PARTICIPLES)
    is_adjective = word in ADJECTIVES and own != word
    return bool(is_one) and not is_adjective and not decorators & {"property", "cached_property", "setter"}


def test_functions_are_named_by_verbs_and_not_by_participles():
    found = {
        f"{name(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_named_by_a_participle(node)
    }
    assert not found, "functions are verbs in the imperative: `place`, not `placed`"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def placed(): ...", True),
        ("def _taken_over(): ...", True),
        ("async def held(): ...", True),
        ("def place(): ...", False),
        ("def feed(): ...", False),
        ("def squared(): ...", True),
        ("def _squared_error(): ...", False),
        ("@property\ndef closed(self): ...", False),
        ("@functools.cached_property\ndef planned(self): ...", False),
    ],
)
def test_what_counts_as_a_participle(source, expected):
    assert is_named_by_a_participle(ast.parse(source).body[0]) is expected


def can_be_changed(node, wrapped=False):
    """Whether an expression makes a list, dict or set that nothing wraps; `wrapped` if a wrapper takes it itself."""
    if isinstance(node, (ast.Lambda, ast.Subscript)):
        return False  # a function, or a type such as Callable[[int], str]
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func).split(".")[-1]
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if function in WRAPPERS or function in READERS:
            return any(can_be_changed(argument, wrapped=True) for argument in arguments)
        return (function in MAKERS and not wrapped) or any(map(can_be_changed, arguments))
    is_display = isinstance(node, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))
    if is_display and not wrapped:
        return True
    parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    # What a wrapper is handed may be put together from several: both sides of {1} | {2}, and of an `if`.
    still = wrapped and isinstance(node, (ast.BinOp, ast.IfExp, ast.Starred))
    return any(can_be_changed(part, still) for part in parts)


def assignments(statements):
    """Names and values of the assignments of a module and of its classes, outside functions."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield ", ".join(map(ast.unparse, targets)), node.value
        yield from assignments([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def test_no_state_at_module_level():
    """Module-level names are constants: no list, dict or set that code could change."""
    found = {
        f"{name(path)}: {target}"
        for path in MODULES
        for target, value in assignments(ast.parse(path.read_text()).body)
        if target not in CONSTANT_BY_CUSTOM and can_be_changed(value)
    }
    assert not found, f"wrap it in one of {sorted(WRAPPERS)}"


def test_no_function_assigns_to_a_module_level_name():
    nodes = ((path, node) for path in MODULES for node in ast.walk(ast.parse(path.read_text())))
    assert not [name(path) for path, node in nodes if isinstance(node, ast.Global)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{}", True),
        ('{"a": 1}', True),
        ("dict()", True),
        ("[1]", True),
        ("[x for x in y]", True),
        ("{x: 1 for x in y}", True),
        ("dict.fromkeys(y)", True),
        ("defaultdict(int)", True),
        ("weakref.WeakValueDictionary()", True),
        ("([],)", True),
        ("Record(rows=[])", True),
        ("MappingProxyType({1: []})", True),
        ("tuple([] for x in y)", True),
        ("x if y else []", True),
        ("(1, 2)", False),
        ("MappingProxyType({**a, 1: (2,)})", False),
        ("MappingProxyType(dict(a=1))", False),
        ("frozenset({1} | {2})", False),
        ("tuple(sorted(x))", False),
        ('Registry("thing", {x.name: x for x in y})', False),
        ("max([1, 2])", False),
        ("Callable[[int], str]", False),
        ("lambda: []", False),
    ],
)
def test_what_counts_as_state(source, expected):
    assert can_be_changed(ast.parse(source, mode="eval").body) is expected


def code_blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.S)


def test_readme_opens_with_the_two_commands():
    first = code_blocks("README.md", "sh")[0].split()
    assert first == ["make", "train", "make", "test"]


def named_strategies(text):
    """What stands in the first column of a document's table of strategies, and behind it as a mode of the same."""
    (table,) = re.findall(r"^\| name \| what it does \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    for row in table.splitlines():
        first, described = re.fullmatch(r"\| `([a-z-]+)[:A-Z]*` \| (.*) \|", row).groups()
        yield first
        yield from re.findall(rf"`({first}-[a-z]+)`", described)


def test_the_readme_names_every_strategy():
    found = list(named_strategies((ROOT / "README.md").read_text()))
    assert sorted(found) == sorted(STRATEGIES)


def test_what_counts_as_a_named_strategy():
    table = "| name | what it does |\n|---|---|\n| `a` | not `b`, but `a-b` |\n| `c:K` | text |\n\nmore `d`\n"
    assert list(named_strategies(table)) == ["a", "a-b", "c"]


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_commands_in_the_documents_exist(document):
    from bathyal.cli import make_parser

    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in code_blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert {w for w in words[1:] if "=" not in w} <= targets, line
            elif words[:1] == ["bathyal"]:
                make_parser().parse_args(words[1:])
            elif words[:2] == ["python", "-m"]:
                command = importlib.import_module(words[2]).__name__.removeprefix("bathyal.")
                make_parser().parse_args([command, *words[3:]])


@pytest.fixture
def additions():
    """Take back what the documents' examples add."""
    registries = ((KINDS, unregister_operation), (STRATEGIES, unregister_strategy), (BACKENDS, unregister_backend))
    before = [set(registry) for registry, _ in registries]
    yield
    for (registry, unregister), names in zip(registries, before, strict=True):
        for added in set(registry) - names:
            unregister(added)


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_python_in_the_documents_runs(document, tmp_path, monkeypatch, additions):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scope = {"__name__": document}
    for block in code_blocks(document, "python"):
        exec(compile(block, document, "exec", dont_inherit=True), scope)
