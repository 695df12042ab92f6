"""Evaluation and prediction: batches run through a session's programs, in parts where a whole batch does not fit.

The state is there already when a function is called. Nothing here changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.losses.loss import Target
from ..layers.modes import CORRECT, IMAGES, LABELS, LOSS
from ..memory.errors import BudgetError, DataError
from .data.checks import as_batch, as_images
from .data.sources import Source
from .programs import Mode
from .results import Evaluation, count_shares
from .session import Session


def evaluate_batches(session: Session, find_target: Callable[[int], Target], source: Source) -> Evaluation:
    """Return the means of loss and metrics over all images of a source.

    Args:
        session: with the state that is evaluated.
        find_target: tells what the loss compares the outputs of so many images with.
        source: its first epoch is taken.

    Raises:
        DataError: there is no batch, or one does not fit.
    """
    settings = session.settings
    metrics = settings.loss.metrics
    images_seen, loss, counts = 0, 0.0, np.zeros(len(metrics), np.int64)
    for position, (images, labels) in enumerate(source.epoch(0, 0)):
        images, labels = as_batch(images, labels, settings.input_shape, find_target, settings.dtype, position=position)
        for outputs, count in run_in_parts(session, Mode.EVALUATION, {IMAGES: images, LABELS: labels}):
            images_seen += count
            loss += float(outputs[LOSS][0]) * count
            counts += outputs.get(CORRECT, 0)
    if not images_seen:
        raise DataError("evaluate", "at least one batch", "none")
    return Evaluation(images_seen, loss / images_seen, count_shares(metrics, counts, images_seen))


def predict_outputs(session: Session, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the network's outputs for any number of images, which are run in batches of the session's size.

    Raises:
        DataError: there is no image, or one does not fit.
    """
    settings, parts = session.settings, list[npt.NDArray[Any]]()
    size = settings.input_shape[0]
    for start in range(0, len(images), size):
        part = as_images(images[start : start + size], settings.input_shape, settings.dtype, start // size)
        for outputs, _count in run_in_parts(session, Mode.PREDICTION, {IMAGES: part}):
            parts.extend(outputs.values())
    if not parts:
        raise DataError("predict", "at least one image", "none")
    return np.concatenate(parts)


def run_in_parts(
    session: Session, mode: Mode, batch: Mapping[str, npt.NDArray[Any]]
) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
    """Run a batch in as few parts as the budget allows: one that trains in little memory may not evaluate whole.

    Args:
        session: with the state that is read.
        mode: evaluation or prediction.
        batch: what is fed, by name of its tensor.

    Yields:
        what the program makes of each part, by name, and how many images the part has.

    Raises:
        BudgetError: not even one image fits.
    """
    count = size = len(batch[IMAGES])
    while True:
        try:
            session.program(mode, size)
            break
        except BudgetError:
            if size == 1:
                raise
            size = -(-size // 2)
    for start in range(0, count, size):
        part = {name: values[start : start + size] for name, values in batch.items()}
        images = len(part[IMAGES])
        _, executor = session.program(mode, images)
        yield executor.run(part), images
