"""Python objects around oneDNN's handles: memory descriptors, primitive descriptors, primitives.

A handle is destroyed with its object. Numbers are those of the C header.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int, c_int64, c_void_p
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ....memory.errors import DeviceError
from .library import load

COMPILED = ("jit", "brg", "gemm")
"""In the names of implementations that are made for the processor; others are C++ for any, many times slower."""
FLOAT32 = 3
USER_SCRATCHPAD = 1
ANY_TAG = 1
BLOCKED_TAGS = MappingProxyType({8: 102, 16: 78})
AVX2_BIT, AVX512_BIT = 0x04, 0x20
CACHED_PRIMITIVES = 64
"""The library keeps so many primitives that nobody holds; its own 1,024 are filled by a run of many batch sizes."""
RELU, ADDITION, MAXIMUM = 32, 131056, 131058
HARDSWISH, LINEAR = 52, 38
STEEP = 3.4e38
RECTIFY = ((HARDSWISH, STEEP, 0.0), (LINEAR, 1.0, 0.0))
"""Post-operations (algorithm, α, β) that make x · min(max(x · STEEP, 0), 1) + 0: a ReLU that hands a NaN on.

The library's own is a maximum, and its maximum of a NaN and 0 is 0. This one makes a NaN of −∞ too, and smaller numbers
of those below 1 / STEEP = 2.9e-39, which are subnormal. Adding 0 turns −0 into 0.
"""

SOURCE, SOURCE_1, TARGET, WEIGHTS, BIAS = 1, 2, 17, 33, 41
MEAN, VARIANCE, WORKSPACE, SCRATCHPAD, SCALE, SHIFT = 49, 50, 64, 80, 51, 52
DIFF_SOURCE, DIFF_TARGET, DIFF_WEIGHTS, DIFF_BIAS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 169, 255, 256

QUERY_IMPLEMENTATION, QUERY_STRIDES = 8, 14
QUERY_WEIGHTS, QUERY_DIFF_WEIGHTS, QUERY_WORKSPACE, QUERY_SCRATCHPAD = 131, 132, 135, 136
QUERY_RANK, QUERY_DIMENSIONS, QUERY_PADDED, QUERY_INNER_COUNT, QUERY_INNER_SIZES, QUERY_INNER_AXES = (
    256,
    257,
    260,
    263,
    264,
    265,
)
MOST_DIMENSIONS = 12


def check(status: int, what: str) -> None:
    """Raise DeviceError when a call of the library failed."""
    if status:
        names = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 6: "not required"}
        raise DeviceError(f"onednn {what}", "success", f"status {status} ({names.get(status, 'error')})")


def dimensions(values: Sequence[int]) -> Any:
    """Make a `dnnl_dims_t` with these values."""
    return (c_int64 * MOST_DIMENSIONS)(*values)


class Descriptor:
    """A memory descriptor: shape and layout.

    Attributes:
        shape: logical.
        nbytes: of a buffer in this layout.
        layout: text that is equal for equal layouts of equal shapes; empty for plain C order. Not to be asked of an
            undecided one.
    """

    def __init__(self, library: Any, handle: c_void_p, shape: tuple[int, ...]) -> None:
        self._library = library
        self.handle = handle
        self.shape = shape
        self.nbytes = int(library.dnnl_memory_desc_get_size(handle))

    @cached_property
    def layout(self) -> str:
        """The layout as text."""
        rank = len(self.shape)
        padded, strides = (self._vector(q, rank) for q in (QUERY_PADDED, QUERY_STRIDES))
        count = c_int()
        check(self._library.dnnl_memory_desc_query(self.handle, QUERY_INNER_COUNT, byref(count)), "query of blocks")
        sizes, axes = (self._vector(q, count.value) for q in (QUERY_INNER_SIZES, QUERY_INNER_AXES))
        plain = [1] * rank
        for axis in range(rank - 2, -1, -1):
            plain[axis] = plain[axis + 1] * self.shape[axis + 1]
        # The stride of an axis with one element means nothing.
        same = all(a == b or n == 1 for a, b, n in zip(strides, plain, self.shape, strict=True))
        if not sizes and same and tuple(padded) == self.shape:
            return ""
        inner = "".join(f"{size}{'abcdefghijkl'[axis]}" for size, axis in zip(sizes, axes, strict=True))
        return f"{'x'.join(map(str, padded))}:{','.join(map(str, strides))}:{inner}"

    def _vector(self, query: int, count: int) -> tuple[int, ...]:
        found = ctypes.POINTER(c_int64)()
        check(self._library.dnnl_memory_desc_query(self.handle, query, byref(found)), "query of a layout")
        return tuple(found[i] for i in range(count))

    def __del__(self) -> None:
        self._library.dnnl_memory_desc_destroy(self.handle)


class PrimitiveDescriptor:
    """One implementation of an operation with all its layouts."""

    def __init__(self, library: Any, handle: c_void_p, kept: Sequence[Any] = (), *, alone: bool = False) -> None:
        """Take over `handle`.

        Args:
            library: that made it.
            handle: to be destroyed with this object.
            kept: objects that must live as long: a backward descriptor goes on using its forward hint.
            alone: whether there are no further implementations to be asked for.
        """
        self._library = library
        self.handle = handle
        self._kept = kept
        self._alone = alone

    @property
    def implementation(self) -> str:
        """The library's name of the implementation."""
        name = c_char_p()
        check(
            self._library.dnnl_primitive_desc_query(self.handle, QUERY_IMPLEMENTATION, 0, byref(name)),
            "query of an implementation",
        )
        return (name.value or b"").decode()

    @property
    def is_compiled(self) -> bool:
        """Whether the implementation is made for the processor's instruction set."""
        return any(word in self.implementation for word in COMPILED)

    def descriptor(self, query: int, shape: tuple[int, ...] | None = None) -> Descriptor | None:
        """Return the layout of an operand, or None where there is no such operand."""
        borrowed = self._library.dnnl_primitive_desc_query_md(self.handle, query, 0)
        if not borrowed or not self._library.dnnl_memory_desc_get_size(borrowed):
            return None
        own = c_void_p()
        check(self._library.dnnl_memory_desc_clone(byref(own), borrowed), "copy of a layout")
        if shape is None:
            count = c_int()
            check(self._library.dnnl_memory_desc_query(own, QUERY_RANK, byref(count)), "query of a rank")
            found = ctypes.POINTER(c_int64)()
            check(self._library.dnnl_memory_desc_query(own, QUERY_DIMENSIONS, byref(found)), "query of a shape")
            shape = tuple(found[i] for i in range(count.value))
        return Descriptor(self._library, own, shape)

    @property
    def scratchpad_bytes(self) -> int:
        """Workspace that the primitive needs."""
        borrowed = self._library.dnnl_primitive_desc_query_md(self.handle, QUERY_SCRATCHPAD, 0)
        return int(self._library.dnnl_memory_desc_get_size(borrowed)) if borrowed else 0

    def implementations(self) -> list[PrimitiveDescriptor]:
        """List this implementation and all after it, each as a descriptor of its own.

        What is not compiled for the processor is left out where there is anything better.
        """
        if self._alone:
            return [self]
        found: list[PrimitiveDescriptor] = []
        while True:
            copy = c_void_p()
            check(self._library.dnnl_primitive_desc_clone(byref(copy), self.handle), "copy of a primitive descriptor")
            made = PrimitiveDescriptor(self._library, copy, self._kept)
            # The library sometimes lists one twice, depending on what it has cached.
            if made.implementation not in [pd.implementation for pd in found]:
                found.append(made)
            if self._library.dnnl_primitive_desc_next_impl(self.handle):
                break
        return [pd for pd in found if pd.is_compiled] or found[:1]

    def __del__(self) -> None:
        self._library.dnnl_primitive_desc_destroy(self.handle)


class Argument(ctypes.Structure):
    """The C structure `dnnl_exec_arg_t`: the number of an argument and its memory object."""

    _fields_ = (("number", c_int), ("memory", c_void_p))


class Primitive:
    """A compiled operation with one memory object per argument, whose addresses are set before each run."""

    def __init__(self, engine: Engine, descriptor: PrimitiveDescriptor, arguments: Mapping[int, Descriptor]) -> None:
        self._library = engine.library
        self._stream = engine.stream
        self._handle = c_void_p()
        self._memories: list[c_void_p] = []
        # Kept alive: a primitive refers to its descriptors.
        self._kept = (engine, descriptor, tuple(arguments.values()))
        check(self._library.dnnl_primitive_create(byref(self._handle), descriptor.handle), "creation of a primitive")
        self._arguments = (Argument * len(arguments))()
        for position, (number, layout) in enumerate(arguments.items()):
            memory = c_void_p()
            check(
                self._library.dnnl_memory_create(byref(memory), layout.handle, engine.handle, None),
                "creation of a memory object",
            )
            self._memories.append(memory)
            self._arguments[position] = Argument(number, memory)
        self._addresses: list[int] = [0] * len(self._memories)
        self._count = len(self._memories)

    def run(self, addresses: Sequence[int]) -> None:
        """Run on these machine addresses, in the order of the arguments."""
        library, known = self._library, self._addresses
        for position, address in enumerate(addresses):
            if known[position] != address:
                check(library.dnnl_memory_set_data_handle(self._memories[position], address), "setting of an address")
                known[position] = address
        check(
            library.dnnl_primitive_execute(self._handle, self._stream, self._count, self._arguments),
            "execution of a primitive",
        )

    def __del__(self) -> None:
        for memory in self._memories:
            self._library.dnnl_memory_destroy(memory)
        if self._handle:
            self._library.dnnl_primitive_destroy(self._handle)


class Engine:
    """The library with its engine, stream and attributes, and the layouts made so far.

    Attributes:
        attributes: of primitives that compute their operation alone.
        adds: whether sums of two tensors, and maxima, are compiled for the processor.
        rectifying: of primitives that pass every value they write through a ReLU, by `RECTIFY`.
    """

    def __init__(self) -> None:
        self.handle, self.stream, self.attributes, self.rectifying = (c_void_p() for _ in range(4))
        self.library = load()
        check(self.library.dnnl_set_primitive_cache_capacity(CACHED_PRIMITIVES), "limit of cached primitives")
        check(self.library.dnnl_engine_create(byref(self.handle), 1, 0), "creation of an engine")
        check(self.library.dnnl_stream_create(byref(self.stream), self.handle, 1), "creation of a stream")
        for attributes in (self.attributes, self.rectifying):
            check(self.library.dnnl_primitive_attr_create(byref(attributes)), "creation of attributes")
            check(
                self.library.dnnl_primitive_attr_set_scratchpad_mode(attributes, USER_SCRATCHPAD),
                "choice of the scratchpad",
            )
        after = c_void_p()
        check(self.library.dnnl_post_ops_create(byref(after)), "creation of post-operations")
        for algorithm, alpha, beta in RECTIFY:
            check(self.library.dnnl_post_ops_append_eltwise(after, algorithm, alpha, beta), "choice of a ReLU")
        check(self.library.dnnl_primitive_attr_set_post_ops(self.rectifying, after), "choice of post-operations")
        self.library.dnnl_post_ops_destroy(after)  # the attributes hold a copy
        self.isa = int(self.library.dnnl_get_effective_cpu_isa())
        self.block = 16 if self.isa & AVX512_BIT else 8
        some = self.describe_blocked((1, self.block, 1, 1))
        self.adds = self.describe("binary", ADDITION, some, some, some, self.attributes).is_compiled

    def __del__(self) -> None:
        if self.handle:
            self.library.dnnl_primitive_attr_destroy(self.attributes)
            self.library.dnnl_primitive_attr_destroy(self.rectifying)
            self.library.dnnl_stream_destroy(self.stream)
            self.library.dnnl_engine_destroy(self.handle)

    def version(self) -> str:
        """Name the version and the instruction set of the library."""
        v = self.library.dnnl_version().contents
        return f"oneDNN {v.major}.{v.minor}.{v.patch} isa {self.isa:#x}"

    def with_tag(self, shape: tuple[int, ...], tag: int) -> Descriptor:
        """Describe a float32 layout by the number that the library gives it."""
        handle = c_void_p()
        check(
            self.library.dnnl_memory_desc_create_with_tag(byref(handle), len(shape), dimensions(shape), FLOAT32, tag),
            "creation of a layout",
        )
        return Descriptor(self.library, handle, shape)

    def describe_plain(self, shape: tuple[int, ...]) -> Descriptor:
        """Describe C order, of any number of dimensions up to 12."""
        strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        handle = c_void_p()
        check(
            self.library.dnnl_memory_desc_create_with_strides(
                byref(handle), len(shape), dimensions(shape), FLOAT32, dimensions(strides)
            ),
            "creation of a layout",
        )
        return Descriptor(self.library, handle, shape)

    def describe_blocked(self, shape: tuple[int, ...]) -> Descriptor:
        """Describe the layout (N, C / block, H, W, block), whose channels are padded with zeros."""
        return self.with_tag(shape, BLOCKED_TAGS[self.block])

    def describe_undecided(self, shape: tuple[int, ...]) -> Descriptor:
        """Describe a layout that a primitive may choose."""
        return self.with_tag(shape, ANY_TAG)

    def describe(self, function: str, *arguments: Any) -> PrimitiveDescriptor:
        """Make a primitive descriptor by `dnnl_<function>_primitive_desc_create`; raises DeviceError when refused."""
        handle = c_void_p()
        call = getattr(self.library, f"dnnl_{function}_primitive_desc_create")
        # The objects live until the call is over: a handle alone would not keep its descriptor.
        handles = [a.handle if isinstance(a, (Descriptor, PrimitiveDescriptor)) else a for a in arguments]
        check(call(byref(handle), self.handle, *handles), function)
        return PrimitiveDescriptor(self.library, handle, (self, *arguments))

    def reorder(self, source: Descriptor, target: Descriptor) -> PrimitiveDescriptor:
        """Make the primitive descriptor of a change of layout."""
        handle = c_void_p()
        check(
            self.library.dnnl_reorder_primitive_desc_create(
                byref(handle), source.handle, self.handle, target.handle, self.handle, self.attributes
            ),
            "reorder",
        )
        # Asking a reorder for its next implementation is a segmentation fault.
        return PrimitiveDescriptor(self.library, handle, (self,), alone=True)
