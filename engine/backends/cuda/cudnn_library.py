"""cuDNN through the graph API of its Python package: the only file that imports the module `cudnn`.

A library makes empty graphs, to which a function adds an operation, and builds the plans that cuDNN ranks for the
graph. Nothing is imported before a library is made. With the properties of a device as text no device is needed, but
for
running: heuristics and workspace sizes are those of the device described; a library of the name libcuda.so.1 must be
there all the same, as part of cuDNN is linked against it.

Never offered, whatever the precision: plans that add up in an order that varies (the same step must give the same bits
again) and those that round their inputs or sums below the precision that was asked for.
"""

from __future__ import annotations

import importlib
import importlib.resources
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....memory.errors import DeviceError
from .cudnn_graph import CudnnGraph

logger = logging.getLogger(__name__)

INSTALL = "Install it with: pip install 'bathyal[cuda13]', or 'bathyal[cuda12]' where the driver is of CUDA 12."

NEVER = ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")


def read_device_description(name: str) -> str:
    """Read the properties of a device that the package describes: the values of its data sheet, as JSON text.

    It is public for tests and for whoever looks at cuDNN's plans for a GPU that the machine does not have.

    Raises:
        DeviceError: there is no description of this name.
    """
    folder = importlib.resources.files(__package__) / "devices"
    known = sorted(file.name.removesuffix(".json") for file in folder.iterdir())
    if name not in known:
        raise DeviceError("cuda", f"a described device: {', '.join(known)}", repr(name))
    return (folder / f"{name}.json").read_text()


AddOperation = Callable[[CudnnGraph], None]
"""Adds an operation to an empty graph. It is called once for each list of plans, since every list needs a new graph."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One plan of cuDNN for a graph; it has been built.

    Attributes:
        name: of its engine and its settings.
        workspace_bytes: what it needs while it runs.
        graph: what the plan computes.
        index: its place in the list of plans of that graph.
    """

    name: str
    workspace_bytes: int
    graph: CudnnGraph
    index: int

    def run(self, addresses: Mapping[int, int], workspace: int, handle: Any) -> None:
        """Queue the plan on the stream of `handle`; `addresses` are by number of the tensor, of scalars on the host."""
        self.graph.pygraph.execute_plan_at_index(addresses, workspace, self.index, handle=handle)


class CudnnLibrary:
    """cuDNN for one device.

    Args:
        properties: of the device, as JSON text; None takes the current device, with a handle that lasts as long as the
            process.
        module: stands in for the package in tests.

    Raises:
        DeviceError: a package, the library or the driver is missing; says which and how to get it.
    """

    def __init__(self, properties: str | None = None, module: Any = None) -> None:
        self._module = _package() if module is None else module
        try:
            self._version = str(self._module.backend_version_string())
        except Exception as error:  # the package has no base class of its own for errors
            raise DeviceError("cuda", "the library libcudnn.so.9", _shorten(error), INSTALL) from error
        self._device: dict[str, Any] = {}
        try:
            if properties is None:
                self._device["handle"] = self._module.create_handle()
            else:
                self._device["device_property"] = self._module.create_device_properties(properties)
        except Exception as error:
            hint = "It comes with the driver, not with Python packages."
            raise DeviceError("cuda", "a driver (libcuda.so.1) and a device", _shorten(error), hint) from error

    def version(self) -> str:
        """Name the versions of the library and of the package, on which results depend to the bit."""
        return f"cuDNN {self._version}, cudnn-frontend {self._module.__version__}"

    def open_handle(self, stream: int) -> Any:
        """Make the handle with which plans run on a stream, which is given by its address; each stream needs its own.

        Raises:
            DeviceError: there is no device.
        """
        try:
            handle = self._module.create_handle()
            self._module.set_stream(handle, stream)
        except Exception as error:
            raise DeviceError("cuda", "a device that cuDNN can use", _shorten(error)) from error
        return handle

    def close_handle(self, handle: Any) -> None:
        """Give back what `open_handle` made."""
        self._module.destroy_handle(handle)

    def new_graph(self) -> CudnnGraph:
        """Make an empty graph, whose intermediate tensors and sums are of float32."""
        single = self._module.data_type.FLOAT
        pygraph = self._module.pygraph(
            io_data_type=single, intermediate_data_type=single, compute_data_type=single, **self._device
        )
        return CudnnGraph(self._module, pygraph)

    def plans(
        self, add_operation: AddOperation, strict: bool, modes: Sequence[str], compiled: bool
    ) -> Iterator[EnginePlan]:
        """Build one after the other the plans that cuDNN ranks, leaving out those that cannot be built.

        Args:
            add_operation: adds the operation to an empty graph.
            strict: whether to leave out all that use tensor cores. Element-wise plans are marked so too, which multiply
                no matrices.
            modes: cuDNN's heuristics: "A" ranks by the speed that it expects, "FALLBACK" lists what works anywhere.
            compiled: whether plans may need a compiler when they are built, for 0.3 to 3 s each.

        Raises:
            DeviceError: cuDNN knows no engine for the operation; its reason is the `actual` field.
        """
        graph = self._rank(add_operation, strict, modes, compiled)
        pygraph = graph.pygraph
        for index in range(pygraph.get_execution_plan_count()):
            try:
                pygraph.build_plan_at_index(index)
                plan = EnginePlan(
                    str(pygraph.get_plan_name_at_index(index)),
                    int(pygraph.get_workspace_size_plan_at_index(index)),
                    graph,
                    index,
                )
            except Exception as error:  # left out by its notes, or its engine refuses the shapes
                logger.debug("plan %d of %s: %s", index, modes, _shorten(error))
                continue
            yield plan

    def _rank(self, add_operation: AddOperation, strict: bool, modes: Sequence[str], compiled: bool) -> CudnnGraph:
        module = self._module
        graph = self.new_graph()
        add_operation(graph)
        pygraph = graph.pygraph
        barred = (*NEVER, "TENSOR_CORE") if strict else NEVER
        try:
            pygraph.validate()
            pygraph.build_operation_graph()
            pygraph.create_execution_plans([getattr(module.heur_mode, mode) for mode in modes])
            pygraph.deselect_numeric_notes([getattr(module.numerical_note, note) for note in barred])
            if not compiled:
                pygraph.deselect_behavior_notes([module.behavior_note.RUNTIME_COMPILATION])
        except Exception as error:
            raise DeviceError("cuda", f"an engine of cuDNN {self._version}", _shorten(error)) from error
        return graph


def _package() -> Any:
    try:
        return importlib.import_module("cudnn")
    except ImportError as error:
        raise DeviceError("cuda", "the Python package nvidia-cudnn-frontend", str(error), INSTALL) from error


def _shorten(error: Exception) -> str:
    """Bring what cuDNN says into a line: its first words, and each reason that its engines give once."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reasons = dict.fromkeys(line.split("Reason:", 1)[1].strip() for line in lines if "Reason:" in line)
    return "; ".join([lines[0][:200], *(reason[:120] for reason in list(reasons)[:4])])
