"""What runs kernels on a GPU, for the backend: cuDNN's graphs, cuBLAS' products and programs of the backend's own.

`gpu_library.py` does it with CuPy. Tests do it on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..backend import Kernel
from .kernel_program import KernelProgram
from .op_request import OpRequest
from .parts import Product

Launcher = Callable[[Sequence[int], int], None]
"""Puts work into a stream; called with the machine addresses of all operands of the operation, and of the workspace."""


class Library(Protocol):
    """Makes launchers; each belongs to one stream."""

    product_workspace_bytes: int
    """Workspace of a product."""

    def graph_kernels(self, request: OpRequest) -> tuple[Kernel, ...]:
        """List cuDNN's plans for a request; the first is that of `kernels="fixed"`. Raises DeviceError for none."""

    def graph(self, request: OpRequest, kernel: int, repeat: bool, stream: int) -> Launcher:
        """Make what runs one of these plans; with `repeat` the statistics of a batch norm stay as they are."""

    def product(self, product: Product, stream: int) -> Launcher:
        """Make what multiplies matrices."""

    def program(self, program: KernelProgram, operands: Sequence[int], stream: int) -> Launcher:
        """Make what runs a program whose operands are those of the operation at the given positions."""

    def close(self) -> None:
        """Give handles back; nothing may be under way."""

    def version(self) -> str:
        """Name the libraries, their versions and the device, on which results depend to the bit."""
