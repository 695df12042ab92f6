"""The same option has the same default in every command, and the same model is the same network."""

import argparse

import pytest

from bathyal.cli import COMMANDS, make_parser
from bathyal.models import MODELS
from bathyal.options.data import load_data
from bathyal.options.network import choose_network

DEEP = "the commands on deep networks have the paper's network and what trains it"
JUSTIFIED = {
    "--batch": DEEP,
    "--image": DEEP,
    "--memory": DEEP,
    "--strategy": DEEP,
    "--kernels": DEEP,
    "--limit": DEEP,
    "--steps": "train goes on for an epoch, compare and resnet2500 take a few",
    "--help": "",
}
ALIKE = ("train", "plan", "curve", "compare")
"""Commands on any network: their options differ in no default but that of --steps."""


def find_parsers():
    (commands,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices


def find_defaults(commands):
    """The defaults of each option, and of what it stands for where a command does not take it, by command."""
    found = {}
    for name in commands:
        parser = find_parsers()[name]
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--"):
                    found.setdefault(option, {})[name] = action.default
    for name in commands:
        for dest, default in find_parsers()[name]._defaults.items():
            option = "--" + dest.replace("_", "-")
            if option in found:
                found[option].setdefault(name, default)
    return found


def differing(commands):
    return {option for option, by in find_defaults(commands).items() if len(set(map(repr, by.values()))) > 1}


def test_every_command_is_looked_at():
    assert set(find_parsers()) == set(COMMANDS)


def test_options_of_one_name_have_one_default():
    assert differing(COMMANDS) <= set(JUSTIFIED)
    assert differing(ALIKE) <= {"--steps"}


def test_nothing_is_justified_that_does_not_differ():
    assert set(JUSTIFIED) - {"--help"} == differing(COMMANDS)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        *((model, ()) for model in (*MODELS, "resnet:1,1,1,1")),
        ("resnet18", ("--classes", "7")),
        ("vgg11", ("--batch", "3", "--image", "64")),
    ],
)
def test_plan_and_train_of_a_model_are_of_one_network(model, given):
    planned = choose_network(make_parser().parse_args(["plan", model, *given]))
    trained = load_data(make_parser().parse_args(["train", model, *given])).setup
    assert (planned.network, planned.settings, planned.classes) == (trained.network, trained.settings, trained.classes)


@pytest.mark.parametrize(("given", "sizes"), [((), (1000, 438)), (("--drop-last",), (1000,))])
def test_a_short_last_batch_is_left_out_where_that_is_asked_for(given, sizes):
    options = make_parser().parse_args(["train", "small_resnet", "--data", "digits", "--batch", "1000", *given])
    data = load_data(options)
    assert data.train.batch_sizes() == sizes
    assert data.held_out.batch_sizes() == (359,)
