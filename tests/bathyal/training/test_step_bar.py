"""The bar of a long step: only on a terminal, only when a step takes long, and it never breaks a step off."""

import time

import pytest

from bathyal.training import step_bar
from bathyal.training.step_bar import StepBar


class Broken:
    """A terminal that has gone."""

    encoding = "utf-8"

    def write(self, text):
        raise OSError(5, "Input/output error")

    def flush(self):
        raise OSError(5, "Input/output error")


def step(bar, total=100, pause=0.0):
    for done in range(0, total + 1, 10):
        bar(done, total)
        time.sleep(pause)


def test_a_long_step_shows_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(step_bar, "DELAY_SECONDS", 1e-9)
    with StepBar(shown=True) as bar:
        step(bar, pause=0.03)
        step(bar)
    assert "in this step" in capsys.readouterr().err


@pytest.mark.parametrize(("shown", "delay"), [(False, 1e-9), (True, 1e9)])
def test_a_short_step_or_a_file_shows_nothing(shown, delay, monkeypatch, capsys):
    monkeypatch.setattr(step_bar, "DELAY_SECONDS", delay)
    with StepBar(shown=shown) as bar:
        step(bar)
    captured = capsys.readouterr()
    assert "step" not in captured.err + captured.out


def test_a_terminal_that_has_gone_breaks_nothing(monkeypatch):
    monkeypatch.setattr(step_bar, "DELAY_SECONDS", 1e-9)
    monkeypatch.setattr("sys.stderr", Broken())
    with StepBar(shown=True) as bar:
        step(bar)
