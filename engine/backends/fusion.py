"""Which element-wise operations run together with the operation before them: a rewrite before layouts are chosen.

A ReLU becomes part of the batch norm or sum that it follows where it is the only reader of its input: memory is gone
over once, and the tensor between the two is never made. The gradient of a sum's ReLU works from its output as before;
that of a batch norm's joins the batch norm's, by a mask that the forward pass leaves. A convolution's ReLU stays apart:
it is too small a part of a step, and within the convolution some of its zeros would be negative.

Finite results stay the same number for number, where the library computes both with its own code: the gradient of a
channel whose outputs are all cut off may be a zero of the other sign. Not checked: whether the library has such code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...layers.graph import Graph, Op, Phase, Tensor, TensorSpec

FUSED: Mapping[str, str] = MappingProxyType(
    {
        "add": "add_relu",
        "batch_norm_inference": "batch_norm_relu_inference",
        "batch_norm_training": "batch_norm_relu",
    }
)
"""For a kind whose ReLU can be fused, the kind of both."""

IN_TRAINING: Mapping[str, str] = MappingProxyType({k: v for k, v in FUSED.items() if k != "batch_norm_inference"})
"""Those of `FUSED` without the batch norm with running statistics, in which a ReLU's NaN could not be told."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two operations that become one, by id.

    Attributes:
        first: in whose place the fused operation runs.
        relu: that is dropped.
        gradients: those of `relu` and of `first` where they become one too, else none.
    """

    first: int
    relu: int
    gradients: tuple[int, ...]


def fuse(graph: Graph, kinds: Mapping[str, str] = FUSED) -> Graph:
    """Make one operation of every pair that can be fused; the tensors between them are gone from the graph.

    Args:
        graph: of one program.
        kinds: which kinds take in the ReLU that follows, `FUSED` or a part of it.
    """
    pairs = _find_pairs(graph, kinds)
    tensors = list(graph.tensors)
    changed: dict[int, Op] = {}
    dropped: set[int] = set()
    gone: set[int] = set()
    served: dict[int, int] = {}
    for pair in pairs:
        first, relu = graph.ops[pair.first], graph.ops[pair.relu]
        between = first.outputs[0]
        dropped.add(relu.id)
        served[relu.id] = first.id
        outputs = (*relu.outputs, *first.outputs[1:])
        if pair.gradients:
            through, last = (graph.ops[number] for number in pair.gradients)
            dropped.add(through.id)
            gone.add(through.outputs[0])
            # The mask takes the place of the tensor that is no longer made.
            tensors[between] = _mask(tensors[between])
            outputs = (*outputs, between)
            x, _, *others = last.inputs
            inputs = (x, through.inputs[1], *others, between)
            changed[last.id] = replace(last, kind=f"{FUSED[first.kind]}_backward", inputs=inputs)
        else:
            gone.add(between)
        changed[first.id] = replace(first, kind=FUSED[first.kind], outputs=outputs)
    ops = [changed.get(op.id, op) for op in graph.ops if op.id not in dropped]
    return _renumber(graph, [t for t in tensors if t.id not in gone], ops, served)


def _mask(between: Tensor) -> Tensor:
    """Make the mask of where a batch norm's output is positive: one byte per element until layouts are chosen."""
    spec = TensorSpec(between.shape, "uint8")
    return replace(between, name=f"{between.name}.mask", dtype=spec.dtype, nbytes=spec.nbytes)


def _find_pairs(graph: Graph, kinds: Mapping[str, str]) -> list[_Pair]:
    readers = graph.readers()
    gradients = {(op.kind, op.forward_op): op for op in graph.ops if op.phase is Phase.BACKWARD}
    found = []
    for op in graph.ops:
        if op.kind not in kinds or len(readers[op.outputs[0]]) != 1 or op.outputs[0] in graph.outputs:
            continue
        relu = graph.ops[readers[op.outputs[0]][0]]
        if relu.kind != "relu":
            continue
        if op.kind != "batch_norm_training":
            found.append(_Pair(op.id, relu.id, ()))
            continue
        through, last = gradients.get(("relu_backward", relu.id)), gradients.get(("batch_norm_backward", op.id))
        if through and last and through.outputs[0] == last.inputs[1] and readers[last.inputs[1]] == [last.id]:
            found.append(_Pair(op.id, relu.id, (through.id, last.id)))
    return found


def _renumber(graph: Graph, tensors: Sequence[Tensor], ops: Sequence[Op], served: Mapping[int, int]) -> Graph:
    """Give tensors and operations their places as ids; `served` tells which operation stands for one that is gone."""
    tensor = {t.id: number for number, t in enumerate(tensors)}
    place = {op.id: number for number, op in enumerate(ops)}

    def renumber(op: Op) -> Op:
        inputs, outputs, updates = (tuple(tensor[t] for t in ids) for ids in (op.inputs, op.outputs, op.updates))
        forward_op = place[served.get(op.forward_op, op.forward_op)]
        return replace(op, id=place[op.id], inputs=inputs, outputs=outputs, updates=updates, forward_op=forward_op)

    return replace(
        graph,
        tensors=tuple(replace(t, id=tensor[t.id]) for t in tensors),
        ops=tuple(map(renumber, ops)),
        outputs=tuple(tensor[t] for t in graph.outputs),
    )
