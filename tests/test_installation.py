"""The package as Python finds it, tried in fresh folders as a new user would: editable, plain, and by way of an sdist.

Nothing is downloaded: the environments made here see the libraries of the one that runs the tests. What must be found
in each is the Bathyal that was installed there, so every script says where its modules come from.
"""

import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(tool) is None, reason=f"{tool} is not installed: pip install {tool}")
    for tool in ("pip", "setuptools")
]

ROOT = Path(__file__).parent.parent
FOLDERS = ("bathyal", "engine", "layers", "memory", "models", "scheduler")
NOT_INSTALLED = ("benchmarks", "docs", "tests")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", ".gitignore")
SCRIPT = """
import numpy as np
import bathyal as bt
import bathyal.engine

net = bt.Sequential(bt.Conv2d(4, 3), bt.ReLU(), bt.GlobalAvgPool2d(), bt.Flatten(), bt.Linear(2))
batch = np.random.default_rng(0).normal(size=(4, 1, 6, 6)), np.array([0, 1, 0, 1])
options = {"memory": "1 MiB", "backend": "reference", "costs": "analytic"}
with bt.Trainer(net, batch[0].shape, optimizer=bt.SGD(0.1), **options) as trainer:
    first, second = [result.loss for result in trainer.fit([batch, batch])]
assert second < first
print(bathyal.__file__, bathyal.engine.__file__, sep="\\n")
"""


def run(python, *arguments, folder):
    """Run Python in `folder`, with nothing in its environment that leads to the checkout under test."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(python), *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_environment(folder):
    """An empty environment that sees the libraries of this one, behind its own; return its Python."""
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    libraries = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    (site_packages / "zz_libraries.pth").write_text("\n".join(libraries))
    return folder / "bin" / "python"


def install(python, *what, folder):
    options = ("--isolated", "--quiet", "--ignore-installed", "--no-deps", "--no-build-isolation", "--no-index")
    run(python, "-m", "pip", "install", *options, "--no-compile", *what, folder=folder)


def files_below(folder):
    """Paths of all files below a folder, but for what Python compiled; links are followed."""
    return {
        str((Path(parent) / file).relative_to(folder))
        for parent, _, files in os.walk(folder, followlinks=True)
        for file in files
        if Path(parent).name != "__pycache__"
    }


def require_same_tree(printed, tree):
    """Both modules that a script has printed lie in the package below `tree`."""
    package, engine = map(Path, printed.split())
    assert package == tree / "bathyal" / "__init__.py"
    assert engine == tree / "bathyal" / "engine" / "__init__.py"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the checkout in a folder that is called as the package is."""
    folder = tmp_path_factory.mktemp("beside") / "bathyal"
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in (*FOLDERS, *NOT_INSTALLED):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module", params=["editable", "plain"])
def installation(request, clone, tmp_path_factory):
    """Python of an environment in which the clone is installed, and the folder that `bathyal` must come from."""
    folder = tmp_path_factory.mktemp(request.param)
    python = make_environment(folder)
    before = {path.name for path in clone.iterdir()}
    if request.param == "editable":
        install(python, "--editable", clone, folder=folder)
        tree = clone
    else:
        install(python, clone, folder=folder)
        (tree,) = folder.glob("lib/python*/site-packages")
        assert files_below(tree / "bathyal") == files_below(clone / "bathyal")
        assert not [path for path in (tree / "bathyal").rglob("*") if path.is_symlink()]
    left = {path.name for path in clone.iterdir()} - before
    ignored = [line.rstrip("/") for line in (clone / ".gitignore").read_text().split()]
    assert not [name for name in left if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
    return python, tree


def test_a_script_beside_the_clone_finds_the_package(installation, clone):
    """Python looks beside the script first, where the clone's folder looks like a package without code."""
    python, tree = installation
    script = clone.parent / "script.py"
    script.write_text(SCRIPT)
    require_same_tree(run(python, script, folder=clone.parent), tree)


def test_python_inside_the_clone_finds_one_whole_copy(installation, clone):
    """Started there, Python takes the checkout, whatever is installed."""
    python, _ = installation
    require_same_tree(run(python, "-c", SCRIPT, folder=clone), clone)


def test_python_elsewhere_finds_the_installed_package(installation, tmp_path):
    python, tree = installation
    require_same_tree(run(python, "-c", SCRIPT, folder=tmp_path), tree)


def test_a_wheel_built_from_the_sdist_trains(clone, tmp_path):
    """The sdist holds what the wheel needs, the wheel holds the package and nothing else, and neither holds a link."""
    build = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    run(sys.executable, "-c", build, "build_sdist", tmp_path, folder=clone)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive.getmembers())
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.glob("bathyal-*") if path.is_dir())
    package = files_below(clone / "bathyal")
    assert {name for name in files_below(unpacked) if name.startswith("bathyal/")} == {f"bathyal/{n}" for n in package}
    assert not [name for name in (*FOLDERS[1:], *NOT_INSTALLED) if (unpacked / name).exists()]

    run(sys.executable, "-c", build, "build_wheel", tmp_path, folder=unpacked)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    assert not [m.filename for m in members if m.external_attr >> 28 == 0xA], "a wheel cannot hold links"
    found = {m.filename for m in members if not m.filename.partition("/")[0].endswith(".dist-info")}
    assert found == {f"bathyal/{name}" for name in package}
    assert {"bathyal/py.typed", "bathyal/engine/backends/cuda/kernels/prelude.cuh"} <= found

    python = make_environment(tmp_path / "environment")
    install(python, wheel, folder=tmp_path)
    (tree,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    require_same_tree(run(python, "-c", SCRIPT, folder=tmp_path), tree)


def test_a_copy_that_has_lost_its_links_is_not_built(clone, tmp_path):
    """As a ZIP archive gives it: each link has become a small file that holds its target."""
    copy = tmp_path / "copy"
    shutil.copytree(clone, copy, symlinks=True)
    for link in [path for path in (copy / "bathyal").iterdir() if path.is_symlink()]:
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    python = make_environment(tmp_path / "environment")
    with pytest.raises(AssertionError, match="has lost its links"):
        install(python, copy, folder=tmp_path)
