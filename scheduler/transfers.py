"""When bytes move: from who is away between which uses to an order with moves.

What leaves is sent as early as its direction is free, the most urgent first, and is waited for where its bytes are
needed. What comes back is sent for as late as hides its transfer, with `MARGIN` for a link that is slower than said, and
at least one heavy operation ahead; but never before there is room for it. A tensor that has been outside is not sent a
second time: its value has not changed.

Seconds here only say when to begin; `simulate` says what comes of it.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380: offload and prefetch one convolution ahead. Sending the
most urgent first is the rule of earliest deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

from ..layers.graph import Graph
from ..layers.kinds import KINDS
from .draft import Draft
from .link import Link
from .moves import Move, Order, Transfer
from .tensor_cache import Absence, Residents

MARGIN = 1.25
"""A transfer is taken to last so many times as long as the link says when it is decided how early it begins."""


class Timing:
    """What the moment of a transfer depends on.

    Attributes:
        seconds: of each operation of the order.
        heavy: of each, whether it belongs to a convolution or matrix product.
        link: to the memory outside.
    """

    def __init__(self, graph: Graph, order: Sequence[int], seconds: Sequence[float], link: Link) -> None:
        self.seconds = seconds
        self.heavy = [KINDS[graph.ops[graph.ops[number].forward_op].kind].heavy for number in order]
        self.link = link


@dataclass(slots=True)
class _Slot:
    """The moves before one operation, in the order in which they are begun."""

    offloads: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    def moves(self) -> Iterable[Move]:
        """As they stand in the order."""
        for what, tensors in (
            (Transfer.OFFLOAD, self.offloads),
            (Transfer.WAIT, self.gone),
            (Transfer.FETCH, self.fetches),
            (Transfer.WAIT, self.back),
        ):
            yield from (Move(what, t) for t in tensors)


def with_moves(
    order: Sequence[int],
    drafted: Draft,
    residents: Residents,
    away: Sequence[Absence],
    room_bytes: int,
    timed: Timing,
) -> Order:
    """Put the moves between the operations.

    Args:
        order: operations alone.
        drafted: from it.
        residents: from it.
        away: of its instances; from `absences`.
        room_bytes: what all instances may take together.
        timed: seconds and link.
    """
    slots: dict[int, _Slot] = {}
    sent, dropped = _with_and_without_transfer(drafted, away)
    for absence, position in zip(sent, _send(sent, drafted, timed), strict=True):
        slots.setdefault(position, _Slot()).offloads.append(drafted.tensor[absence.instance])
        slots.setdefault(absence.gone, _Slot()).gone.append(drafted.tensor[absence.instance])
    back = [absence for absence in away if absence.next_use < len(order)]
    begins = _fetch(back, residents, _live(residents, drafted, sent, dropped), room_bytes, timed)
    for absence, position in sorted(zip(back, begins, strict=True), key=lambda pair: (pair[0].next_use, pair[1])):
        slots.setdefault(position, _Slot()).fetches.append(drafted.tensor[absence.instance])
        slots.setdefault(absence.next_use, _Slot()).back.append(drafted.tensor[absence.instance])
    moved: list[int | Move] = []
    for position, number in enumerate(order):
        if position in slots:
            moved += slots[position].moves()
        moved.append(number)
    if len(order) in slots:
        moved += slots[len(order)].moves()
    return moved


def _with_and_without_transfer(drafted: Draft, away: Sequence[Absence]) -> tuple[list[Absence], list[Absence]]:
    """The absences that begin with a transfer out, and those of tensors whose value is outside already."""
    sent: dict[int, Absence] = {}
    dropped = []
    for absence in sorted(away, key=lambda a: (a.gone, a.instance)):
        if not absence.changed or sent.setdefault(drafted.tensor[absence.instance], absence) is not absence:
            dropped.append(absence)
    return list(sent.values()), dropped


def _send(sent: Sequence[Absence], drafted: Draft, timed: Timing) -> list[int]:
    """For each absence the position before which its transfer out begins."""
    released: dict[int, list[int]] = {}
    for number, absence in enumerate(sent):
        released.setdefault(absence.last_use + 1, []).append(number)
    begins = [0] * len(sent)
    urgent: list[tuple[int, int]] = []
    now = free = 0.0
    for position, seconds in enumerate((*timed.seconds, 0.0)):
        for number in released.get(position, ()):
            heappush(urgent, (sent[number].gone, number))
        # The next one is begun before an operation during which the one before will be done.
        while urgent and (urgent[0][0] <= position or free <= now + seconds):
            gone, number = heappop(urgent)
            begins[number] = position
            free = max(now, free) + timed.link.out_seconds(drafted.nbytes[sent[number].instance])
            if gone == position:
                now = max(now, free)
        now += seconds
    return begins


def _live(residents: Residents, drafted: Draft, sent: Iterable[Absence], dropped: Iterable[Absence]) -> list[int]:
    """Bytes that live at each position where everything comes back just when it is needed."""
    end = len(residents.operands)
    change = [0] * (end + 2)

    def live(first: int, beyond: int, nbytes: int) -> None:
        change[first] += nbytes
        change[beyond] -= nbytes

    for instance, nbytes in enumerate(residents.nbytes):
        live(drafted.birth[instance], drafted.death[instance] + 1, nbytes)
    for position, instances in enumerate(residents.handed_over):
        live(position, position + 1, -sum(residents.nbytes[i] for i in instances))
    for leaves, absence in (*((a.gone, a) for a in sent), *((a.last_use + 1, a) for a in dropped)):
        nbytes = residents.nbytes[absence.instance]
        if absence.next_use == end:
            live(absence.last_use + 1, leaves, nbytes)
        elif absence.last_use >= 0:
            live(leaves, absence.next_use, -nbytes)
    return list(accumulate(change[:end]))


def _fetch(away: Sequence[Absence], residents: Residents, live: list[int], room_bytes: int, timed: Timing) -> list[int]:
    """For each absence the position before which its transfer back begins; `live` grows by what is early."""
    begins = [0] * len(away)
    comes = [0.0, *accumulate(timed.seconds)]
    ahead = _heavy_before(timed.heavy)
    latest = comes[-1]
    for number in sorted(range(len(away)), key=lambda n: (-away[n].next_use, away[n].instance)):
        absence = away[number]
        nbytes = residents.nbytes[absence.instance]
        due = min(latest, comes[absence.next_use])
        begin = due - MARGIN * timed.link.in_seconds(nbytes)
        position = absence.next_use
        # Where its bytes went is before `gone`; the transfer out is waited for there.
        while position > absence.gone and (comes[position] > begin or position > ahead[absence.next_use]):
            if live[position - 1] + nbytes > room_bytes:
                break
            position -= 1
            live[position] += nbytes
        latest = max(begin, comes[position])
        begins[number] = position
    return begins


def _heavy_before(heavy: Sequence[bool]) -> list[int]:
    """For each position the last heavy operation before it, or itself where there is none."""
    found, last = [], -1
    for position, is_heavy in enumerate(heavy):
        found.append(position if last < 0 else last)
        if is_heavy:
            last = position
    return found
