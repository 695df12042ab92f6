"""Numbers too small for a full mantissa count as zero while a step runs, in every thread that computes.

A processor takes up to a hundred times as long for a subnormal number, in float32 one below 1.2e-38, and training makes
them: the momentum of a unit that no longer learns shrinks by a factor a step, and rounding holds it at 6e-45 for ever.
Two bits of the thread's control register make zeros of such operands and of such results. Every thread has a register
of its own, which it takes over from the thread that makes it:

- the thread that runs a step has the bits set for the time of the step, since numpy computes in it;
- so have the workers of OpenMP that oneDNN would employ from this thread: they run `fesetenv` of the C library as the
  body of a parallel region, because that function takes what such a body takes, one pointer;
- the workers of numpy's OpenBLAS keep the bits from the opening of the first session on. OpenBLAS has no such regions,
  but takes jobs of the same form, and notes in each which worker it gave it to, by which it is known when all have had
  one.

On another system than Linux on x86-64 nothing is set, and nothing in workers of another OpenMP than libgomp or another
BLAS than OpenBLAS 0.3 with threads of its own.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, section 10.2.3 (MXCSR); the interface of
GCC's libgomp, `GOMP_parallel`; OpenBLAS, `common_thread.h`, `blas_queue_t`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_long, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from threadpoolctl import threadpool_info

logger = logging.getLogger(__name__)

FLUSH = 1 << 15 | 1 << 6
"""Results too small are zero, and so are operands."""
ENVIRONMENT_BYTES = 32
REGISTER_OFFSET = 28
"""Where the register lies in the C library's `fenv_t`."""
JOB_BYTES = 1024
"""For an OpenBLAS job, which takes 168 in known versions; the bytes behind what is set here stay zero."""
JOB_ROUTINE, JOB_WORKER, JOB_ARGUMENT, JOB_NEXT = 0, 16, 24, 64
BLAS_ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class FloatingPointControl:
    """What sets how the threads of this process compute.

    Attributes:
        library: the C library with its functions of the floating-point environment; None where its form is not known.
        region: libgomp's function that runs a parallel region; None where OpenMP is not loaded.
    """

    library: Any
    region: Any

    @contextmanager
    def flush_subnormals(self) -> Iterator[None]:
        """Make subnormal numbers zero in this thread and the workers of OpenMP that it employs, inside the context."""
        if self.library is None:
            yield
            return
        earlier = self.read()
        self._apply(_set_flush(earlier))
        try:
            yield
        finally:
            self._apply(earlier)

    def read(self) -> Any:
        """Return the environment of this thread."""
        found = ctypes.create_string_buffer(ENVIRONMENT_BYTES)
        self.library.fegetenv(found)
        return found

    def _apply(self, environment: Any) -> None:
        # This thread first: a worker that the region makes takes its register over.
        self.library.fesetenv(environment)
        if self.region is not None:
            self.region(self.library.fesetenv, environment, 0, 0)


def load_floating_point_control() -> FloatingPointControl:
    """Find the functions that are loaded in this process, once what computes is loaded."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return FloatingPointControl(None, None)
    try:
        library = ctypes.CDLL("libm.so.6")
        for function in (library.fegetenv, library.fesetenv):
            function.argtypes, function.restype = [c_void_p], c_int
    except (OSError, AttributeError) as error:
        logger.debug("subnormal numbers are not flushed: %s", error)
        return FloatingPointControl(None, None)
    try:
        region = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD).GOMP_parallel
        region.argtypes, region.restype = [c_void_p, c_void_p, c_uint, c_uint], None
    except (OSError, AttributeError):
        region = None
    return FloatingPointControl(library, region)


def flush_in_blas() -> None:
    """Make subnormal numbers zero in the workers of every OpenBLAS in this process, for good."""
    control = load_floating_point_control()
    if control.library is None:
        return
    earlier = control.read()
    flushing = _set_flush(earlier)
    routine = ctypes.cast(control.library.fesetenv, c_void_p).value
    for found in threadpool_info():
        kind = (found["internal_api"], found.get("threading_layer"), str(found["version"])[:4])
        if kind == ("openblas", "pthreads", "0.3."):
            try:
                execute = ctypes.CDLL(found["filepath"]).exec_blas
            except (OSError, AttributeError) as error:
                logger.debug("the workers of %s do not flush subnormal numbers: %s", found["filepath"], error)
                continue
            execute.argtypes, execute.restype = [c_long, c_void_p], c_int
            if not _give_each_a_job(execute, int(found["num_threads"]), routine, ctypes.addressof(flushing)):
                logger.warning("some workers of %s do not flush subnormal numbers", found["filepath"])
    control.library.fesetenv(earlier)  # the first of the jobs ran in this thread


def _give_each_a_job(execute: Any, threads: int, routine: int | None, argument: int) -> bool:
    """Run a routine in every worker; return whether all have run it: one that is done early may be given two jobs."""
    assert routine is not None
    reached: set[int] = set()
    for _ in range(BLAS_ATTEMPTS if threads > 1 else 0):
        jobs = ctypes.create_string_buffer(JOB_BYTES * threads)
        first = ctypes.addressof(jobs)
        for number in range(threads):
            at = number * JOB_BYTES
            struct.pack_into("P", jobs, at + JOB_ROUTINE, routine)
            struct.pack_into("P", jobs, at + JOB_ARGUMENT, argument)
            struct.pack_into("P", jobs, at + JOB_NEXT, first + at + JOB_BYTES if number + 1 < threads else 0)
        execute(threads, first)
        reached |= {struct.unpack_from("l", jobs, n * JOB_BYTES + JOB_WORKER)[0] for n in range(1, threads)}
        if len(reached) >= threads - 1:
            return True
    return threads <= 1


def _set_flush(environment: Any) -> Any:
    """Copy an environment with the two bits set."""
    flushing = ctypes.create_string_buffer(environment.raw, ENVIRONMENT_BYTES)
    (register,) = struct.unpack_from("I", environment, REGISTER_OFFSET)
    struct.pack_into("I", flushing, REGISTER_OFFSET, register | FLUSH)
    return flushing
