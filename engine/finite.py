"""Numbers that are not finite end a run: where they are found, and how the first layer that makes them is.

A NaN passes through every operation, so the loss of a step tells whether its forward pass and all that it read were
finite: looking at that one number costs nothing. It is looked at before the backward pass, so the weights are still
those that made it. Then the state is read, and where that is finite, the forward pass runs once more, and every tensor
is looked at as soon as it is made. A gradient that is not finite makes the weights so, which the next step finds, or
the end of the run; a checkpoint is looked at as it is written, so that dead weights never take the place of good ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.graph import Graph, Phase, Role
from ..layers.modes import LOSS
from ..memory.errors import NonFiniteError
from .executor import Executor
from .results import Watch
from .state import State

Array = npt.NDArray[Any]

EXPECTED = "finite numbers"
LESS = "A smaller learning rate may help."
CHUNK = 2**18
"""Numbers that are looked at in one piece, for which memory is taken."""


def run_step(
    executor: Executor,
    graph: Graph,
    feeds: Mapping[str, Array],
    state: State,
    step: int,
    kept: Path | None,
    watch: Watch | None = None,
) -> dict[str, Array]:
    """Run one training step and return its outputs by name.

    Args:
        executor: bound.
        graph: that it runs.
        feeds: what the host writes.
        state: that the step changes.
        step: its number, from 1, for errors.
        kept: the newest checkpoint of this run; None where there is none.
        watch: told how far the step is.

    Raises:
        NonFiniteError: the loss is not finite; names the first layer whose numbers are not, and the checkpoint.
    """
    try:
        outputs = executor.run(feeds, watch)
        if LOSS not in outputs or np.isfinite(outputs[LOSS]).all():
            return outputs
        where, found = "loss", f"a loss of {outputs[LOSS][0]}"
    except NonFiniteError as error:
        where, found = _find_cause(executor, graph, feeds, state) or (error.where, error.actual)
    raise NonFiniteError(f"step {step}, {where}", EXPECTED, found, f"{LESS} {_describe_kept(kept)}")


def _find_cause(executor: Executor, graph: Graph, feeds: Mapping[str, Array], state: State) -> tuple[str, str] | None:
    """Find what was not finite first: a parameter, by the order of the updates, or a tensor of the forward pass."""
    for op in graph.ops:
        if op.phase is Phase.UPDATE:
            parameter = graph.tensors[op.inputs[0]]
            name = parameter.part.whole if parameter.part else parameter.name
            bad = sum(map(count_not_finite, state.pieces(name)))
            if bad:
                return name, f"{bad} of {state.tensors[name].elements} values that are not, since an earlier update"
    made = executor.find_not_finite(feeds)
    if made is None:
        return None
    op, tensor, bad = made
    return f"{op.name} ({op.kind})", f"{bad} values of {tensor.name} that are not, the first of the step"


def _describe_kept(kept: Path | None) -> str:
    if kept is None:
        return "No checkpoint of this run was saved."
    return f"The checkpoint {kept} is whole, and restore() or --resume goes on from it."


def count_not_finite(values: Array) -> int:
    """Count the values of an array that are not finite; there are none where its type is not a floating one."""
    if values.dtype.kind != "f":
        return 0
    flat = values.reshape(-1)
    pieces = (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))
    return sum(piece.size - int(np.count_nonzero(np.isfinite(piece))) for piece in pieces)


def require_finite(where: str, pieces: Iterable[Array], hint: str) -> Iterator[Array]:
    """Hand pieces of a tensor on, each once it has been looked at.

    Raises:
        NonFiniteError: one holds values that are not finite.
    """
    for piece in pieces:
        bad = count_not_finite(piece)
        if bad:
            raise NonFiniteError(where, EXPECTED, f"{bad} of {piece.size} values that are not", hint)
        yield piece


def require_finite_weights(state: State, step: int, kept: Path | None = None) -> None:
    """Check parameters and running statistics at the end of a run, whose last update no further step has read.

    Raises:
        NonFiniteError: a tensor is not finite; names the first.
    """
    for name in state.names(Role.PARAMETER, Role.BUFFER):
        for _ in require_finite(f"after step {step}, {name}", state.pieces(name), f"{LESS} {_describe_kept(kept)}"):
            pass
