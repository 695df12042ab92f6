"""Cheap layers computed again in the backward pass, as an order of steps.

A segment is a run of cheap layers, each of which reads what the one before makes. A value of a segment that a backward
step reads is computed again from the nearest value of the segment that is in memory; one that no backward step reads is
not. The order alone says what is kept: a read takes the latest value, which dies with its last read, so values that are
computed only on the way to another die at once.

- speed-centric: the first backward step that reads from a segment computes all of it, once, for all others: n runs
  for a segment of n.
- memory-centric: each backward step computes just what it reads and is not there: n (n + 1) / 2 runs where each layer
  reads its input and output, and the least memory.
- cost-aware: speed-centric for the segments that can be afforded, memory-centric for the others.

Steps may be anything: operations of our graphs, or the layers of the paper.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: cost-aware recomputation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class Recomputation(str, Enum):
    """How dropped values come back."""

    SPEED_CENTRIC = "speed-centric"
    MEMORY_CENTRIC = "memory-centric"
    COST_AWARE = "cost-aware"


@dataclass(frozen=True, slots=True)
class Segmented(Generic[S]):
    """A step of training with the runs of cheap layers in it.

    Attributes:
        forward: all steps up to the loss, in order.
        backward: the others, in order.
        segments: runs of forward steps whose values are dropped.
        makes: values that each step of a segment makes anew when it is repeated.
        reads: values that each backward step reads.
    """

    forward: Sequence[S]
    backward: Sequence[S]
    segments: Sequence[tuple[S, ...]]
    makes: Mapping[S, Sequence[int]]
    reads: Mapping[S, Sequence[int]]


def find_runs(steps: Iterable[tuple[S, int, int]]) -> tuple[tuple[S, ...], ...]:
    """Return the runs of steps, each of which reads what the one before makes, in the order of their first steps.

    Args:
        steps: (step, value that it reads, value that it makes), in order.
    """
    runs: list[list[S]] = []
    ending_in: dict[int, list[S]] = {}
    for step, read, made in steps:
        run = ending_in.pop(read, None)
        if run is None:
            run = []
            runs.append(run)
        run.append(step)
        ending_in[made] = run
    return tuple(map(tuple, runs))


def write_recomputing_order(steps: Segmented[S], at_once: Sequence[bool]) -> list[S]:
    """Return the order in which the segments marked in `at_once` are recomputed as a whole, the others step by step."""
    home = {
        value: (number, place)
        for number, segment in enumerate(steps.segments)
        for place, step in enumerate(segment)
        for value in steps.makes[step]
    }
    wanted = [sorted({home[v] for v in steps.reads[step] if v in home}) for step in steps.backward]
    last = [0] * len(steps.segments)
    for number, place in (found for places in wanted for found in places):
        last[number] = max(last[number], place)
    there: set[tuple[int, int]] = set()
    order = list(steps.forward)
    for step, places in zip(steps.backward, wanted, strict=True):
        for number, place in places:
            if (number, place) in there:
                continue
            end = last[number] if at_once[number] else place
            begin = end
            while begin and (number, begin - 1) not in there:
                begin -= 1
            order += steps.segments[number][begin : end + 1]
            there.update((number, p) for p in (range(begin, end + 1) if at_once[number] else (place,)))
        order.append(step)
    return order
