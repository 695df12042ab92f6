"""`bathyal train`: train a network within a budget, with checkpoints, and say what it took."""

from __future__ import annotations

import argparse
import json

from ..options.network import add_network_arguments
from ..options.training import add_training_arguments
from ..reports.training import report_training
from ..training.run import carry_out, report_end

SUMMARY = "train a network within a budget of memory"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_network_arguments(command)
    add_training_arguments(command)


def run(options: argparse.Namespace) -> int:
    """Train and report; an interrupt ends after the running step and saves."""
    trained = carry_out(options)
    print(json.dumps(trained.document) if options.json else report_training(trained.document), flush=True)
    return report_end(options, trained)
