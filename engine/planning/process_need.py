"""What a run takes outside the arena from the moment at which its budget is chosen: one estimate for all who ask.

The default budget leaves it out, a budget that is given is refused where it does not fit beside it, and `bathyal plan`
shows it. It follows from the graph of the training step, before that is lowered, and from what the source of the data
says of its batches. What is in memory already (the interpreter, the libraries, the user's own arrays) is not in it:
the system counts it as used.

The constants were measured on x86-64 with glibc, Python 3.11 and oneDNN 3, as the growth of anonymous resident memory
(`RssAnon` of `/proc/self/status`, less the arena) between two points of a run of ResNet-18, 50 and 152, AlexNet and
`small_resnet`, at their least budgets and at large ones, rounded up; `tests/bathyal/test_process_need.py` holds the sum
against the kernel's count of whole processes. Not considered: what the program itself does between the steps, and
kernels of a user's own that allocate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...layers.graph import STATE, Graph
from ...layers.kinds import kind_of
from ...memory.sizes import format_size

MIB = 2**20

LOWERING_BYTES, LOWERING_BYTES_PER_OP = 6 * MIB, 3 * 2**10
"""The lowered graph and its costs: 1.2 MiB for AlexNet, 7 for the 591 operations of ResNet-50, 9 for ResNet-152."""
PLANNING_BYTES, PLANNING_BYTES_PER_OP = 8 * MIB, 12 * 2**10
"""Tables of the planner and the plan: at its least budget ResNet-50 takes 18 MiB, ResNet-152 11."""
FOLLOWING_BYTES_PER_OP = 3 * 2**10
"""A saved plan that is followed, in place of planning."""
BINDING_BYTES, BINDING_BYTES_PER_OP = 4 * MIB, 2 * 2**10
"""Bound steps, machine code of the library's kernels and the stacks of its threads: 1 to 4 MiB, 2 in the first run."""
OTHER_PROGRAM_BYTES_PER_OP = 6 * 2**10
"""Evaluation or a last short batch: a second graph, plan and bound steps."""
STATE_COPIES = 2
"""Copies of the largest piece of the state while it is first filled, saved or restored: plain, and in the library's
layout."""
DRAWING_BYTES = 1 * MIB
"""Numbers of first values in float64, some at a time."""
PRODUCT_SHARE = 5 / 4
"""What the library packs of the operands of its largest matrix product, in proportion: 41 to 53 MiB for AlexNet at 256
images, whose operands have 41."""
RESERVE_BYTES = 4 * MIB
"""Of the interpreter: garbage before it is collected, blocks of the heap that are not full."""


@dataclass(frozen=True, slots=True)
class ProcessNeed:
    """Bytes that a run will yet take outside the arena, by what takes them.

    Attributes:
        planning: graphs and plans of all programs.
        kernels: bound steps, and what the library takes for itself.
        state: buffers through which the state is filled, saved and restored.
        batches: those that wait, the one that is trained on, and the decoding of images.
        reserve: of the interpreter.
    """

    planning: int
    kernels: int
    state: int
    batches: int
    reserve: int = RESERVE_BYTES

    @property
    def nbytes(self) -> int:
        """All together."""
        return sum(getattr(self, field.name) for field in fields(self))

    def describe(self) -> str:
        """Return it in words: the sum and its parts."""
        parts = ", ".join(f"{field.name} {format_size(getattr(self, field.name))}" for field in fields(self))
        return f"{format_size(self.nbytes)} outside the arena ({parts})"


def estimate_process_need(graph: Graph, queue_bytes: int, *, plans: bool = True) -> ProcessNeed:
    """Return what a run of `graph` takes outside the arena.

    Args:
        graph: of the training step of a full batch, not lowered.
        queue_bytes: what the batches of the data take.
        plans: whether a plan is made; else a saved one is followed.
    """
    count = len(graph.ops)
    planning = PLANNING_BYTES + PLANNING_BYTES_PER_OP * count if plans else FOLLOWING_BYTES_PER_OP * count
    planning += LOWERING_BYTES + (LOWERING_BYTES_PER_OP + OTHER_PROGRAM_BYTES_PER_OP) * count
    largest_state = max((tensor.nbytes for tensor in graph.with_role(*STATE)), default=0)
    return ProcessNeed(
        planning=planning,
        kernels=BINDING_BYTES + BINDING_BYTES_PER_OP * count + int(PRODUCT_SHARE * _find_largest_product(graph)),
        state=STATE_COPIES * largest_state + DRAWING_BYTES,
        batches=queue_bytes,
    )


def _find_largest_product(graph: Graph) -> int:
    """Return the bytes of the operands of the largest matrix product: a heavy operation whose operands are matrices."""
    largest = 0
    for op in graph.ops:
        operands = [graph.tensors[number] for number in op.inputs]
        if kind_of(op).heavy and all(len(tensor.shape) <= 2 for tensor in operands):
            largest = max(largest, sum(tensor.nbytes for tensor in operands))
    return largest
