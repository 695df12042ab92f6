"""One side of a comparison, in a process of its own: opened once, then a training step each time it is asked.

Lines of JSON both ways. In: first what to open, `{"side": …, "options": …}`, then `"step"` for each step and `"end"`.
Out: `{"ready": …}`, for each step `{"seconds": …, "loss": …}`, at the end `{"peak_bytes": …}`; or `{"error": …,
"memory": true or false}`, and the process ends. A step begins with a batch as numpy arrays and ends with its loss, on
either side. Does not check who asks.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from ..engine.data.synthetic import Synthetic
from ..engine.trainer import Trainer
from ..layers.builder import Layer, forward_graph
from ..layers.container import Identity
from ..layers.dropout import Dropout
from ..memory.errors import BathyalError, BudgetError
from ..memory.process.process_memory import resident_peak_bytes
from ..options.network import NetworkSetup, choose_network
from .torch_step import TorchStep

OURS = "bathyal"
OUT_OF_MEMORY = ("can't allocate memory", "Cannot allocate memory")
"""What PyTorch's allocator says, in an error that has no class of its own."""


@dataclass(frozen=True, slots=True)
class OpenedSide:
    """A side that is ready.

    Attributes:
        step: trains on one batch and returns the loss.
        facts: what else is told of it.
    """

    step: Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]
    facts: dict[str, Any]


def remove_dropout(layer: Layer) -> Layer:
    """Return the network with the same names and no dropout, as two libraries draw other numbers."""
    if isinstance(layer, Dropout):
        return Identity(name=layer.name)
    made = copy.copy(layer)
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, Layer):
            object.__setattr__(made, field.name, remove_dropout(value))
        elif isinstance(value, tuple) and any(isinstance(part, Layer) for part in value):
            parts = tuple(remove_dropout(part) if isinstance(part, Layer) else part for part in value)
            object.__setattr__(made, field.name, parts)
    return made


def open_side(side: str, setup: NetworkSetup) -> OpenedSide:
    """Build the network of one side with its first values.

    Raises:
        BudgetError: our side has no plan within the budget.
        DeviceError: PyTorch is not installed.
    """
    settings = setup.settings
    network = remove_dropout(setup.network)
    if side == OURS:
        trainer = Trainer.with_settings(network, settings)
        facts = {"arena_bytes": trainer.plan.peak_bytes, "recomputed_ops": trainer.plan.recomputed_ops}
        _ = trainer.state
        return OpenedSide(lambda images, labels: trainer.train_step(images, labels).loss, facts)
    graph = forward_graph(network, settings.input_shape, settings.dtype)
    torch = TorchStep(graph, side, settings.optimizer, seed=settings.seed, threads=settings.count_threads())
    torch.flush_subnormals()
    return OpenedSide(torch.train_step, {})


def serve(asked: TextIO, answers: TextIO) -> None:
    """Answer line by line until the end."""

    def answer(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        job = json.loads(asked.readline())
        setup = choose_network(argparse.Namespace(**job["options"]))
        opened = open_side(job["side"], setup)
        batch, *shape = setup.settings.input_shape
        images, labels = next(Synthetic(tuple(shape), setup.classes, batch, 1, seed=setup.settings.seed).epoch(0))
        images, labels = images.astype(setup.settings.dtype), labels.astype(np.int64)
        answer({"ready": True, **opened.facts})
        for line in asked:
            if json.loads(line) == "end":
                break
            begin = time.perf_counter()
            loss = opened.step(images, labels)
            seconds = time.perf_counter() - begin
            answer({"seconds": seconds, "loss": loss if math.isfinite(loss) else None})
        answer({"peak_bytes": resident_peak_bytes()})
    except BathyalError as error:
        answer({"error": str(error), "memory": isinstance(error, BudgetError)})
    except MemoryError as error:
        answer({"error": f"out of memory: {error}", "memory": True})
    except RuntimeError as error:
        if not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        answer({"error": str(error).splitlines()[0], "memory": True})


def main() -> None:
    """Serve on standard input and output; whatever a library prints goes to standard error instead."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
