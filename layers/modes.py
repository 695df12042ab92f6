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
from .graph import Graph, Op, Phase, Role, Tensor, TensorSpec
from .initializers import Constant
from .kinds import KINDS, kind_of
from .losses.cross_entropy import CrossEntropy
from .losses.loss import Loss, find_target
from .members import read_fixed_attrs
from .operations import Attrs, Backward, ShapeRule, Specs
from .optimizers.optimizer import Optimizer, name_slot
from .pool_first import pool_first
from .step_scalars import specify_scalars

CROSS_ENTROPY = CrossEntropy()
SEED, STEP = 0, 1
"""Positions in the int64 tensor `random_key`."""

IMAGES, LABELS, SCALARS, RANDOM_KEY, LOSS, CORRECT = "images", "labels", "scalars", "random_key", "loss", "correct"
"""Names of the tensors that the host writes and reads; `labels` is the target of any loss."""


class _ForwardRewriter:
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
            rewrite = kind.training if self._training else kind.evaluation
            inputs = tuple(self._map[t] for t in op.inputs)
            if rewrite is None:
                specs = {str(i) if i else "": self.forward.tensors[t].spec for i, t in enumerate(op.outputs)}
                made = self.emit(op.kind, op, inputs, specs, op.attrs)
                self._map.update(zip(op.outputs, made, strict=True))
            else:
                try:
                    self._map[op.outputs[0]] = rewrite(self, op, inputs)
                except ShapeRule as rule:
                    raise ShapeError(f"{op.name} ({op.kind})", rule.expected, rule.actual, rule.hint) from None
        return self._map[self.forward.outputs[0]]

    def append_loss(self, loss: Loss, output: int) -> Op:
        """Append the loss of the network's `output` against a new tensor of targets."""
        shapes = KINDS[loss.kind].shapes
        assert shapes is not None, "a loss has a shape rule: `require_loss`"
        target = find_target(loss, self.spec(output)).spec
        attrs = read_fixed_attrs(type(loss).__name__, loss.attrs)
        try:
            specs = shapes((self.spec(output), target), attrs)
        except ShapeRule as rule:
            raise ShapeError("loss", rule.expected, rule.actual, rule.hint) from None
        metrics = _name_metrics(loss, specs)
        names = [LOSS, *metrics, *(f"{LOSS}.saved{i}" for i in range(len(specs) - 1 - len(metrics)))]
        reads = (output, self.assembly.tensor(LABELS, target, Role.LABEL))
        made = [
            self.assembly.tensor(name, spec, Role.ACTIVATION if i > len(metrics) else Role.METRIC)
            for i, (name, spec) in enumerate(zip(names, specs, strict=True))
        ]
        return self.assembly.op(loss.kind, LOSS, reads, made, attrs, phase=Phase.LOSS)


def _name_metrics(loss: Loss, specs: Specs) -> tuple[str, ...]:
    """Names of the tensors of metrics that a loss makes: one that holds all counts, where there are any."""
    expected = (TensorSpec((len(loss.metrics),), "int64"),) if loss.metrics else ()
    if specs[0].shape != (1,) or tuple(specs[1 : 1 + len(expected)]) != expected:
        shapes = "(1,)" + "".join(f", {spec.shape} {spec.dtype}" for spec in expected)
        found = ", ".join(f"{spec.shape} {spec.dtype}" for spec in specs)
        raise GraphError(f"loss ({loss.kind})", f"outputs of shape {shapes}", found, "Mend the kind's shape rule.")
    return (CORRECT,) if expected else ()


class _Backward:
    """Appends the backward pass and the updates to a graph that holds forward pass and loss."""

    def __init__(self, assembly: Assembly, optimizer: Optimizer) -> None:
        self.assembly = assembly
        self._optimizer = optimizer
        self._attrs = read_fixed_attrs(type(optimizer).__name__, optimizer.attrs)
        self._gradients: dict[int, int] = {}
        self._current: Op | None = None
        self._needs = self._find_needs()
        self.scalars = assembly.tensor(SCALARS, specify_scalars(optimizer), Role.SCALARS)
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
            self.assembly.add_derived(f"{self.assembly.tensors[t].name}.gradient", self.spec(t), Role.GRADIENT)
            for t in like
        )
        self.assembly.op(
            kind, self._current.name, inputs, made, attrs, phase=Phase.BACKWARD, forward_op=self._current.id
        )
        return made

    def append_loss_gradient(self, loss: Loss, op: Op) -> None:
        """Append the gradient of the loss."""
        self._current = op
        output = op.inputs[0]
        made = loss.gradient(self, op, self.scalars)
        self._require_gradient(f"loss ({loss.kind})", made, self.spec(output))
        self._gradients[output] = made

    def append_gradient(self, op: Op) -> None:
        """Append the gradient of one forward operation and the updates that it completes."""
        kind = kind_of(op)
        if not any(self._needs[t] for t in op.inputs):
            return
        if kind.backward is None:
            if any(t in self._gradients for t in op.outputs):
                where, hint = f"{op.name} ({op.kind})", "Give its declaration backward=, a gradient rule."
                raise GraphError(where, "a kind with a gradient rule, as what it reads is trained", "none", hint)
            return
        if any(t in self._gradients for t in op.outputs[1:]):
            hint = "Give each output that is trained an operation of its own."
            raise GraphError(f"{op.name} ({op.kind})", "a loss that depends on its first output alone", "others", hint)
        gradients = tuple(self._gradients.pop(t) for t in op.outputs if t in self._gradients)
        if not gradients:
            raise GraphError(op.name, "an output that the loss depends on", "none", "Remove the layer.")
        self._current = op
        for tensor, gradient in zip(op.inputs, self._derive(kind.backward, op, gradients), strict=True):
            if gradient is not None and self._needs[tensor]:
                self._accumulate(tensor, gradient)
        for tensor in op.inputs:
            if tensor in self._readers:
                self._readers[tensor] -= 1
                if self._readers[tensor] == 0:
                    self._update(tensor)

    def _derive(self, rule: Backward, op: Op, gradients: tuple[int, ...]) -> Sequence[int | None]:
        """Ask a gradient rule for one gradient of each input, and check that they are such."""
        where, made = f"{op.name} ({op.kind})", rule(self, op, gradients)
        if not isinstance(made, (tuple, list)) or len(made) != len(op.inputs):
            found, hint = f"{made!r}", "Its gradient rule returns a tuple; None stands where there is no gradient."
            raise GraphError(where, f"{len(op.inputs)} gradients, one for each input", found, hint)
        for tensor, gradient in zip(op.inputs, made, strict=True):
            read = self.assembly.tensors[tensor]
            if gradient is None and read.role is Role.PARAMETER:
                raise GraphError(where, f"a gradient of {read.name}", "None", "Its gradient rule must give one.")
            if gradient is not None:
                self._require_gradient(where, gradient, read.spec)
        return made

    def _require_gradient(self, where: str, gradient: object, spec: TensorSpec) -> None:
        expected = f"a gradient of shape {spec.shape} {spec.dtype} that a backward operation makes"
        if not isinstance(gradient, int) or not 0 <= gradient < len(self.assembly.tensors):
            raise GraphError(where, expected, repr(gradient), "Return what `builder.emit` gives.")
        made = self.assembly.tensors[gradient]
        if made.role is not Role.GRADIENT or made.spec != spec:
            raise GraphError(where, expected, f"{made.name}, {made.shape} {made.dtype}", "Mend its gradient rule.")

    def require_updates(self) -> None:
        """Check at the end that every parameter that is read has been updated.

        Raises:
            GraphError: one has not, as one of its readers does not lead to the loss.
        """
        for tensor, left in self._readers.items():
            if left:
                hint = "Remove the layer that reads it, or let what it makes lead to the loss."
                raise GraphError(self.assembly.tensors[tensor].name, "gradients by all that read it", "fewer", hint)

    def _accumulate(self, tensor: int, gradient: int) -> None:
        earlier = self._gradients.get(tensor)
        self._gradients[tensor] = (
            gradient if earlier is None else self.emit("add", (earlier, gradient), (tensor,), MappingProxyType({}))[0]
        )

    def _update(self, parameter: int) -> None:
        assert self._current is not None
        tensor = self.assembly.tensors[parameter]
        slots = [self._append_slot(tensor, name, start) for name, start in self._optimizer.slots.items()]
        self.assembly.op(
            self._optimizer.kind,
            tensor.name,
            (parameter, self._gradients.pop(parameter), *slots, self.scalars),
            (),
            self._attrs,
            updates=(parameter, *slots),
            phase=Phase.UPDATE,
            forward_op=self._current.id,
        )

    def _append_slot(self, parameter: Tensor, slot: str, start: float) -> int:
        """Append the tensor that the optimizer keeps for a parameter under the name of a slot."""
        part = parameter.part and replace(parameter.part, whole=name_slot(parameter.part.whole, slot))
        # One that starts at 0 has no initializer, so that the fingerprints in old plans stay.
        initializer = Constant(float(start)) if start else None
        name = name_slot(parameter.name, slot)
        return self.assembly.tensor(name, parameter.spec, Role.OPTIMIZER, initializer, part)


def training_graph(forward: Graph, optimizer: Optimizer, loss: Loss = CROSS_ENTROPY) -> Graph:
    """The graph of one training step: forward, loss, backward and updates.

    The host writes `images`, `labels` (the loss's target), `scalars` and `random_key`, and reads `loss` (1,) and, where
    the loss has metrics, `correct`: for each of them, in how many samples of the batch it is so.

    Raises:
        ShapeError: the network's output does not fit the loss, or a batch norm sees one value per channel.
        GraphError: a layer does not reach the loss, or what the loss makes has shapes that no loss may have.
    """
    rewriter = _ForwardRewriter(forward, training=True)
    op = rewriter.append_loss(loss, rewriter.rewrite())
    backward = _Backward(rewriter.assembly, optimizer)
    forward_ops = [op for op in rewriter.assembly.ops if op.phase is Phase.FORWARD]
    backward.append_loss_gradient(loss, op)
    for forward_op in reversed(forward_ops):
        backward.append_gradient(forward_op)
    backward.require_updates()
    return rewriter.assembly.graph(_find_metrics(rewriter.assembly, op), forward.layers + 1)


def evaluation_graph(forward: Graph, loss: Loss = CROSS_ENTROPY) -> Graph:
    """The graph that computes loss and counts with running statistics and without dropout."""
    rewriter = _ForwardRewriter(forward, training=False)
    op = rewriter.append_loss(loss, rewriter.rewrite())
    return rewriter.assembly.graph(_find_metrics(rewriter.assembly, op), forward.layers + 1)


def _find_metrics(assembly: Assembly, op: Op) -> tuple[int, ...]:
    """What the host reads of what the loss makes."""
    return tuple(t for t in op.outputs if assembly.tensors[t].role is Role.METRIC)


def prediction_graph(forward: Graph) -> Graph:
    """The graph that computes the network's output with running statistics and without dropout."""
    rewriter = _ForwardRewriter(forward, training=False)
    return rewriter.assembly.graph((rewriter.rewrite(),), forward.layers)
