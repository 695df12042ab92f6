"""The operations of the bundled networks as a GPU backend meets them: images and weights channels-last."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from bathyal.engine.backends.cuda.op_request import CHANNELS_LAST, PLAIN, Operand, OpRequest
from bathyal.engine.backends.fusion import fuse
from bathyal.layers import SGD, forward_graph, training_graph
from bathyal.layers.graph import Graph, TensorSpec
from bathyal.models.registry import build_model, find_model

BATCH = 32


def channels_last_operand(spec: TensorSpec) -> Operand:
    """A tensor as an operand: channels-last if it has four axes."""
    return Operand(spec, CHANNELS_LAST if len(spec.shape) == 4 else PLAIN)


def signature(request: OpRequest) -> Hashable:
    """Equal for requests that one kernel serves."""
    return (request.kind, request.inputs, request.outputs, tuple(sorted(request.attrs.items())))


def step_graph(model: str, variant: str | None = None, batch: int = BATCH) -> Graph:
    """A training step of a bundled network at its usual image size, ReLUs fused with the batch norms before them."""
    entry = find_model(model)
    side = entry.image_side if variant is None else entry.variants[variant]
    shape = (batch, entry.channels, side, side)
    return fuse(training_graph(forward_graph(build_model(model, variant=variant), shape), SGD(0.1, momentum=0.9)))


def distinct_requests(graph: Graph, kinds: Iterable[str]) -> dict[Hashable, OpRequest]:
    """The distinct operations of these kinds, in the order of the step."""
    wanted = frozenset(kinds)
    found: dict[Hashable, OpRequest] = {}
    for op in graph.ops:
        if op.kind in wanted:
            inputs, outputs = (
                tuple(channels_last_operand(graph.tensors[t].spec) for t in ids) for ids in (op.inputs, op.outputs)
            )
            request = OpRequest(op.kind, inputs, outputs, op.attrs)
            found.setdefault(signature(request), request)
    return found
