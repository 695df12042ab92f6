"""The command line as a user meets it: in processes of its own."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bathyal
from bathyal import commands
from bathyal.cli import COMMANDS, main, make_parser

SMALL = ["small_resnet", "--image", "8", "--batch", "8", "--costs", "analytic"]
NULL = [*SMALL, "--device", "null"]
FIXED = [*SMALL, "--kernels", "fixed", "--threads", "1", "--json"]
PLAN_FIELDS = {
    "strategy", "feasible", "budget_bytes", "min_budget_bytes", "peak_bytes", "arena_bytes", "live_peak_bytes",
    "predicted_seconds", "lower_bound_seconds", "recomputed_ops", "ops", "layers", "parameters", "planning_seconds",
}  # fmt: skip
TRAIN_FIELDS = PLAN_FIELDS | {
    "loss", "seconds_per_step", "images_per_second", "arena_high_water_bytes", "weights_sha256",
}  # fmt: skip


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "bathyal", *map(str, arguments)], capture_output=True, text=True, timeout=300, **options
    )


def test_a_command_is_a_file_and_an_entry():
    files = {path.stem: path.read_text() for path in Path(commands.__file__).parent.glob("*.py")}
    assert {*COMMANDS, "__init__"} == files.keys()
    for name, text in files.items():
        assert "from . import" not in text and "commands" not in text.split('"""', 2)[2], f"{name} imports a command"


@pytest.mark.parametrize("name", ["resnet2500", "depth"])
def test_the_commands_that_were_modules_still_are(name):
    done = subprocess.run([sys.executable, "-m", f"bathyal.{name}", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: bathyal {name}")


@pytest.mark.parametrize(("arguments", "verbose"), [(["-v", "info"], True), (["info", "-v"], True), (["info"], False)])
def test_verbose_stands_before_or_behind_the_command(arguments, verbose):
    assert make_parser().parse_args(arguments).verbose is verbose


def test_plan_prints_its_fields(capsys):
    assert main(["plan", *SMALL, "--device", "null", "--memory", "4 MiB", "--json"]) == 0
    (document,) = lines(capsys.readouterr().out)
    assert document.keys() >= PLAN_FIELDS
    assert document["feasible"] is True
    assert document["peak_bytes"] <= document["budget_bytes"] == 4 * 2**20


def test_plan_that_cannot_be_says_so(capsys):
    assert main(["plan", *SMALL, "--device", "null", "--memory", "1 KiB", "--json"]) == 1
    (document,) = lines(capsys.readouterr().out)
    assert document["feasible"] is False
    least = document["min_budget_bytes"]
    assert main(["plan", *SMALL, "--device", "null", "--memory", str(least), "--json"]) == 0
    capsys.readouterr()
    assert main(["plan", *SMALL, "--device", "null", "--memory", str(least - 1)]) == 1
    assert str(least) in capsys.readouterr().err


def test_plan_in_words(capsys):
    assert main(["plan", "resnet50", "--device", "null", "--memory", "700 MiB"]) == 0
    text = capsys.readouterr().out
    for words in ("25.56 M parameters", "strategy auto", "700.0 MiB", "kept at loss", "layer4.2"):
        assert words in text


@pytest.mark.parametrize("model", ["alexnet", "vgg16", "vgg19_bn", "resnet152", "resnet:1,1,2,1"])
def test_plan_of_large_networks_without_their_memory(model, capsys):
    assert main(["plan", model, "--device", "null", "--batch", "64", "--memory", "40 GiB", "--json"]) == 0
    assert lines(capsys.readouterr().out)[0]["feasible"]


def test_train_prints_a_line_a_step_and_the_summary():
    done = command("train", *FIXED, "--memory", "4 MiB", "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *steps, summary = lines(done.stdout)
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
    assert summary.keys() >= TRAIN_FIELDS
    assert summary["arena_high_water_bytes"] == summary["peak_bytes"] <= 4 * 2**20
    assert summary["loss"] == steps[-1]["loss"]


def test_weights_are_equal_for_every_strategy_and_budget():
    least = json.loads(command("plan", *FIXED, "--strategy", "chain", "--memory", "4 MiB").stdout)["min_budget_bytes"]
    digests = {
        json.loads(command("train", *FIXED, "--steps", "5", *choice).stdout.splitlines()[-1])["weights_sha256"]
        for choice in (
            ("--strategy", "keep"),
            ("--strategy", "liveness"),
            ("--strategy", "chain", "--memory", least),
            ("--strategy", "chain", "--memory", least * 5 // 4),
            ("--memory", "4 MiB"),
        )
    }
    assert len(digests) == 1


def test_a_plan_is_saved_and_followed(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    choices = ["--classes", "10", *FIXED]
    assert main(["plan", *choices, "--strategy", "sequential:3", "--memory", "4 MiB", "--save-plan", path]) == 0
    (planned,) = lines(capsys.readouterr().out)
    assert planned["strategy"] == "sequential:3"
    assert main(["train", *choices, "--steps", "2", "--plan", path]) == 0
    followed = lines(capsys.readouterr().out)[-1]
    assert main(["train", *choices, "--steps", "2", "--strategy", "keep"]) == 0
    kept = lines(capsys.readouterr().out)[-1]
    assert followed["strategy"] == "sequential:3"
    assert followed["arena_high_water_bytes"] == planned["peak_bytes"] == followed["peak_bytes"]
    assert followed["weights_sha256"] == kept["weights_sha256"]
    assert main(["train", *choices, "--steps", "2", "--plan", path, "--memory", "3 MiB"]) == 1
    assert "--memory 4194304" in capsys.readouterr().err
    assert main(["train", *choices, "--steps", "2", "--plan", path, "--momentum", "0"]) == 1
    assert "graph" in capsys.readouterr().err


def test_digits_are_learned_and_reported(capsys):
    arguments = ["--batch", "64", "--memory", "4 MiB", "--steps", "30", "--costs", "analytic"]
    assert main(["train", "small_resnet", "--data", "digits", *arguments]) == 0
    text = capsys.readouterr().out
    for words in ("held-out accuracy", "budget", "predicted peak", "measured peak", "weights sha256"):
        assert words in text


def photos(folder, **colors):
    from PIL import Image

    for label, color in colors.items():
        (folder / label).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (12, 10), (color, color, color)).save(folder / label / f"{number}.png")


def test_a_folder_of_images(tmp_path, capsys):
    for part in ("train", "val"):
        photos(tmp_path / part, black=10, white=240)
    arguments = ["--data", str(tmp_path), "--epochs", "6", "--lr", "0.02", "--json"]
    assert main(["train", *SMALL, *arguments]) == 0
    assert lines(capsys.readouterr().out)[-1]["held_out_top1"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "resnet5"], "resnet50"),
        (["plan", "resnet50", "--memory", "12 parsecs"], "12 parsecs"),
        (["plan", "resnet50", "--memory", "1 Gb"], "bits"),
        (["plan", "resnet50", "--batch", "0"], "--batch"),
        (["train", *SMALL, "--device", "null"], "plan"),
        (["train", *SMALL, "--resume"], "--checkpoint"),
        (["train", *SMALL, "--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["train", *SMALL, "--strategy", "liveliness"], "liveness"),
        (["plan", *SMALL, "--strategy", "sequential:x"], "sequential:4"),
        (["plan", *SMALL, "--strategy", "sequential:0"], "'sequential:1' is the nearest"),
        (["plan", *SMALL, "--strategy", "sequential:999", "--device", "null"], "is the nearest"),
        (
            ["plan", *SMALL, "--device", "null", "--memory", "4 MiB", "--save-plan", "/nowhere/p.json"],
            "/nowhere/p.json",
        ),
        (["plan", *SMALL, "--device", "null", "--memory", "4 MiB", "--save-plan", "/dev/full"], "regular file"),
        (["train", *SMALL, "--plan", "/nowhere/p.json"], "/nowhere/p.json"),
        (["train", *SMALL, "--memory", "900 TiB"], "free"),
        (["train", *SMALL, "--steps", "0"], "--steps"),
        (["train", *SMALL, "--classes", "0"], "--classes"),
        (["plan", "resnet50", "--image", "0"], "--image"),
        (["plan", "resnet50", "--batch", str(10**18), "--device", "null"], "smaller batch"),
        (["train", *SMALL, "--batch", str(10**9)], "smaller batch"),
        (["train", *SMALL, "--lr", "inf"], "finite"),
        (["train", *SMALL, "--augment"], "--augment"),
        (["train", "small_resnet", "--data", "digits", "--image", "16"], "--image"),
        (["train", *SMALL, "--data", "digits", "--classes", "9"], "at least 10"),
        (["train", *SMALL, "--memory", "0"], "at least one byte"),
        (["train", *SMALL, "--memory", "-1"], "no sign"),
        (["train", *SMALL, "--memory", "nan"], "'nan'"),
        (["train", *SMALL, "--memory", ""], "got ''"),
        (["plan", *SMALL, "--strategy", "superneurons-sped"], "'superneurons-speed'"),
        (["plan", *SMALL, "--strategy", "offload:lr"], "'lru'"),
        (["plan", *NULL, "--memory", "4 MiB", "--strategy", "sequential:1000"], "'sequential:8' is the nearest"),
        (["plan", *NULL, "--memory", "4 MiB", "--strategy", "offload"], "Give --link OUT,IN"),
        (["plan", *NULL, "--memory", "4 MiB", "--strategy", "superneurons"], "Give --link OUT,IN"),
        (["curve", *NULL, "--points", "2", "--strategies", "offload"], "Give --link OUT,IN"),
        (["plan", *NULL, "--memory", "4 MiB", "--link", "0"], "at least one byte"),
        (["plan", *NULL, "--memory", "4 MiB", "--link", "-1"], "no sign"),
        (["plan", *NULL, "--memory", "4 MiB", "--link", "nan"], "'nan'"),
        (["plan", *NULL, "--memory", "4 MiB", "--link", "1,2,3"], "'1,2,3'"),
        (["plan", *NULL, "--memory", "4 MiB", "--link", ""], "link: "),
        (["train", *SMALL, "--link", "1 Gb"], "bits"),
        (["train", *SMALL, "--spill-size", "0"], "spill_size"),
        (["train", *SMALL, "--strategy", "offload", "--spill-dir", ""], "spill_dir"),
        (["train", *SMALL, "--strategy", "offload", "--spill-dir", "/nowhere"], "--spill-dir /nowhere"),
        (["train", *SMALL, "--strategy", "offload", "--memory", "1 KiB"], "memory for strategy 'offload'"),
        (
            ["plan", "resnet50", "--classes", "9" * 24, "--device", "null"],
            "--classes: expected a whole number",
        ),
        (["plan", "resnet50", "--classes", str(2**24), "--device", "null"], "fc.weight: expected a tensor of at most"),
        (["plan", "resnet50", "--batch", "9" * 24, "--device", "null"], "--batch: expected a whole number from 1 to"),
        (["plan", "resnet50", "--image", "9" * 24, "--device", "null"], "--image: expected a whole number from 1 to"),
        (["plan", f"resnet:1,1,{10**8},1", "--device", "null"], "up to 65536"),
        (["plan", f"resnet:1,1,{'9' * 5000},1", "--device", "null"], "four positive whole numbers"),
        (["curve", *NULL, "--points", str(10**9)], "--points: expected a whole number from 2 to"),
        (["plan", *SMALL, "--seed", "9" * 24], "seed: expected a whole number from 0 to"),
        (["plan", *SMALL, "--math", "bf16", "--device", "onednn"], "'float32' on the device 'onednn'"),
        (["plan", *SMALL, "--math", "bf16", "--dtype", "float64"], "math: expected 'float32', as nothing here"),
        (["train", *SMALL, "--device", "gpu"], "Write 'cuda'"),
        (["plan", *SMALL, "--device", "cpu"], "Write 'onednn'"),
        (["plan", *SMALL, "--device", "refrence"], "Did you mean 'reference'?"),
        (["train", *SMALL, "--momentum", "nan"], "momentum as a number from 0 to below 1"),
        (["train", *SMALL, "--weight-decay", "inf"], "weight_decay as a number that is finite"),
    ],
)
def test_mistakes_end_in_one_line_that_helps(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("bathyal: ")
    assert error.count("\n") == 1
    assert message in error
    assert "Traceback" not in error


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    (document,) = lines(capsys.readouterr().out)
    assert {"resnet2500", "vgg16"} <= document["models"].keys()
    assert main(["info"]) == 0
    assert "resnet2500" in capsys.readouterr().out


def test_interrupt_saves_and_resume_goes_on(tmp_path):
    whole = command("train", *FIXED, "--steps", "40")
    expected = lines(whole.stdout)[-1]["weights_sha256"]
    arguments = ["train", *FIXED, "--steps", "40", "--checkpoint", str(tmp_path / "runs")]
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            [sys.executable, "-m", "bathyal", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            process.stdout.readline()
            process.send_signal(number)
            _, error = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "--resume" in error
        arguments = [*arguments, "--resume"] if "--resume" not in arguments else arguments
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)[-1]["weights_sha256"] == expected
    again = command("train", *FIXED, "--steps", "40", "--checkpoint", tmp_path / "runs")
    assert again.returncode == 1
    assert "--resume" in again.stderr


def test_killed_at_random_moments_the_run_ends_with_the_same_weights(tmp_path):
    """Half of the kills come at any moment after the start, half while steps and checkpoints follow each other."""
    steps = 240
    expected = lines(command("train", *FIXED, "--steps", steps).stdout)[-1]["weights_sha256"]
    rng = random.Random(7)
    arguments = ["train", *FIXED, "--steps", steps, "--checkpoint", tmp_path, "--checkpoint-every", 1, "--resume"]
    last_step = 0
    for kill in range(20):
        with subprocess.Popen(
            [sys.executable, "-m", "bathyal", *map(str, arguments)], stdout=subprocess.PIPE, text=True
        ) as process:
            begun = [process.stdout.readline() for _ in range(rng.randint(1, 6) if kill % 2 else 0)]
            time.sleep(rng.uniform(0.0, 0.06 if kill % 2 else 0.8))
            process.kill()
            output = "".join(begun) + process.stdout.read()
        assert process.returncode == -signal.SIGKILL, "the run must not have ended before it was killed"
        seen = [json.loads(line)["step"] for line in output.splitlines() if line.endswith("}")]
        if seen:
            assert seen[0] >= last_step, "the step before the last one that was printed had been saved"
            last_step = seen[-1]
    assert last_step > 10
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)[-1]["weights_sha256"] == expected


def test_held_out_images_of_other_classes_are_refused(tmp_path, capsys):
    """A label is a position among the names: without `bird`, every other held-out image would count as wrong."""
    photos(tmp_path / "train", bird=10, cat=100, dog=240)
    photos(tmp_path / "val", cat=100, dog=240)
    assert main(["train", *SMALL, "--data", str(tmp_path)]) == 1
    assert "'bird'" in capsys.readouterr().err


def test_a_folder_with_one_class_is_a_mistake(tmp_path, capsys):
    photos(tmp_path / "photos", cat=10, dog=240)
    assert main(["train", *SMALL, "--data", str(tmp_path)]) == 1
    assert "val/" in capsys.readouterr().err


def test_a_folder_of_parts_of_the_data_says_which_folder_to_give(tmp_path, capsys):
    photos(tmp_path / "train", cat=10, dog=240)
    assert main(["train", *SMALL, "--data", str(tmp_path)]) == 1
    assert f"give {tmp_path}/train, or another of them" in capsys.readouterr().err


def test_a_damaged_image_ends_the_run_and_keeps_the_steps_before_it(tmp_path, capsys):
    photos(tmp_path / "photos", cat=10, dog=240)
    (tmp_path / "photos" / "dog" / "7.png").write_bytes(b"no image")
    arguments = ["train", *SMALL, "--batch", "1", "--data", str(tmp_path / "photos"), "--json", "--epochs", "2"]
    arguments += ["--checkpoint", str(tmp_path / "runs"), "--checkpoint-every", "1000"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "7.png" in captured.err
    done = lines(captured.out)[-1]["step"]
    photos(tmp_path / "mended", dog=240)
    (tmp_path / "mended" / "dog" / "7.png").replace(tmp_path / "photos" / "dog" / "7.png")
    assert main([*arguments, "--resume"]) == 0
    assert lines(capsys.readouterr().out)[0]["step"] == done + 1


def test_a_checkpoint_folder_that_cannot_be_written_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", *SMALL, "--steps", "2", "--json", "--checkpoint", str(tmp_path / "file")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "to write into" in captured.err


@pytest.mark.parametrize("option", ["--checkpoint", "--data"])
def test_an_empty_name_is_not_the_current_folder(option):
    with pytest.raises(SystemExit) as raised:
        main(["train", *SMALL, option, ""])
    assert raised.value.code == 2


def test_a_run_that_diverges_ends_with_an_error_and_no_nan_in_its_json(capsys):
    assert main(["train", *SMALL, "--device", "reference", "--steps", "4", "--lr", "1e30", "--json"]) == 1
    captured = capsys.readouterr()
    assert "NaN" not in captured.out
    assert all(math.isfinite(step["loss"]) for step in lines(captured.out))
    assert "step 2" in captured.err


def test_speed_counts_the_images_that_were_there(capsys):
    arguments = ["--data", "digits", "--batch", "1600", "--memory", "200 MiB", "--costs", "analytic", "--json"]
    assert main(["train", "small_resnet", *arguments]) == 0
    step, summary = lines(capsys.readouterr().out)
    assert step["images"] == 1438
    assert summary["images_per_second"] == pytest.approx(1438 / step["seconds"])


def test_resuming_takes_the_learning_rate_of_the_run_or_of_the_command(tmp_path, capsys):
    def weights(*arguments):
        assert main(["train", *FIXED, *arguments]) == 0
        return lines(capsys.readouterr().out)[-1]["weights_sha256"]

    whole = weights("--steps", "4", "--lr", "0.02")
    for name in ("same", "changed"):
        weights("--steps", "2", "--lr", "0.02", "--checkpoint", str(tmp_path / name))
    assert weights("--steps", "4", "--checkpoint", str(tmp_path / "same"), "--resume") == whole
    assert weights("--steps", "4", "--checkpoint", str(tmp_path / "changed"), "--resume", "--lr", "0.5") != whole


def test_a_run_that_is_done_says_so(tmp_path, capsys):
    arguments = ["train", *SMALL, "--steps", "2", "--checkpoint", str(tmp_path)]
    assert main(arguments) == 0
    assert main([*arguments, "--resume"]) == 0
    assert "nothing to train" in capsys.readouterr().out


def test_output_that_cannot_be_written_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "bathyal", "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["train", *FIXED, "--steps", "50", "--checkpoint", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "bathyal", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.bathyal"]


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_told(option, capsys):
    with pytest.raises(SystemExit) as raised:
        main([option])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"bathyal {bathyal.__version__}\n"
