"""Which layout each tensor has: blocked inside the network, plain at its ends, weights as the forward pass wants them.

A convolution's output is blocked, and what follows keeps the layout of its input; images stay plain, since a blocked
image of three channels would be mostly padding. Where an operation needs another layout, a `convert` operation is
inserted for it alone: no copy outlives the operation that asked for it. Gradients, and the optimizer's state, have the
layout of what they belong to.

An operation that the library does not compute runs on numpy: over any layout that its operands share where its kind is
declared flat (`OpKind.flat`), else on plain layouts.

The layout of a weight is that of a batch of one image. The programs of a session share the state: one of them decides
its layouts, and the others are lowered with these as they are given, and convert what they want otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....layers.graph import STATE, Graph, Op, Phase, Role, Tensor
from ....layers.operations import Attrs
from ....layers.shape import CONVERT
from ....memory.errors import ConfigError, PlanError
from .convolution import convolution_forward, group_shape
from .fast_layouts import ForwardLayouts, choose_data_gradient, choose_image_layout, choose_weight_gradient
from .flat import is_flat, take_part
from .handles import QUERY_DIFF_WEIGHTS, QUERY_WEIGHTS, QUERY_WORKSPACE, PrimitiveDescriptor
from .layouts import PLAIN, Layouts
from .normalization import normalization_forward
from .pooling import MAX, pooling_forward
from .primals import find_primals
from .recipes import computes, is_fast

LayoutRequest = tuple[list[str], list[tuple[str, int | None]]]
"""Layouts that an operation wants of its inputs and makes of its outputs, with bytes where no layout tells them."""


class Lowering:
    """A graph while its tensors get their layouts."""

    def __init__(self, graph: Graph, layouts: Layouts, state: Mapping[str, Tensor] | None = None) -> None:
        self._graph = graph
        self._state = state
        self._layouts = layouts
        self._tensors = list(graph.tensors)
        self._ops: list[Op] = []
        self._forward: dict[int, int] = {}
        self._primal = find_primals(graph)
        self._attrs: dict[int, Attrs] = {}
        self._image_layouts: dict[tuple[object, ...], str] = {}

    def run(self) -> Graph:
        """Give every tensor its layout and insert the conversions.

        Raises:
            ConfigError: the graph computes in another type than float32.
            PlanError: the state is given in a layout that this library object has not made.
        """
        for tensor in self._graph.with_role(Role.INPUT):
            if tensor.dtype != "float32":
                raise ConfigError("dtype", "float32 on the device 'onednn'", tensor.dtype, "Give device='reference'.")
        weights: set[int] = set()
        if self._state is not None:
            weights = {tensor.id for tensor in self._graph.with_role(*STATE)}
            self._take_layouts(self._state)
        for op in self._graph.ops:
            if op.kind == "conv2d" and op.inputs[1] not in weights:
                weights.add(op.inputs[1])
                self._set(op.inputs[1], self._choice(op, 1)[2])
        for op in self._graph.ops:
            self._lower(op)
        return replace(self._graph, tensors=tuple(self._tensors), ops=tuple(self._ops))

    def _take_layouts(self, state: Mapping[str, Tensor]) -> None:
        """Give the state the layouts that another graph has it in."""
        for tensor in self._graph.with_role(*STATE):
            if tensor.name in state:
                layout = state[tensor.name].layout
                if not self._layouts.has(tensor.shape, layout):
                    raise PlanError(tensor.name, "a layout that a graph lowered before has", repr(layout))
                self._set(tensor.id, layout)

    def _lower(self, op: Op) -> None:
        computed = self._is_computed(op)
        flat = not computed and is_flat(op, self._tensors)
        if flat:
            for t in op.updates:
                self._set(t, self._tensors[op.inputs[0]].layout)
        wanted, made = self._request_layouts(op) if computed else self._request_of_numpy(op, flat)
        inputs = [self._bring_to(op, t, name, computed) for t, name in zip(op.inputs, wanted, strict=True)]
        outputs, conversions = [], []
        for t, (name, nbytes) in zip(op.outputs, made, strict=True):
            final = self._primal_layout(t)
            if final is None or self._serves(self._tensors[t].shape, name, final, computed):
                self._set(t, name if final is None else final, nbytes if final is None else None)
                outputs.append(t)
            else:
                outputs.append(self._copy(t, name))
                self._set(t, final)
                conversions.append((outputs[-1], t))
        self._append(op, inputs, outputs)
        for source, target in conversions:
            self._convert(op, source, target)

    def _is_computed(self, op: Op) -> bool:
        """Whether the library computes `op`, rather than the reference backend."""
        inputs, outputs = ([self._tensors[t].spec for t in ids] for ids in (op.inputs, op.outputs))
        return computes(op.kind, inputs, outputs, op.attrs) and is_fast(self._layouts.engine, op.kind)

    def _serves(self, shape: tuple[int, ...], found: str, wanted: str, computed: bool) -> bool:
        """Whether a tensor in one layout can pass for one in the other: the library must be told the very layout."""
        return found == wanted if computed else self._layouts.same_bytes(shape, found, wanted)

    def _request_plain(self, op: Op) -> LayoutRequest:
        return [PLAIN] * len(op.inputs), [(PLAIN, None)] * len(op.outputs)

    def _request_of_numpy(self, op: Op, flat: bool) -> LayoutRequest:
        """Request layouts for an operation that numpy computes: plain ones, or for a flat one that of its first input.

        A flat gradient takes the layout that its result must have in the end, so that nothing is converted behind it.

        Raises:
            ConfigError: an operation that is not flat updates a tensor that does not lie plain.
        """
        if not flat:
            for t in op.updates:
                if self._tensors[t].layout != PLAIN:
                    raise ConfigError(
                        f"{op.name} ({op.kind})",
                        "on the device 'onednn' an update of a kind that is declared flat",
                        f"one that is not, of {self._tensors[t].name} in the layout of a convolution's weight",
                        "Declare the kind with flat=True where that is true of it, or give device='reference'.",
                    )
            return self._request_plain(op)
        layout = self._primal_layout(op.outputs[0]) if op.outputs and op.phase is Phase.BACKWARD else None
        layout = self._tensors[op.inputs[0]].layout if layout is None else layout
        part = take_part(op, self._tensors)
        wanted = [layout if taking else PLAIN for taking in part[: len(op.inputs)]]
        return wanted, [(layout, None)] * len(op.outputs)

    def _request_layouts(self, op: Op) -> LayoutRequest:
        tensors = self._tensors
        now = [tensors[t].layout for t in op.inputs]
        made: list[tuple[str, int | None]] = [(PLAIN, None)] * len(op.outputs)
        if op.kind == "conv2d":
            return self._convolution(op)
        if op.kind == "conv2d_backward_data":
            return self._convolution_data(op)
        if op.kind == "conv2d_backward_weights":
            return self._convolution_weights(op)
        if op.phase is not Phase.BACKWARD and op.outputs:
            x, y = (tensors[t].shape for t in (op.inputs[0], op.outputs[0]))
            # A deep network has thousands of few kinds, and each choice asks the library several times.
            key = (op.kind, tuple(sorted(op.attrs.items())), x, y, now[0])
            if key not in self._image_layouts:
                self._image_layouts[key] = choose_image_layout(self._layouts, op.kind, op.attrs, x, y, now[0])
            now[0] = self._image_layouts[key]
        if op.kind == "max_pool":
            return now, [(self._follow_layout(op, now[0]), None), self._index(op, now[0])]
        if op.kind == "batch_norm_relu":
            return now, [(self._follow_layout(op, now[0]), None), *made[1:3], self._mask(op, now[0])]
        if op.kind in ("add", "add_relu"):
            layout = self._primal_layout(op.outputs[0]) if op.phase is Phase.BACKWARD else None
            layout = now[0] if layout is None else layout
            return [layout] * 2, [(layout, None)]
        if len(tensors[op.inputs[0]].shape) == 4:
            if op.phase is Phase.BACKWARD:
                image = self._graph.ops[op.forward_op].inputs[0]
                now = [
                    self._output_layout(op)
                    if tensors[t].role is Role.GRADIENT
                    else self._image(op)
                    if t == image
                    else tensors[t].layout
                    for t in op.inputs
                ]
            return now, [(self._follow_layout(op, now[0]), None), *made[1:]]
        return self._request_plain(op)

    def _follow_layout(self, op: Op, layout: str) -> str:
        """Return the layout of the first output: blocked if the input is."""
        shape = self._tensors[op.outputs[0]].shape
        return PLAIN if layout == PLAIN else self._layouts.add_blocked(shape)

    def _convolution(self, op: Op) -> LayoutRequest:
        x, y = (self._tensors[t].shape for t in (op.inputs[0], op.outputs[0]))
        x_blocked, y_blocked, weight = self._choice(op, x[0])
        bias = [PLAIN] * (len(op.inputs) - 2)
        return [self._layout(x, x_blocked), weight, *bias], [(self._layout(y, y_blocked), None)]

    def _choice(self, op: Op, batch: int) -> tuple[bool, bool, str]:
        """Choose the layouts of a convolution of `batch` images.

        Returns:
            whether the input is blocked, whether the output is, and the layout of the weight.
        """
        x, weight, *bias = (self._tensors[t] for t in op.inputs)
        layouts, engine = self._layouts, self._layouts.engine
        image, output = (batch, *x.shape[1:]), (batch, *self._tensors[op.outputs[0]].shape[1:])
        for x_blocked, y_blocked in ((x.role is not Role.INPUT, True), (False, False)):
            made = convolution_forward(
                engine,
                layouts.of(image, self._layout(image, x_blocked)),
                engine.describe_undecided(group_shape(weight.shape, op.attrs["groups"])),
                layouts.of(bias[0].shape, PLAIN) if bias else None,
                layouts.of(output, self._layout(output, y_blocked)),
                op.attrs,
            )
            if not made.implementation.startswith("ref"):
                break
        return x_blocked, y_blocked, self._weight(made, QUERY_WEIGHTS, weight.shape)

    def _layout(self, shape: tuple[int, ...], blocked: bool) -> str:
        return self._layouts.add_blocked(shape) if blocked else PLAIN

    def _weight(self, made: PrimitiveDescriptor, query: int, shape: tuple[int, ...]) -> str:
        """Return the layout that a primitive has chosen for a weight or for its gradient."""
        found = made.descriptor(query)
        assert found is not None
        return self._layouts.add(shape, found)

    def _convolution_data(self, op: Op) -> LayoutRequest:
        dy, weight = (self._tensors[t] for t in op.inputs)
        dx = self._tensors[self._graph.ops[op.forward_op].inputs[0]]
        shape = group_shape(weight.shape, op.attrs["groups"])
        way = choose_data_gradient(self._layouts, dx.shape, shape, dy.shape, self._read_forward(op))
        return [way.output, self._weight(way.found, QUERY_WEIGHTS, weight.shape)], [(way.image, None)]

    def _convolution_weights(self, op: Op) -> LayoutRequest:
        x, dy = (self._tensors[t] for t in op.inputs)
        weight, *biases = (self._tensors[t] for t in self._graph.ops[op.forward_op].inputs[1:])
        shape, bias = group_shape(weight.shape, op.attrs["groups"]), biases[0].shape if biases else None
        way = choose_weight_gradient(self._layouts, x.shape, shape, bias, dy.shape, self._read_forward(op))
        self._attrs[op.id] = way.attrs
        gradient = self._weight(way.found, QUERY_DIFF_WEIGHTS, weight.shape)
        return [way.image, way.output], [(gradient, None), *[(PLAIN, None)] * len(biases)]

    def _read_forward(self, op: Op) -> ForwardLayouts:
        """Return what the forward convolution has of which `op` is a gradient."""
        return ForwardLayouts(self._image(op), self._output_layout(op), op.attrs)

    def _image(self, op: Op) -> str:
        """Return the layout in which the forward convolution of `op` read its image."""
        forward = self._ops[self._forward[op.forward_op]]
        return self._tensors[forward.inputs[0]].layout

    def _index(self, op: Op, layout: str) -> tuple[str, int | None]:
        """Return layout and bytes of a max pooling's indices: whatever the library keeps for its backward pass."""
        x, y, index = (self._tensors[t] for t in (op.inputs[0], *op.outputs))
        made, _ = pooling_forward(
            self._layouts.engine,
            self._layouts.of(x.shape, layout),
            self._layouts.of(y.shape, self._follow_layout(op, layout)),
            op.attrs,
            MAX,
        )
        return self._workspace_layout(index.shape, made, "index")

    def _mask(self, op: Op, layout: str) -> tuple[str, int | None]:
        """Return layout and bytes of the mask of a batch norm with ReLU, which the library keeps for the gradient."""
        x, mask = self._tensors[op.inputs[0]], self._tensors[op.outputs[3]]
        made = normalization_forward(self._layouts.engine, self._layouts.of(x.shape, layout), op.attrs)
        return self._workspace_layout(mask.shape, made, "mask")

    def _workspace_layout(self, shape: tuple[int, ...], made: PrimitiveDescriptor, what: str) -> tuple[str, int | None]:
        """Return layout and bytes of what a primitive notes for its backward pass, in a form of the library's own."""
        found = made.descriptor(QUERY_WORKSPACE)
        assert found is not None
        return self._layouts.add(shape, found, f"{what} {found.nbytes} {found.layout}"), found.nbytes

    def _primal_layout(self, tensor: int) -> str | None:
        """Return the layout that a tensor must end in if it is a gradient: that of the tensor whose gradient it is.

        It is None for all other tensors, and for gradients that no operation reads, which may have any layout.
        """
        return self._tensors[self._primal[tensor]].layout if tensor in self._primal else None

    def _output_layout(self, op: Op) -> str:
        """Return the layout of the output of the forward operation that `op` is the gradient of."""
        return self._tensors[self._graph.ops[op.forward_op].outputs[0]].layout

    def _set(self, tensor: int, layout: str, nbytes: int | None = None) -> None:
        old = self._tensors[tensor]
        size = old.nbytes if layout == PLAIN else self._layouts.of(old.shape, layout).nbytes
        self._tensors[tensor] = replace(old, layout=layout, nbytes=size if nbytes is None else nbytes)

    def _copy(self, tensor: int, layout: str) -> int:
        """Add a tensor for the values of another in another layout."""
        old = self._tensors[tensor]
        number = len(self._tensors)
        self._tensors.append(replace(old, id=number, name=f"{old.name}.converted{number}"))
        self._set(number, PLAIN)
        self._tensors[number] = replace(self._tensors[number], nbytes=old.spec.nbytes)
        self._set(number, layout)
        return number

    def _bring_to(self, op: Op, tensor: int, layout: str, computed: bool) -> int:
        found = self._tensors[tensor]
        if self._serves(found.shape, found.layout, layout, computed):
            return tensor
        role = Role.GRADIENT if found.role is Role.GRADIENT else Role.ACTIVATION
        number = self._copy(tensor, layout)
        self._tensors[number] = replace(self._tensors[number], role=role, initializer=None, part=None)
        self._convert(op, tensor, number)
        return number

    def _convert(self, op: Op, source: int, target: int) -> None:
        own = op.phase in (Phase.FORWARD, Phase.LOSS)
        number = len(self._ops)
        forward_op = number if own else self._forward[op.forward_op]
        phase = Phase.BACKWARD if op.phase is Phase.UPDATE else op.phase
        self._ops.append(Op(number, CONVERT.name, op.name, (source,), (target,), phase=phase, forward_op=forward_op))

    def _append(self, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        number = len(self._ops)
        own = op.forward_op == op.id
        self._forward[op.id] = number
        forward_op = number if own else self._forward[op.forward_op]
        attrs = self._attrs.get(op.id, op.attrs)
        self._ops.append(
            replace(op, id=number, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs, forward_op=forward_op)
        )
