"""What a trainer tells of a step and of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Watch = Callable[[int, int], None]
"""Told now and then during a step how many steps of the plan are done, from 0, and how many there are."""


class TopShares:
    """What can be said of metrics of classification: a base of records that have a field `metrics`."""

    __slots__ = ()

    metrics: Mapping[str, float]

    @property
    def top1(self) -> float | None:
        """Share of images whose label is the most likely class; None where the loss does not count it."""
        return self.metrics.get("top1")

    @property
    def top5(self) -> float | None:
        """Share of images whose label is among the five most likely; None where the loss does not count it."""
        return self.metrics.get("top5")


@dataclass(frozen=True, slots=True)
class StepResult(TopShares):
    """One training step.

    Attributes:
        step: number of steps done so far, this one included.
        epoch: number of the epoch, from 0.
        images: in this batch.
        loss: mean over the batch.
        metrics: what the loss counts, as shares of the images, by name.
        seconds: of the whole step.
        moved_bytes: that left the arena for the memory outside or came back.
        moving_seconds: in which transfers ran, both directions added.
        waited_seconds: in which the computation waited for transfers.
    """

    step: int
    epoch: int
    images: int
    loss: float
    metrics: Mapping[str, float]
    seconds: float
    moved_bytes: int = 0
    moving_seconds: float = 0.0
    waited_seconds: float = 0.0

    @property
    def hidden_share(self) -> float | None:
        """Share of the time of the transfers that the computation did not wait for; None where nothing moved."""
        return hidden_share(self.waited_seconds, self.moving_seconds)


def count_shares(metrics: Sequence[str], counts: Iterable[int], images: int) -> dict[str, float]:
    """For each metric the share of so many images that its count is."""
    return {name: int(count) / images for name, count in zip(metrics, counts, strict=True)}


def hidden_share(waited_seconds: float, moving_seconds: float) -> float | None:
    """1 − waited / moving, from 0 to 1; None where nothing moved.

    It is 0 where more was waited than moved: a thread that is woken up takes time too.
    """
    return max(1 - waited_seconds / moving_seconds, 0.0) if moving_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Evaluation(TopShares):
    """Means over all images of a source.

    Attributes:
        images: how many there were.
        loss: mean over them.
        metrics: as in `StepResult`.
    """

    images: int
    loss: float
    metrics: Mapping[str, float]
