"""The other side of a comparison: the same network and the same step, by PyTorch.

Decided from the forward graph alone: each operation becomes PyTorch's function, in graph order, with the same first
values, and autograd and `torch.optim.SGD` do the rest. It is written to PyTorch's advantage: tensors of four dimensions
in channels-last order, activations in place where their input is read by nothing else, no tensor held longer than
autograd needs it, and in the checkpointed kinds the last part is kept, because it would be computed again at once.
Does not check that PyTorch has a kernel that is as good for every shape, and knows nothing of plans or backends.

Source of the checkpointed kinds: Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174;
`torch.utils.checkpoint`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layers.graph import Graph, Op, Phase, Role
from ..layers.initializers import initialize
from ..layers.modes import training_graph
from ..layers.optimizers.optimizer import Optimizer
from ..layers.optimizers.sgd import SGD
from ..memory.errors import DeviceError, one_of
from ..scheduler.blocks.cut import assign_blocks

Array = npt.NDArray[Any]

OWN_INPUT = frozenset({"conv2d", "linear", "batch_norm", "add"})
"""Kinds whose backward pass does not read their output, so that an activation may overwrite it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way in which PyTorch may run the step.

    Attributes:
        description: one line for people.
        parts: from the number of blocks to the number of parts that are checkpointed; None keeps everything.
        channels_last: the order of tensors of four dimensions; else PyTorch's default.
    """

    description: str
    parts: Callable[[int], int] | None = None
    channels_last: bool = True


def _one_each(blocks: int) -> int:
    return blocks


def _square_root(blocks: int) -> int:
    return max(1, round(math.sqrt(blocks)))


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "torch": Peer("PyTorch, channels last"),
        "torch-contiguous": Peer("PyTorch, its default order (N, C, H, W)", channels_last=False),
        "torch-checkpoint": Peer("PyTorch, channels last, a checkpoint per block", _one_each),
        "torch-sequential": Peer("PyTorch, channels last, √blocks checkpoints", _square_root),
    }
)


def require_torch(name: str = "torch") -> None:
    """Find PyTorch without loading it.

    Raises:
        DeviceError: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise DeviceError(name, "PyTorch", "no package of that name", 'Install it: pip install "bathyal[bench]"')


def split(graph: Graph, parts: Callable[[int], int] | None) -> tuple[tuple[Op, ...], ...]:
    """Return the forward operations in consecutive runs of whole blocks, as equal in number as can be.

    The blocks are those of the training step, which knows what the backward pass reads.

    Args:
        graph: from `forward_graph`.
        parts: from the number of blocks to the number of runs; None makes one.
    """
    if parts is None:
        return (graph.ops,)
    step = assign_blocks(training_graph(graph, SGD()))
    block_of = {step.tensors[t].name: op.block for op in step.ops if op.phase is Phase.FORWARD for t in op.outputs}
    blocks = max(block_of.values()) + 1
    count = min(parts(blocks), blocks)
    part_of = {block: i for i in range(count) for block in range(i * blocks // count, (i + 1) * blocks // count)}

    def find_part(op: Op) -> int:
        return part_of[block_of[graph.tensors[op.outputs[0]].name]]

    return tuple(tuple(ops) for _, ops in groupby(graph.ops, key=find_part))


class TorchStep:
    """A network that PyTorch trains, with its parameters and optimizer.

    Args:
        graph: from `forward_graph`, without dropout: PyTorch would draw other numbers.
        peer: name of a peer.
        optimizer: what updates the parameters.
        seed: of the first values, as Bathyal draws them.
        threads: of PyTorch's kernels; set for the whole process.
        device: PyTorch's name of what computes.

    Raises:
        ConfigError: no such peer.
        DeviceError: PyTorch is not installed, or nobody has said what its optimizer of that kind is.
    """

    def __init__(
        self, graph: Graph, peer: str, optimizer: Optimizer, *, seed: int, threads: int, device: str = "cpu"
    ) -> None:
        require_torch(one_of("peer", peer, list(PEERS)))
        self._torch: Any = importlib.import_module("torch")
        self._functional: Any = importlib.import_module("torch.nn.functional")
        self._checkpoint: Any = importlib.import_module("torch.utils.checkpoint").checkpoint
        self._torch.set_num_threads(threads)
        self._device = device
        self._graph = graph
        self._channels_last = PEERS[peer].channels_last
        (images,) = graph.with_role(Role.INPUT)
        self._images = images
        self._state: dict[int, Any] = {}
        for tensor in graph.with_role(Role.PARAMETER, Role.BUFFER):
            assert tensor.initializer is not None
            values = initialize(tensor.initializer, tensor.shape, tensor.dtype, seed=seed, name=tensor.name)
            self._state[tensor.id] = self._tensor(values).requires_grad_(tensor.role is Role.PARAMETER)
        self._optimizer = self._make_optimizer(optimizer)
        self._readers = graph.readers()
        self._producers = graph.producers()
        self._parts = split(graph, PEERS[peer].parts)

    def flush_subnormals(self) -> None:
        """Let PyTorch take subnormal numbers for zero, as a step of ours does, in this thread and those it will make.

        PyTorch has no such choice for one step alone: it holds for the whole process.
        """
        self._torch.set_flush_denormal(True)

    def _make_optimizer(self, optimizer: Optimizer) -> Any:
        """PyTorch's optimizer over all parameters."""
        parameters = [self._state[t.id] for t in self._graph.with_role(Role.PARAMETER)]
        match optimizer.kind:
            case SGD.kind:
                return self._torch.optim.SGD(parameters, lr=optimizer.learning_rate, **optimizer.attrs)
            case kind:
                raise DeviceError("optimizer", "one that PyTorch has, such as SGD", repr(kind), "Compare with SGD.")

    def _tensor(self, values: Array) -> Any:
        tensor = self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
        if tensor.dim() == 4 and self._channels_last:
            return tensor.contiguous(memory_format=self._torch.channels_last)
        return tensor

    def train_step(self, images: Array, labels: Array) -> float:
        """Forward, mean softmax cross-entropy, backward and update for one batch; return the loss.

        Args:
            images: (N, C, H, W), in the element type of the graph.
            labels: (N,), int64.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._functional.cross_entropy(self._forward(self._tensor(images)), self._tensor(labels))
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    def values(self) -> dict[str, Array]:
        """Copies of present parameters and running statistics, by name."""
        tensors = self._graph.with_role(Role.PARAMETER, Role.BUFFER)
        return {t.name: self._state[t.id].detach().contiguous().cpu().numpy().copy() for t in tensors}

    def _forward(self, x: Any) -> Any:
        entering = self._images.id
        *checkpointed, last = self._parts
        for ops in checkpointed:
            leaving = self._find_leaving(ops)
            x = self._checkpoint(self._run, ops, entering, leaving, x, use_reentrant=False, preserve_rng_state=False)
            entering = leaving
        return self._run(last, entering, self._graph.outputs[0], x)

    def _find_leaving(self, ops: Sequence[Op]) -> int:
        """Return the one tensor that goes from a part to the next."""
        inside = {op.id for op in ops}
        (found,) = (t for op in ops for t in op.outputs if any(reader not in inside for reader in self._readers[t]))
        return found

    def _run(self, ops: Sequence[Op], entering: int, leaving: int, x: Any) -> Any:
        live = {entering: x}
        del x
        for op in ops:
            live[op.outputs[0]] = self._apply(op, [live[t] if t in live else self._state[t] for t in op.inputs])
            for tensor in op.inputs:
                if tensor in live and tensor != leaving and self._readers[tensor][-1] == op.id:
                    del live[tensor]
        return live[leaving]

    def _may_overwrite(self, op: Op) -> bool:
        """Say whether an activation may overwrite its input."""
        (x,) = op.inputs
        producer = self._producers[x]
        return producer >= 0 and self._graph.ops[producer].kind in OWN_INPUT and self._readers[x] == [op.id]

    def _apply(self, op: Op, inputs: Sequence[Any]) -> Any:
        x, attrs, functional = inputs[0], op.attrs, self._functional
        match op.kind:
            case "conv2d":
                bias = inputs[2] if len(inputs) == 3 else None
                geometry = (attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"])
                return functional.conv2d(x, inputs[1], bias, *geometry)
            case "linear":
                return functional.linear(x, inputs[1], inputs[2] if len(inputs) == 3 else None)
            case "batch_norm":
                _, weight, bias, mean, var = inputs
                return functional.batch_norm(x, mean, var, weight, bias, True, attrs["momentum"], attrs["eps"])
            case "lrn":
                return functional.local_response_norm(x, attrs["size"], attrs["alpha"], attrs["beta"], attrs["k"])
            case "relu":
                return functional.relu(x, inplace=self._may_overwrite(op))
            case "sigmoid":
                return self._torch.sigmoid(x)
            case "tanh":
                return self._torch.tanh(x)
            case "max_pool":
                window = (attrs["kernel"], attrs["stride"], attrs["padding"])
                return functional.max_pool2d(x, *window, ceil_mode=attrs["ceil_mode"])
            case "avg_pool":
                window = (attrs["kernel"], attrs["stride"], attrs["padding"])
                return functional.avg_pool2d(x, *window, attrs["ceil_mode"], attrs["count_include_pad"])
            case "global_avg_pool":
                return functional.adaptive_avg_pool2d(x, 1)
            case "flatten":
                return x.flatten(1)
            case "add":
                return inputs[0] + inputs[1]
            case "concat":
                return self._torch.cat(inputs, 1)
            case kind:
                raise DeviceError(op.name, "an operation that PyTorch has", repr(kind), "Compare another network.")
