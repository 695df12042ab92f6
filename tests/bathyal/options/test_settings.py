"""From the options of the command line to settings and back."""

import argparse
from dataclasses import fields

import pytest

import bathyal as bt
from bathyal.cli import COMMANDS, make_parser
from bathyal.engine.settings import Settings
from bathyal.options.settings import list_setting_options, read_settings, write_setting_arguments

SHAPE = (2, 3, 32, 32)
OTHERS = [
    "--memory=3 MiB", "--strategy=offload:lru", "--spill-dir=/x", "--spill-size=1 GB", "--link=1 GB,2 GB",
    "--kernels=fixed", "--device=reference", "--no-cuda-graphs", "--costs=analytic", "--dtype=float64", "--threads=3",
    "--seed=9",
]  # fmt: skip


def parse(*arguments):
    return make_parser().parse_args(["plan", "resnet18", *arguments])


def test_every_setting_has_an_option():
    named = {option.name for option in list_setting_options()}
    assert {"input_shape", "optimizer", "loss", *named} == {field.name for field in fields(Settings)}


def test_what_is_not_given_is_what_settings_have():
    assert read_settings(parse("--momentum=0"), SHAPE) == Settings(input_shape=SHAPE)


def test_options_become_settings():
    settings = read_settings(parse(*OTHERS, "--lr=0.5", "--weight-decay=0.25", "--nesterov"), SHAPE)
    assert settings == Settings(
        input_shape=SHAPE,
        optimizer=bt.SGD(0.5, momentum=0.9, weight_decay=0.25, nesterov=True),
        memory=3 * 2**20,
        strategy="offload:lru",
        spill_dir="/x",
        spill_size=10**9,
        link="1 GB,2 GB",
        kernels="fixed",
        device="reference",
        cuda_graphs=False,
        costs="analytic",
        dtype="float64",
        threads=3,
        seed=9,
    )


@pytest.mark.parametrize("given", [[], OTHERS, ["--math=tf32"]])
def test_they_are_written_as_they_were_given(given):
    options = parse(*given)
    words = write_setting_arguments(options)
    assert read_settings(parse(*words), SHAPE) == read_settings(options, SHAPE)
    assert set(given) <= set(words)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "info"])
def test_every_command_that_plans_takes_them(name):
    arguments = [] if name in ("resnet2500", "depth") else ["resnet18"]
    left_out = ("--memory", "--strategy", "--spill") if name == "curve" else ()
    given = [word for word in OTHERS if not word.startswith(left_out)] if left_out else OTHERS
    options = make_parser().parse_args([name, *arguments, *given])
    assert (options.device, options.dtype, options.cuda_graphs, options.seed) == ("reference", "float64", False, 9)
    assert isinstance(options, argparse.Namespace) and callable(options.run)
    assert all(hasattr(options, option.name) for option in list_setting_options())


def test_the_deep_networks_have_defaults_of_their_own():
    options = make_parser().parse_args(["resnet2500"])
    assert (options.memory, options.strategy, options.kernels) == ("560 MiB", "stream", "fixed")
    options = make_parser().parse_args(["depth"])
    assert (options.memory, options.strategy, options.kernels) == (None, "stream", "fixed")


def test_help_tells_the_defaults_of_the_command(capsys):
    for name, words in (
        ("plan", "less the process's need"),
        ("resnet2500", "560 MiB"),
        ("depth", "--limit leaves"),
    ):
        with pytest.raises(SystemExit):
            make_parser().parse_args([name, "--help"])
        assert words in " ".join(capsys.readouterr().out.split())
