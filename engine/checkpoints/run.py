"""A run in its checkpoints: what is saved beside the tensors of its state, and how a run goes on from there.

Does not decide which files are kept, nor which is the newest whole one: `folder.py` does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...memory.errors import CheckpointError
from ..finite import require_finite
from ..session import Session
from ..state import State
from .compatibility import describe_environment, describe_identity, require_same_run, shorten
from .folder import find_newest, save
from .reader import Checkpoint


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        step: training steps done.
        epoch: number of the epoch, from 0.
        batch: batches of this epoch that are done.
        learning_rate: that of the next step; None where it is a function, which a file cannot hold.
    """

    step: int
    epoch: int
    batch: int
    learning_rate: float | None


def save_run(folder: Path, session: Session, state: State, progress: Progress, keep: int) -> Path:
    """Write a checkpoint with everything that training needs to go on to the bit, and return its path.

    Raises:
        CheckpointError: it could not be written; earlier ones are unharmed.
        NonFiniteError: a tensor of the state is not finite; earlier ones are unharmed.
    """
    header: dict[str, Any] = {
        **shorten(describe_identity(session.network, session.settings)),
        **describe_environment(session),
        **asdict(progress),
        "kernels": {key: list(names) for key, names in session.list_kernels().items()},
    }
    where, hint = f"checkpoint of step {progress.step}", "Nothing was saved; earlier checkpoints are as they were."
    arrays = (
        (name, t.shape, t.dtype, require_finite(f"{where}, {name}", state.pieces(name), hint))
        for name, t in state.tensors.items()
    )
    return save(folder, progress.step, header, arrays, keep=keep)


def find_run(folder: Path, session: Session) -> Checkpoint | None:
    """Return the newest whole checkpoint in a folder, which belongs to the run of `session`; None if there is none.

    Raises:
        CheckpointError: all are damaged, or the newest whole one belongs to another network or run.
    """
    found, damaged = find_newest(folder)
    if found is None:
        if damaged:
            found_there = f"{len(damaged)} damaged, the newest {damaged[0].where}"
            raise CheckpointError(str(folder), "a whole checkpoint", found_there, "Start in a new folder.")
        return None
    around = describe_environment(session)
    require_same_run(found.path, found.header, describe_identity(session.network, session.settings), around)
    return found


def read_kernels(found: Checkpoint) -> dict[str, tuple[str, ...]]:
    """Return the kernels of the run's training programs, by program, for `Session.known_kernels`."""
    return {program: tuple(names) for program, names in found.header["kernels"].items()}


def read_state(found: Checkpoint, state: State) -> None:
    """Overwrite every tensor of a state with what a checkpoint holds.

    Raises:
        CheckpointError: the file is damaged; some tensors have been overwritten then.
    """
    for name in found.entries:
        state.write_pieces(name, found.pieces(name, state.rows(name)))


def read_progress(found: Checkpoint) -> Progress:
    """Return how far the run was when the checkpoint was written."""
    step, epoch, batch = (int(found.header[key]) for key in ("step", "epoch", "batch"))
    rate = found.header["learning_rate"]
    return Progress(step, epoch, batch, None if rate is None else float(rate))
