"""Finding and loading oneDNN, and the declarations of the C functions in use.

The library comes with the wheel `onednn-cpu-gomp`, which puts it under the environment's prefix; else the system's
loader is asked, or the path in `BATHYAL_ONEDNN` is taken. Every function gets its argument types, as a pointer passed
as a C int is cut in half. Numbers of the C API are those of its header `dnnl_types.h` (oneDNN 3).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

from ....memory.errors import DeviceError

SONAME = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"
PATH_VARIABLE = "BATHYAL_ONEDNN"

P, N = c_void_p, c_int
SIGNATURES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("dnnl_engine_create", (P, N, c_size_t)),
    ("dnnl_engine_destroy", (P,)),
    ("dnnl_stream_create", (P, P, c_uint)),
    ("dnnl_stream_destroy", (P,)),
    ("dnnl_memory_desc_create_with_tag", (P, N, P, N, N)),
    ("dnnl_memory_desc_create_with_strides", (P, N, P, N, P)),
    ("dnnl_memory_desc_clone", (P, P)),
    ("dnnl_memory_desc_destroy", (P,)),
    ("dnnl_memory_desc_query", (P, N, P)),
    ("dnnl_memory_create", (P, P, P, P)),
    ("dnnl_memory_destroy", (P,)),
    ("dnnl_memory_set_data_handle", (P, P)),
    ("dnnl_primitive_attr_create", (P,)),
    ("dnnl_primitive_attr_destroy", (P,)),
    ("dnnl_primitive_attr_set_scratchpad_mode", (P, N)),
    ("dnnl_primitive_attr_set_post_ops", (P, P)),
    ("dnnl_post_ops_create", (P,)),
    ("dnnl_post_ops_append_eltwise", (P, N, c_float, c_float)),
    ("dnnl_post_ops_destroy", (P,)),
    ("dnnl_set_primitive_cache_capacity", (N,)),
    ("dnnl_primitive_desc_query", (P, N, N, P)),
    ("dnnl_primitive_desc_next_impl", (P,)),
    ("dnnl_primitive_desc_clone", (P, P)),
    ("dnnl_primitive_desc_destroy", (P,)),
    ("dnnl_primitive_create", (P, P)),
    ("dnnl_primitive_destroy", (P,)),
    ("dnnl_primitive_execute", (P, P, N, P)),
    ("dnnl_reorder_primitive_desc_create", (P, P, P, P, P, P)),
    ("dnnl_convolution_forward_primitive_desc_create", (P, P, N, N, P, P, P, P, P, P, P, P, P)),
    ("dnnl_convolution_backward_data_primitive_desc_create", (P, P, N, P, P, P, P, P, P, P, P, P)),
    ("dnnl_convolution_backward_weights_primitive_desc_create", (P, P, N, P, P, P, P, P, P, P, P, P, P)),
    ("dnnl_inner_product_forward_primitive_desc_create", (P, P, N, P, P, P, P, P)),
    ("dnnl_inner_product_backward_data_primitive_desc_create", (P, P, P, P, P, P, P)),
    ("dnnl_inner_product_backward_weights_primitive_desc_create", (P, P, P, P, P, P, P, P)),
    ("dnnl_batch_normalization_forward_primitive_desc_create", (P, P, N, P, P, c_float, c_uint, P)),
    ("dnnl_batch_normalization_backward_primitive_desc_create", (P, P, N, P, P, P, c_float, c_uint, P, P)),
    ("dnnl_eltwise_forward_primitive_desc_create", (P, P, N, N, P, P, c_float, c_float, P)),
    ("dnnl_eltwise_backward_primitive_desc_create", (P, P, N, P, P, P, c_float, c_float, P, P)),
    ("dnnl_pooling_forward_primitive_desc_create", (P, P, N, N, P, P, P, P, P, P, P, P)),
    ("dnnl_pooling_backward_primitive_desc_create", (P, P, N, P, P, P, P, P, P, P, P, P)),
    ("dnnl_binary_primitive_desc_create", (P, P, N, P, P, P, P)),
)


class Version(ctypes.Structure):
    """The C structure `dnnl_version_t`."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


def candidates() -> list[str]:
    """List where the library may be, the best place first."""
    found = [os.environ[PATH_VARIABLE]] if PATH_VARIABLE in os.environ else []
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found += [str(Path(str(file.locate())).resolve()) for file in files if file.name == SONAME]
    return [*found, SONAME]


def load() -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        DeviceError: it is nowhere; says how to get it.
    """
    reasons = []
    for path in candidates():
        try:
            return _declare(ctypes.CDLL(path))
        except (OSError, AttributeError) as error:
            reasons.append(f"{path}: {error}")
    raise DeviceError(
        "onednn", f"the library {SONAME}", "; ".join(reasons), f"Install it with: pip install {WHEEL} (Linux x86-64)."
    )


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in SIGNATURES:
        function = getattr(library, name)
        function.restype = c_int
        function.argtypes = list(arguments)
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_memory_desc_get_size.argtypes = [P]
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_primitive_desc_query_md.argtypes = [P, N, N]
    library.dnnl_version.restype = POINTER(Version)
    library.dnnl_version.argtypes = []
    library.dnnl_get_effective_cpu_isa.restype = c_int
    library.dnnl_get_effective_cpu_isa.argtypes = []
    return library
