"""Whether a checkpoint belongs to a run, and whether the run will go on from it to the bit.

Decides from the header alone. What makes another network or another sequence of steps is refused; what may change the
last bits is warned of. Does not look at the data: another folder of images cannot be told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...layers.builder import Layer, forward_graph
from ...memory.errors import CheckpointError
from ..session import Session
from ..settings import Settings

logger = logging.getLogger(__name__)


def identity(network: Layer, settings: Settings) -> dict[str, Any]:
    """What must be equal for a checkpoint to belong to this run; what says most to people first."""
    graph = forward_graph(network, settings.input_shape, settings.dtype)
    optimizer = settings.optimizer
    return {
        "input_shape": list(settings.input_shape),
        "dtype": settings.dtype,
        "seed": settings.seed,
        "optimizer": {
            "momentum": optimizer.momentum,
            "weight_decay": optimizer.weight_decay,
            "nesterov": optimizer.nesterov,
        },
        "classes": graph.tensors[graph.outputs[0]].shape[-1],
        "network": f"{graph.name}, {graph.layers} layers, {graph.parameters} parameters",
        "fingerprint": graph.fingerprint(),
    }


def environment(session: Session) -> dict[str, Any]:
    """What must be equal for training to go on to the bit."""
    _ = session.device  # sets the number of threads, which the version of some libraries names
    return {
        "backend": session.backend.name,
        "version": session.backend.version(),
        "threads": session.threads,
        "kernel_choice": session.settings.kernels.value,
    }


def require_same_run(path: Path, header: Mapping[str, Any], run: Mapping[str, Any], around: Mapping[str, Any]) -> None:
    """Compare the header of the checkpoint at `path` with the identity of a run and with what is around it.

    Raises:
        CheckpointError: it belongs to another run; names the first choice that differs.
    """
    for name, value in run.items():
        if header.get(name) != value:
            hint = "Resume with the choices of the first run, or start in a new folder."
            raise CheckpointError(str(path), f"{name} {value}", f"{header.get(name)}", hint)
    for name, value in around.items():
        if header.get(name) != value:
            logger.warning("%s: %s was %r and is %r: results may differ in bits", path, name, header.get(name), value)
