"""Whether a checkpoint belongs to a run, and whether the run will go on from it to the bit.

Decides from the header alone. What makes another network or another sequence of steps is refused; what may change the
last bits is warned of. Does not look at the data: another folder of images cannot be told.

Headers say nothing of a choice that there was not yet when the format was made: without a kind the optimizer is SGD,
without a loss it is cross-entropy. They are still written so, for these two.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...layers.builder import Layer, forward_graph
from ...layers.losses.cross_entropy import CrossEntropy
from ...layers.members import read_fixed_attrs
from ...layers.optimizers.sgd import SGD
from ...memory.errors import CheckpointError
from ..session import Session
from ..settings import Settings

logger = logging.getLogger(__name__)

FIRST_LOSS: Mapping[str, Any] = MappingProxyType({"kind": CrossEntropy.kind})
"""The loss of a header that names none."""


def describe_identity(network: Layer, settings: Settings) -> dict[str, Any]:
    """Return what must be equal for a checkpoint to belong to this run; what says most to people comes first."""
    graph = forward_graph(network, settings.input_shape, settings.dtype)
    optimizer, loss = settings.optimizer, settings.loss
    fixed = read_fixed_attrs(type(optimizer).__name__, optimizer.attrs)
    found = {
        "input_shape": list(settings.input_shape),
        "dtype": settings.dtype,
        "seed": settings.seed,
        "optimizer": {"kind": optimizer.kind, **fixed, "slots": list(optimizer.slots)},
        "loss": {"kind": loss.kind, **read_fixed_attrs(type(loss).__name__, loss.attrs)},
        "classes": graph.tensors[graph.outputs[0]].shape[-1],
        "network": f"{graph.name}, {graph.layers} layers, {graph.parameters} parameters",
        "fingerprint": graph.fingerprint(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))  # as a header gives it back: lists for tuples
    return plain


def shorten(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run as headers hold it: without a kind that is SGD's, without the loss of old ones."""
    header = dict(identity)
    if header["loss"] == FIRST_LOSS:
        del header["loss"]
    if header["optimizer"]["kind"] == SGD.kind:
        header["optimizer"] = {k: v for k, v in header["optimizer"].items() if k not in ("kind", "slots")}
    return header


def complete(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header with what `shorten` leaves out, and what headers did not hold at first."""
    optimizer = header.get("optimizer")
    if isinstance(optimizer, dict) and "kind" not in optimizer:
        slots = ["momentum"] if optimizer.get("momentum") else []
        optimizer = {"kind": SGD.kind, **optimizer, "slots": slots}
    return {"loss": FIRST_LOSS, **header, "optimizer": optimizer}


def describe_environment(session: Session) -> dict[str, Any]:
    """Return what must be equal for training to go on to the bit."""
    session.open_device()  # sets the number of threads, which the version of some libraries names
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
    header = complete(header)
    for name, value in run.items():
        if header.get(name) != value:
            hint = "Resume with the choices of the first run, or start in a new folder."
            raise CheckpointError(str(path), f"{name} {value}", f"{header.get(name)}", hint)
    for name, value in around.items():
        if header.get(name) != value:
            logger.warning("%s: %s was %r and is %r: results may differ in bits", path, name, header.get(name), value)
