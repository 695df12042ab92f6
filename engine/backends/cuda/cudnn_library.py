"""cuDNN through the graph API of its Python package: the only file that knows the module `cudnn`.

A library makes drafts, to which a recipe adds operations, and lists the plans that cuDNN ranks for a finished draft.
Nothing is imported before a library is made. With the properties of a device as text no device is needed, but for
running: heuristics and workspace sizes are those of the device described; a library of the name libcuda.so.1 must be
there all the same, as part of cuDNN is linked against it.

Never offered, whatever the precision: plans that add up in an order that varies (the same step must give the same bits
again) and those that round their inputs or sums below the precision that was asked for.
"""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ....memory.errors import DeviceError
from .request import CHANNELS_LAST, Operand

INSTALL = "Install it with: pip install 'bathyal[cuda13]', or 'bathyal[cuda12]' where the driver is of CUDA 12."

TYPES: Mapping[str, str] = MappingProxyType(
    {"float32": "FLOAT", "bfloat16": "BFLOAT16", "bool": "BOOLEAN", "uint8": "BOOLEAN"}
)
"""cuDNN's names of element types; bytes occur as masks alone."""

NEVER = ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
SCRATCH, SCALAR = 100, 200
"""Where the numbers of tensors begin that are no operands; an operand's is its position + 1."""


def described_device(name: str) -> str:
    """The properties of a device that the package describes, as JSON text: values of its data sheet.

    Raises:
        DeviceError: there is no description of this name.
    """
    folder = importlib.resources.files(__package__) / "devices"
    known = sorted(file.name.removesuffix(".json") for file in folder.iterdir())
    if name not in known:
        raise DeviceError("cuda", f"a described device: {', '.join(known)}", repr(name))
    return (folder / f"{name}.json").read_text()


def placed(operand: Operand) -> tuple[list[int], list[int]]:
    """Dimensions and strides in elements, as cuDNN takes them.

    Images and weights (N, C, H, W) keep this order of dimensions whatever their layout; a vector (C,) is (1, C, 1, 1);
    all else is rows (N, F, 1, 1).
    """
    shape = operand.spec.shape
    if operand.layout == CHANNELS_LAST:
        n, c, h, w = shape
        return [n, c, h, w], [c * h * w, 1, w * c, c]
    rows = 1 if len(shape) == 1 else shape[0]
    features = 1
    for size in shape if len(shape) == 1 else shape[1:]:
        features *= size
    return [rows, features, 1, 1], [features, 1, features, features]


class Draft:
    """A graph of cuDNN that is being put together, and what its execution needs.

    Attributes:
        graph: of the package.
        operands: number of a tensor → position of the operand whose address it gets.
        kept: the numbers among them of outputs that a repeated run must not write.
        scratch: number of a tensor → its bytes, for outputs that nobody reads.
        scalars: number of a tensor → its value.
    """

    def __init__(self, module: Any, graph: Any) -> None:
        self.graph = graph
        self.operands: dict[int, int] = {}
        self.kept: list[int] = []
        self.scratch: dict[int, int] = {}
        self.scalars: dict[int, float] = {}
        self._types = module.data_type

    def operand(self, position: int, operand: Operand) -> Any:
        """The input at a position."""
        self.operands[position + 1] = position
        return self._tensor(position + 1, operand)

    def scalar(self, value: float) -> Any:
        """A number in the host's memory."""
        number = SCALAR + len(self.scalars)
        self.scalars[number] = value
        return self.graph.tensor(
            dim=[1, 1, 1, 1],
            stride=[1, 1, 1, 1],
            data_type=self._types.FLOAT,
            is_pass_by_value=True,
            name=f"scalar{number}",
            uid=number,
        )

    def result(self, tensor: Any, position: int, operand: Operand, kept: bool = False) -> None:
        """Make of a tensor the output at a position; `kept` if a repeated run must not write it."""
        self.operands[position + 1] = position
        if kept:
            self.kept.append(position + 1)
        self._output(tensor, position + 1, operand)

    def discard(self, tensor: Any, operand: Operand) -> None:
        """Let a tensor that cuDNN insists on writing, of float32 and the shape of `operand`, be written to scratch."""
        number = SCRATCH + len(self.scratch)
        self.scratch[number] = operand.spec.nbytes
        self._output(tensor, number, operand)

    def rounded(self, tensor: Any, operand: Operand) -> Any:
        """Give an intermediate tensor the element type of an operand."""
        return tensor.set_data_type(self._type(operand))

    def convolution(self, x: Any, weight: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The output of a convolution."""
        return self.graph.conv_fprop(image=x, weight=weight, **geometry)

    def convolution_data(self, dy: Any, weight: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The gradient of a convolution's image."""
        return self.graph.conv_dgrad(loss=dy, filter=weight, **geometry)

    def convolution_weights(self, x: Any, dy: Any, geometry: Mapping[str, list[int]]) -> Any:
        """The gradient of a convolution's weight."""
        return self.graph.conv_wgrad(image=x, loss=dy, **geometry)

    def add(self, a: Any, b: Any) -> Any:
        """The sum a + b, with `b` spread over dimensions of size 1."""
        return self.graph.add(a=a, b=b)

    def multiply(self, a: Any, b: Any) -> Any:
        """The product a · b, element by element; of a mask, 0 and 1 are taken."""
        return self.graph.mul(a=a, b=b)

    def relu(self, x: Any) -> Any:
        """The tensor max(x, 0)."""
        return self.graph.relu(input=x)

    def relu_gradient(self, y: Any, dy: Any) -> Any:
        """Where y > 0 the gradient dy, else 0."""
        return self.graph.relu_backward(loss=dy, input=y)

    def positive(self, x: Any) -> Any:
        """The mask x > 0."""
        return self.graph.cmp_gt(input=x, comparison=self.scalar(0.0))

    def batch_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
        """The output, mean, 1 / √(var + eps), and running statistics, which are to be discarded.

        Not all versions of the package have a form without running statistics. What is given as such is of no account.
        """
        made: Sequence[Any] = self.graph.batchnorm(
            input=x,
            scale=weight,
            bias=bias,
            in_running_mean=weight,
            in_running_var=bias,
            epsilon=self.scalar(eps),
            momentum=self.scalar(0.0),
        )
        return tuple(made)

    def batch_norm_gradient(self, x: Any, dy: Any, weight: Any, mean: Any, inverse: Any) -> tuple[Any, ...]:
        """The gradients of image, scale and shift."""
        made: Sequence[Any] = self.graph.batchnorm_backward(
            grad=dy, input=x, scale=weight, mean=mean, inv_variance=inverse
        )
        return tuple(made)

    def _type(self, operand: Operand) -> Any:
        return getattr(self._types, TYPES[operand.spec.dtype])

    def _tensor(self, number: int, operand: Operand) -> Any:
        dim, stride = placed(operand)
        return self.graph.tensor(
            dim=dim, stride=stride, data_type=self._type(operand), name=f"tensor{number}", uid=number
        )

    def _output(self, tensor: Any, number: int, operand: Operand) -> None:
        dim, stride = placed(operand)
        tensor.set_output(True).set_uid(number).set_data_type(self._type(operand)).set_dim(dim).set_stride(stride)


Recipe = Callable[[Draft], None]
"""Adds an operation to a draft: what is left open is the draft alone, as every list of plans needs a new one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan of cuDNN for a draft; built.

    Attributes:
        name: of its engine and its settings.
        workspace_bytes: what it needs while it runs.
        draft: that it runs.
        index: in the list of the draft's graph.
    """

    name: str
    workspace_bytes: int
    draft: Draft
    index: int

    def run(self, addresses: Mapping[int, int], workspace: int, handle: Any) -> None:
        """Queue the plan on the stream of `handle`; `addresses` by number of the tensor, those of scalars on the host."""
        self.draft.graph.execute_plan_at_index(addresses, workspace, self.index, handle=handle)


class CudnnLibrary:
    """cuDNN for one device.

    Args:
        properties: of the device, as JSON text; None takes the current device.
        module: stands in for the package in tests.

    Raises:
        DeviceError: a package, the library or the driver is missing; says which and how to get it.
    """

    def __init__(self, properties: str | None = None, module: Any = None) -> None:
        self._module = _package() if module is None else module
        try:
            self._version = str(self._module.backend_version_string())
        except Exception as error:  # the package has no base class of its own for errors
            raise DeviceError("cuda", "the library libcudnn.so.9", _short(error), INSTALL) from error
        self._device: dict[str, Any] = {}
        try:
            if properties is None:
                self._device["handle"] = self._module.create_handle()
            else:
                self._device["device_property"] = self._module.create_device_properties(properties)
        except Exception as error:
            hint = "It comes with the driver, not with Python packages."
            raise DeviceError("cuda", "a driver (libcuda.so.1) and a device", _short(error), hint) from error

    def version(self) -> str:
        """Name the library's and the package's version, on which results to the bit depend."""
        return f"cuDNN {self._version}, cudnn-frontend {self._module.__version__}"

    def open_handle(self, stream: int) -> Any:
        """Make what runs plans on a stream, given by its address; one for each stream.

        Raises:
            DeviceError: there is no device.
        """
        try:
            handle = self._module.create_handle()
            self._module.set_stream(handle, stream)
        except Exception as error:
            raise DeviceError("cuda", "a device that cuDNN can use", _short(error)) from error
        return handle

    def close_handle(self, handle: Any) -> None:
        """Give back what `open_handle` made."""
        self._module.destroy_handle(handle)

    def draft(self) -> Draft:
        """An empty draft: intermediate tensors and sums in float32."""
        single = self._module.data_type.FLOAT
        graph = self._module.pygraph(
            io_data_type=single, intermediate_data_type=single, compute_data_type=single, **self._device
        )
        return Draft(self._module, graph)

    def plans(self, recipe: Recipe, strict: bool, modes: Sequence[str], compiled: bool) -> Iterator[Plan]:
        """Build one after the other the plans that cuDNN ranks, leaving out those that cannot be built.

        Args:
            recipe: of the operation.
            strict: whether to leave out all that use tensor cores. Element-wise plans are marked so too, which multiply
                no matrices.
            modes: cuDNN's heuristics: "A" ranks by the speed that it expects, "FALLBACK" lists what works anywhere.
            compiled: whether plans may need a compiler when they are built, for 0.3 to 3 s each.

        Raises:
            DeviceError: cuDNN knows no engine for the operation; its reason is the `actual` field.
        """
        draft = self._ranked(recipe, strict, modes, compiled)
        graph = draft.graph
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
                plan = Plan(
                    str(graph.get_plan_name_at_index(index)),
                    int(graph.get_workspace_size_plan_at_index(index)),
                    draft,
                    index,
                )
            except Exception:  # left out by its notes, or its engine refuses the shapes
                continue
            yield plan

    def count(self, recipe: Recipe, strict: bool, modes: Sequence[str] = ("A", "FALLBACK")) -> int:
        """How many plans cuDNN ranks, built or not; raises DeviceError as `plans` does."""
        return int(self._ranked(recipe, strict, modes, True).graph.get_execution_plan_count())

    def _ranked(self, recipe: Recipe, strict: bool, modes: Sequence[str], compiled: bool) -> Draft:
        module = self._module
        draft = self.draft()
        recipe(draft)
        graph = draft.graph
        barred = (*NEVER, "TENSOR_CORE") if strict else NEVER
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([getattr(module.heur_mode, mode) for mode in modes])
            graph.deselect_numeric_notes([getattr(module.numerical_note, note) for note in barred])
            if not compiled:
                graph.deselect_behavior_notes([module.behavior_note.RUNTIME_COMPILATION])
        except Exception as error:
            raise DeviceError("cuda", f"an engine of cuDNN {self._version}", _short(error)) from error
        return draft


def _package() -> Any:
    try:
        return importlib.import_module("cudnn")
    except ImportError as error:
        raise DeviceError("cuda", "the Python package nvidia-cudnn-frontend", str(error), INSTALL) from error


def _short(error: Exception) -> str:
    """What cuDNN says, in a line: its first words and the reasons of its engines, each once."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reasons = dict.fromkeys(line.split("Reason:", 1)[1].strip() for line in lines if "Reason:" in line)
    return "; ".join([lines[0][:200], *(reason[:120] for reason in list(reasons)[:4])])
