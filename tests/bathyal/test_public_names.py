"""Whatever a program may name is exported: by the package, and by `bathyal.layers` what its files declare."""

import importlib
import inspect
import pkgutil

import pytest

import bathyal
from bathyal import layers
from bathyal.layers import initializers, losses, optimizers
from bathyal.layers.builder import Layer
from bathyal.memory import errors


def modules(package):
    return [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    ]


def public_classes(*files):
    """The classes without an underscore that these modules define themselves, protocols left out."""
    return {
        name: found
        for module in files
        for name, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__
        and not name.startswith("_")
        and not getattr(found, "_is_protocol", False)
    }


LAYERS = {name for name, found in public_classes(*modules(layers)).items() if issubclass(found, Layer)}
RULES = set(public_classes(*modules(losses), *modules(optimizers)))
INITIALIZERS = set(public_classes(initializers))
ERRORS = {name for name, found in public_classes(errors).items() if issubclass(found, Exception)}


@pytest.mark.parametrize(
    ("found", "some"),
    [
        (LAYERS, {"Layer", "Conv2d", "ReLU", "Sequential"}),
        (RULES, {"SGD", "CrossEntropy", "Target"}),
        (INITIALIZERS, {"He", "Constant"}),
        (ERRORS, {"BathyalError", "BudgetError"}),
    ],
    ids=["layers", "losses and optimizers", "initializers", "errors"],
)
def test_the_package_exports(found, some):
    assert some <= found, "the classes are looked for where they no longer are"
    assert found <= set(bathyal.__all__)


def test_the_package_of_layers_exports_its_own():
    assert set(layers.__all__) >= LAYERS | RULES | INITIALIZERS


@pytest.mark.parametrize("package", [bathyal, layers], ids=lambda package: package.__name__)
def test_what_is_exported_is_there_once_and_is_what_its_file_defines(package):
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert hasattr(package, name), name
    assert all(getattr(bathyal, name) is getattr(layers, name) for name in {*bathyal.__all__} & {*layers.__all__})
