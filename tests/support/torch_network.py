"""PyTorch as an independent oracle for whole networks.

`TorchNetwork` interprets the operations of a forward graph with PyTorch's functions and lets autograd find the
gradients, so it agrees with our backward graphs only if those are right. It knows nothing of plans or backends. Only
tests that ask for the oracle import this module, because importing PyTorch takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from bathyal.layers.graph import Graph, Op, Role

Array = npt.NDArray[Any]


class TorchNetwork:
    """A forward graph executed by PyTorch, in the graph's own element type.

    Args:
        graph: from `forward_graph`.
        values: every parameter and running statistic by name; copied.
        training: batch statistics and dropout, and running statistics that move; False takes the running ones.
        masks: for each dropout operation with p > 0, by operation name (the layer's name), what is kept: a boolean
            or 0/1 array of the shape of its input. The scale 1 / (1 − p) is applied here.
        regions: for ReLU and max pooling operations, by operation name, the piece of the piecewise linear network to
            stay in: which elements pass, or the index within the image of each window's winner. Rounding moves values
            across these borders, where gradients jump; two runs in one region differ by rounding alone.

    Attributes:
        activations: every activation of the last forward pass, by tensor name; without the indices of max pooling.
        region: the piece that the last forward pass was in.
    """

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Array],
        *,
        training: bool = True,
        masks: Mapping[str, Array] | None = None,
        regions: Mapping[str, Array] | None = None,
    ) -> None:
        self.graph = graph
        self.training = training
        self.regions = {} if regions is None else regions
        self.region: dict[str, Array] = {}
        self.masks = {} if masks is None else masks
        self.activations: dict[str, torch.Tensor] = {}
        (images,) = graph.with_role(Role.INPUT)
        self._images = images
        self._dtype = {"float32": torch.float32, "float64": torch.float64}[images.dtype]
        self._state: dict[int, torch.Tensor] = {}
        for tensor in graph.with_role(Role.PARAMETER, Role.BUFFER):
            value = np.asarray(values[tensor.name])
            assert value.shape == tensor.shape, f"{tensor.name}: expected {tensor.shape}, got {value.shape}"
            leaf = torch.tensor(value, dtype=self._dtype)
            self._state[tensor.id] = leaf.requires_grad_(tensor.role is Role.PARAMETER)
        self._optimizer: torch.optim.SGD | None = None

    def forward(self, images: Array) -> torch.Tensor:
        """The network's output (N, classes), with its autograd history."""
        live: dict[int, torch.Tensor] = {**self._state, self._images.id: self._tensor(images)}
        self.activations = {}
        for op in self.graph.ops:
            live[op.outputs[0]] = y = self._run(op, [live[t] for t in op.inputs])
            made = self.graph.tensors[op.outputs[0]]
            assert tuple(y.shape) == made.shape, f"{made.name}: expected {made.shape}, got {tuple(y.shape)}"
            self.activations[made.name] = y
        return live[self.graph.outputs[0]]

    def loss(self, images: Array, labels: Array) -> float:
        """Mean softmax cross-entropy of one batch; its gradients replace those of the last call."""
        for parameter in self._named(Role.PARAMETER).values():
            parameter.grad = None
        loss = functional.cross_entropy(self.forward(images), torch.tensor(np.asarray(labels), dtype=torch.int64))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item())

    def sgd_step(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        """Apply `torch.optim.SGD` to the gradients of the last loss; its momentum lasts from call to call."""
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        if self._optimizer is None:
            self._optimizer = torch.optim.SGD(list(self._named(Role.PARAMETER).values()), **options)
        self._optimizer.param_groups[0].update(options)
        self._optimizer.step()

    @property
    def gradients(self) -> dict[str, Array]:
        """Gradient of the last loss by each parameter, by name."""
        found: dict[str, Array] = {}
        for name, parameter in self._named(Role.PARAMETER).items():
            assert parameter.grad is not None, f"{name} has no gradient"
            found[name] = parameter.grad.numpy().copy()
        return found

    @property
    def values(self) -> dict[str, Array]:
        """Present parameters and running statistics, by name."""
        return {name: t.detach().numpy().copy() for name, t in self._named(Role.PARAMETER, Role.BUFFER).items()}

    @property
    def momenta(self) -> dict[str, Array]:
        """The optimizer's momentum by each parameter, by the parameter's name; empty without momentum."""
        if self._optimizer is None:
            return {}
        kept = {n: self._optimizer.state[p] for n, p in self._named(Role.PARAMETER).items()}
        buffers = {name: state.get("momentum_buffer") for name, state in kept.items()}
        return {name: buffer.numpy().copy() for name, buffer in buffers.items() if buffer is not None}

    def _named(self, *roles: Role) -> dict[str, torch.Tensor]:
        return {t.name: self._state[t.id] for t in self.graph.with_role(*roles)}

    def _tensor(self, images: Array) -> torch.Tensor:
        assert images.shape == self._images.shape, f"images: expected {self._images.shape}, got {images.shape}"
        return torch.tensor(images, dtype=self._dtype)

    def _run(self, op: Op, inputs: list[torch.Tensor]) -> torch.Tensor:
        x, attrs = inputs[0], op.attrs
        match op.kind:
            case "conv2d":
                bias = inputs[2] if len(inputs) == 3 else None
                geometry = (attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"])
                return functional.conv2d(x, inputs[1], bias, *geometry)
            case "linear":
                return functional.linear(x, inputs[1], inputs[2] if len(inputs) == 3 else None)
            case "batch_norm":
                _, weight, bias, mean, var = inputs
                return functional.batch_norm(x, mean, var, weight, bias, self.training, attrs["momentum"], attrs["eps"])
            case "lrn":
                return functional.local_response_norm(x, attrs["size"], attrs["alpha"], attrs["beta"], attrs["k"])
            case "relu":
                passes = torch.tensor(self.regions[op.name]) if op.name in self.regions else x > 0
                self.region[op.name] = passes.numpy()
                return torch.where(passes, x, 0.0)
            case "sigmoid":
                return torch.sigmoid(x)
            case "tanh":
                return torch.tanh(x)
            case "max_pool":
                window = (attrs["kernel"], attrs["stride"], attrs["padding"])
                y, winners = functional.max_pool2d(x, *window, ceil_mode=attrs["ceil_mode"], return_indices=True)
                self.region[op.name] = winners.numpy()
                if op.name not in self.regions:
                    return y
                return x.flatten(2).gather(2, torch.tensor(self.regions[op.name]).flatten(2)).reshape(y.shape)
            case "avg_pool":
                window = (attrs["kernel"], attrs["stride"], attrs["padding"])
                return functional.avg_pool2d(x, *window, attrs["ceil_mode"], attrs["count_include_pad"])
            case "global_avg_pool":
                return x.mean((2, 3), keepdim=True)
            case "flatten":
                return x.flatten(1)
            case "add":
                return inputs[0] + inputs[1]
            case "concat":
                return torch.cat(inputs, 1)
            case "dropout":
                if not self.training or attrs["p"] == 0:
                    return x
                assert op.name in self.masks, f"{op.name}: give the mask of what is kept"
                kept = torch.tensor(np.asarray(self.masks[op.name]), dtype=self._dtype)
                assert kept.shape == x.shape, f"{op.name}: expected a mask {tuple(x.shape)}, got {tuple(kept.shape)}"
                return x * kept / (1.0 - float(attrs["p"]))
            case kind:
                raise AssertionError(f"the oracle does not know {kind!r}")
