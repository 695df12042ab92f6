"""A network as the SuperNeurons paper counts it: layers, explicit forks and joins, and what each step reads.

Decided from the forward graph as layers make it, before pooling is moved or anything lowered. Every layer is one step
of the forward and one of the backward pass. A tensor that several layers read gets a fork, which makes a copy for each;
a sum is a join; a flatten is no layer; a softmax ends the network. So every tensor has one layer that makes it and one
that reads it.

Only activations and their gradients count: no parameter, workspace, dropout mask or input batch, although the gradient
of the batch does. The accounting is the paper's own and keeps more than our graph needs: masks, in-place outputs and
gradients from outputs alone are not known here.

Source: Wang et al., "SuperNeurons", PPoPP 2018, arXiv 1801.04380, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from bathyal.layers.graph import NO_OP, Graph, Role
from bathyal.layers.shape import FLATTEN
from bathyal.memory.errors import GraphError


class LayerKind(str, Enum):
    """Kinds of layers that the paper tells apart."""

    CONV = "conv"
    FC = "fc"
    BN = "bn"
    ACT = "act"
    LRN = "lrn"
    POOL = "pool"
    DROPOUT = "dropout"
    SOFTMAX = "softmax"
    FORK = "fork"
    JOIN = "join"
    CONCAT = "concat"


CHECKPOINTS = frozenset({LayerKind.CONV, LayerKind.FC, LayerKind.FORK, LayerKind.JOIN, LayerKind.CONCAT})
"""Layers whose outputs are moved out rather than computed again."""

CHEAP = frozenset({LayerKind.BN, LayerKind.ACT, LayerKind.LRN, LayerKind.POOL, LayerKind.DROPOUT})
"""Layers whose outputs may be dropped and computed again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the backward step of a kind of layer needs beside the gradients that it makes.

    Attributes:
        inputs: whether it reads the layer's inputs.
        outputs: whether it reads the layer's outputs.
        gradients: whether it reads the gradients of the outputs.
        overwrites: what the gradient of the first input is written over: the gradient of the first output, that output
            itself, or nothing.
    """

    inputs: bool
    outputs: bool
    gradients: bool = True
    overwrites: Literal["gradient", "output", "nothing"] = "nothing"


RULES: Mapping[LayerKind, Rule] = MappingProxyType(
    {
        LayerKind.CONV: Rule(inputs=True, outputs=False),
        LayerKind.FC: Rule(inputs=True, outputs=False),
        LayerKind.BN: Rule(inputs=True, outputs=False),
        LayerKind.ACT: Rule(inputs=True, outputs=True, overwrites="gradient"),
        LayerKind.LRN: Rule(inputs=True, outputs=True, overwrites="gradient"),
        LayerKind.POOL: Rule(inputs=True, outputs=True),
        LayerKind.DROPOUT: Rule(inputs=False, outputs=False),
        LayerKind.SOFTMAX: Rule(inputs=True, outputs=True, gradients=False, overwrites="output"),
        LayerKind.FORK: Rule(inputs=False, outputs=False, overwrites="gradient"),
        LayerKind.JOIN: Rule(inputs=False, outputs=False, overwrites="gradient"),
        LayerKind.CONCAT: Rule(inputs=False, outputs=False),
    }
)
"""The paper's table of what a backward step reads."""

_KINDS: Mapping[str, LayerKind] = MappingProxyType(
    {
        "conv2d": LayerKind.CONV,
        "linear": LayerKind.FC,
        "batch_norm": LayerKind.BN,
        "relu": LayerKind.ACT,
        "sigmoid": LayerKind.ACT,
        "tanh": LayerKind.ACT,
        "lrn": LayerKind.LRN,
        "max_pool": LayerKind.POOL,
        "avg_pool": LayerKind.POOL,
        "global_avg_pool": LayerKind.POOL,
        "dropout": LayerKind.DROPOUT,
        "add": LayerKind.JOIN,
        "concat": LayerKind.CONCAT,
    }
)
"""Kinds of operations of a forward graph as the paper's layers."""


@dataclass(frozen=True, slots=True)
class PaperLayer:
    """One layer.

    Attributes:
        id: its index in `PaperNetwork.layers`, which is its place in the forward pass.
        kind: what it is.
        name: of the layer that it stands for.
        inputs: tensors that it reads.
        outputs: tensors that it makes.
        op: id of the operation of the forward graph that it stands for; `NO_OP` for forks and the softmax.
    """

    id: int
    kind: LayerKind
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    op: int


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a layer in one direction; a second forward run of a layer is a recomputation."""

    layer: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Operands:
    """What a step touches.

    Attributes:
        reads: values that must be there before.
        makes: values that are there afterwards.
        overwritten: the value in whose memory the first of `makes` is written, or `NO_VALUE`.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwritten: int


NO_VALUE = -1
IMAGES = 0
"""The input batch, the first tensor of every network."""


@dataclass(frozen=True, slots=True)
class PaperNetwork:
    """A network in the paper's layers. A value is a tensor, or its gradient: `gradient(tensor)`.

    Attributes:
        layers: in the order of the forward pass.
        tensor_bytes: bytes of each tensor; the first is the input batch.
    """

    layers: tuple[PaperLayer, ...]
    tensor_bytes: tuple[int, ...]

    def gradient(self, tensor: int) -> int:
        """The value that is the gradient of `tensor`."""
        return len(self.tensor_bytes) + tensor

    def nbytes(self, value: int) -> int:
        """Bytes of a value: those of the tensor, and none of the input batch."""
        return 0 if value == IMAGES else self.tensor_bytes[value % len(self.tensor_bytes)]

    def operands(self, step: Step) -> Operands:
        """What a step reads and makes, by the paper's table."""
        layer = self.layers[step.layer]
        if not step.backward:
            return Operands(layer.inputs, layer.outputs, NO_VALUE)
        rule = RULES[layer.kind]
        incoming = tuple(map(self.gradient, layer.outputs))
        reads = (
            *(layer.inputs if rule.inputs else ()),
            *(layer.outputs if rule.outputs else ()),
            *(incoming if rule.gradients else ()),
        )
        overwritten = {"gradient": incoming[0], "output": layer.outputs[0], "nothing": NO_VALUE}[rule.overwrites]
        return Operands(reads, tuple(map(self.gradient, layer.inputs)), overwritten)

    def layer_bytes(self, layer: PaperLayer) -> int:
        """The memory lᵢ of a layer by itself: what the larger of its two steps touches, nothing written over another.

        Counting both steps of forks and joins together would make them the largest layers of residual networks, and
        the paper's cost-aware recomputations of these would not come out.
        """
        steps = (self.operands(Step(layer.id, backward)) for backward in (False, True))
        return max(sum(map(self.nbytes, (*operands.reads, *operands.makes))) for operands in steps)


@dataclass(slots=True)
class _Row:
    """A layer before its number is known; forks replace its inputs by copies."""

    kind: LayerKind
    name: str
    inputs: list[int]
    output: int
    op: int


def paper_network(forward: Graph) -> PaperNetwork:
    """The layers of a forward graph.

    Raises:
        GraphError: the graph has an operation that the paper has no layer for, or a layer that does not reach the
            output.
    """
    images = forward.with_role(Role.INPUT)
    assert len(images) == 1, "one input batch"
    counted = [*images, *forward.with_role(Role.ACTIVATION)]
    number = {tensor.id: position for position, tensor in enumerate(counted)}
    tensor_bytes = [tensor.nbytes for tensor in counted]
    rows: list[_Row] = []
    for op in forward.ops:
        inputs = [number[t] for t in op.inputs if t in number]
        if op.kind == FLATTEN.name:
            number[op.outputs[0]] = inputs[0]
        elif op.kind in _KINDS:
            # Further outputs, such as the places of maxima, are not tensors of the paper's.
            rows.append(_Row(_KINDS[op.kind], op.name, inputs, number[op.outputs[0]], op.id))
        else:
            raise GraphError(op.name, f"a forward operation of kind {', '.join(_KINDS)}", op.kind)
    logits = number[forward.outputs[0]]
    rows.append(_Row(LayerKind.SOFTMAX, "softmax", [logits], len(tensor_bytes), NO_OP))
    tensor_bytes.append(tensor_bytes[logits])
    return _with_forks(rows, tensor_bytes)


def _with_forks(rows: list[_Row], tensor_bytes: list[int]) -> PaperNetwork:
    """Number the layers, with a fork behind each layer whose output several read."""
    readers: dict[int, list[tuple[_Row, int]]] = {}
    for row in rows:
        for position, tensor in enumerate(row.inputs):
            readers.setdefault(tensor, []).append((row, position))
    layers: list[PaperLayer] = []

    def fork(tensor: int, name: str) -> None:
        if len(readers.get(tensor, ())) > 1:
            first = len(tensor_bytes)
            for row, position in readers[tensor]:
                row.inputs[position] = len(tensor_bytes)
                tensor_bytes.append(tensor_bytes[tensor])
            copies = tuple(range(first, len(tensor_bytes)))
            layers.append(PaperLayer(len(layers), LayerKind.FORK, name, (tensor,), copies, NO_OP))

    fork(IMAGES, "images")
    for row in rows:
        if row.kind is not LayerKind.SOFTMAX and row.output not in readers:
            raise GraphError(row.name, "a layer that the output depends on", "one that nothing reads", "Remove it.")
        layers.append(PaperLayer(len(layers), row.kind, row.name, tuple(row.inputs), (row.output,), row.op))
        fork(row.output, row.name)
    return PaperNetwork(tuple(layers), tuple(tensor_bytes))
