"""From the forward graph to the graph of a whole training step, of evaluation, or of prediction.

The training graph holds forward, loss, backward and update operations in one list. Backward operations come in
reverse order of the forward ones, gradients of a tensor with several readers are summed by explicit `add` operations
in that order, and each parameter is updated as soon as nothing reads its old value any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..memory.errors import GraphError, ShapeError
from .assembly import Assembly
from .graph import Graph, Op, Phase, Role, TensorSpec
from .kinds import kind_of
from .loss import CROSS_ENTROPY, loss_gradient
from .operations import Attrs, ShapeRule
from .optimizer import SGD
from .pool_first import pool_first

LEARNING_RATE, LOSS_SCALE = 0, 1
"""Positions in the float64 tensor `scalars`."""
SEED, STEP = 0, 1
"""Positions in the int64 tensor `random_key`."""

IMAGES, LABELS, SCALARS, RANDOM_KEY, LOSS, CORRECT = "images", "labels", "scalars", "random_key", "loss", "correct"
"""Names of the tensors that the host writes and reads."""


def momentum_of(parameter: str) -> str:
    """Name of the momentum of the parameter of that name."""
    return f"{parameter}.momentum"


class _Mode:
    """Rewrites the forward operations into a new graph."""

    def __init__(self, forward: Graph, training: bool) -> None:
        self.assembly = Assembly(forward.name)
        self.forward = forward = pool_first(forward)
        self._training = training
        self._map: dict[int, int] = {}
        self._phase = Phase.FORWARD
        for tensor in forward.tensors:
            if tensor.role is not Role.ACTIVATION:
                self._map[tensor.id] = self.assembly.tensor(
                    tensor.name, tensor.spec, tensor.role, tensor.initializer, tensor.part
                )
        self.key = self.assembly.tensor(RANDOM_KEY, TensorSpec((2,), "int64"), Role.SCALARS) if training else -1

    def spec(self, tensor: int) -> TensorSpec:
        return self.assembly.spec(tensor)

    def emit(
        self,
        kind: str,
        op: Op,
        inputs: Sequence[int],
        outputs: Mapping[str, TensorSpec],
        attrs: Attrs,
        updates: Sequence[int] = (),
    ) -> tuple[int, ...]:
        name = self.forward.tensors[op.outputs[0]].name
        made = [
            self.assembly.tensor(f"{name}.{part}" if part else name, spec, Role.ACTIVATION)
            for part, spec in outputs.items()
        ]
        self.assembly.op(kind, op.name, inputs, made, attrs, updates=updates, phase=self._phase)
        return tuple(made)

    def rewrite(self) -> int:
        """Append all forward operations; return the logits."""
        for op in self.forward.ops:
            kind = kind_of(op)
            mode = kind.training if self._training else kind.evaluation
            inputs = tuple(self._map[t] for t in op.inputs)
            if mode is None:
                specs = {str(i) if i else "": self.forward.tensors[t].spec for i, t in enumerate(op.outputs)}
                made = self.emit(op.kind, op, inputs, specs, op.attrs)
                self._map.update(zip(op.outputs, made, strict=True))
            else:
                try:
                    self._map[op.outputs[0]] = mode(self, op, inputs)
                except ShapeRule as rule:
                    raise ShapeError(f"{op.name} ({op.kind})", rule.expected, rule.actual, rule.hint) from None
        return self._map[self.forward.outputs[0]]

    def loss(self, logits: int) -> Op:
        """Append the loss of `logits` against a new tensor of labels."""
        assert CROSS_ENTROPY.shapes is not None
        labels = TensorSpec((self.spec(logits).shape[0],), "int64")
        try:
            loss, correct = CROSS_ENTROPY.shapes((self.spec(logits), labels), {})
        except ShapeRule as rule:
            raise ShapeError("loss", rule.expected, rule.actual, rule.hint) from None
        return self.assembly.op(
            CROSS_ENTROPY.name,
            "loss",
            (logits, self.assembly.tensor(LABELS, labels, Role.LABEL)),
            (
                self.assembly.tensor(LOSS, loss, Role.METRIC),
                self.assembly.tensor(CORRECT, correct, Role.METRIC),
            ),
            phase=Phase.LOSS,
        )


class _Backward:
    """Appends the backward pass and the updates to a graph that holds forward pass and loss."""

    def __init__(self, assembly: Assembly, optimizer: SGD) -> None:
        self.assembly = assembly
        self._optimizer = optimizer
        self._gradients: dict[int, int] = {}
        self._current: Op | None = None
        self._needs = self._find_needs()
        self.scalars = assembly.tensor(SCALARS, TensorSpec((2,), "float64"), Role.SCALARS)
        self._readers: dict[int, int] = {}
        for op in assembly.ops:
            for tensor in op.inputs:
                if assembly.tensors[tensor].role is Role.PARAMETER:
                    self._readers[tensor] = self._readers.get(tensor, 0) + 1

    def _find_needs(self) -> list[bool]:
        needs = [t.role is Role.PARAMETER for t in self.assembly.tensors]
        for op in self.assembly.ops:
            if any(needs[t] for t in op.inputs):
                for tensor in op.outputs:
                    needs[tensor] = True
        return needs

    def spec(self, tensor: int) -> TensorSpec:
        return self.assembly.spec(tensor)

    def needs_gradient(self, tensor: int) -> bool:
        return self._needs[tensor]

    def emit(self, kind: str, inputs: Sequence[int], like: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
        assert self._current is not None
        made = tuple(
            self.assembly.derived(f"{self.assembly.tensors[t].name}.gradient", self.spec(t), Role.GRADIENT)
            for t in like
        )
        self.assembly.op(
            kind, self._current.name, inputs, made, attrs, phase=Phase.BACKWARD, forward_op=self._current.id
        )
        return made

    def loss(self, op: Op) -> None:
        """Append the gradient of the loss."""
        self._current = op
        self._gradients[op.inputs[0]] = loss_gradient(self, op, self.scalars)[0]

    def operation(self, op: Op) -> None:
        """Append the gradient of one forward operation and the updates that it completes."""
        kind = kind_of(op)
        if kind.backward is None or not any(self._needs[t] for t in op.inputs):
            return
        gradients = tuple(self._gradients.pop(t) for t in op.outputs if t in self._gradients)
        if not gradients:
            raise GraphError(op.name, "an output that the loss depends on", "none", "Remove the layer.")
        self._current = op
        for tensor, gradient in zip(op.inputs, kind.backward(self, op, gradients), strict=True):
            if gradient is not None and self._needs[tensor]:
                self._accumulate(tensor, gradient)
        for tensor in op.inputs:
            if tensor in self._readers:
                self._readers[tensor] -= 1
                if self._readers[tensor] == 0:
                    self._update(tensor)

    def _accumulate(self, tensor: int, gradient: int) -> None:
        earlier = self._gradients.get(tensor)
        self._gradients[tensor] = (
            gradient if earlier is None else self.emit("add", (earlier, gradient), (tensor,), MappingProxyType({}))[0]
        )

    def _update(self, parameter: int) -> None:
        assert self._current is not None
        tensor = self.assembly.tensors[parameter]
        updates = [parameter]
        if self._optimizer.momentum:
            part = tensor.part and replace(tensor.part, whole=momentum_of(tensor.part.whole))
            updates.append(self.assembly.tensor(momentum_of(tensor.name), tensor.spec, Role.MOMENTUM, part=part))
        weight, *momentum = updates
        self.assembly.op(
            "sgd_update",
            tensor.name,
            (weight, self._gradients.pop(parameter), *momentum, self.scalars),
            (),
            self._optimizer.attrs,
            updates=updates,
            phase=Phase.UPDATE,
            forward_op=self._current.id,
        )


def training_graph(forward: Graph, optimizer: SGD) -> Graph:
    """The graph of one training step: forward, mean softmax cross-entropy, backward and updates.

    The host writes `images`, `labels` (int64, (N,)), `scalars` and `random_key`, and reads `loss` (1,) and `correct`
    (2,): the number of images whose label is the first, and among the first five.

    Raises:
        ShapeError: the network does not end in (N, classes), or a batch norm sees one value per channel.
        GraphError: a layer does not reach the loss.
    """
    mode = _Mode(forward, training=True)
    loss = mode.loss(mode.rewrite())
    backward = _Backward(mode.assembly, optimizer)
    forward_ops = [op for op in mode.assembly.ops if op.phase is Phase.FORWARD]
    backward.loss(loss)
    for op in reversed(forward_ops):
        backward.operation(op)
    return mode.assembly.graph(loss.outputs, forward.layers + 1)


def evaluation_graph(forward: Graph) -> Graph:
    """The graph that computes loss and counts with running statistics and without dropout."""
    mode = _Mode(forward, training=False)
    loss = mode.loss(mode.rewrite())
    return mode.assembly.graph(loss.outputs, forward.layers + 1)


def prediction_graph(forward: Graph) -> Graph:
    """The graph that computes the network's output with running statistics and without dropout."""
    mode = _Mode(forward, training=False)
    return mode.assembly.graph((mode.rewrite(),), forward.layers)
