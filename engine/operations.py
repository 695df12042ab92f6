"""Operations that a program adds to those of the package: a declaration and its numpy kernels, registered together.

What is added is treated like the package's own: planned, recomputed, moved, run in place as far as the declaration
allows, on the backend `reference` and, by numpy, on `onednn`. A backend without a kernel for it says so when a network
that holds it is lowered. Not checked: that a kernel allocates nothing, which the byte-exact budget relies on, and that
it gives the same bits in every run; the operation tests show how both are tested.
"""

from __future__ import annotations

from ..layers.kinds import KINDS
from ..layers.operations import OpKind
from ..memory.errors import ConfigError
from .backends.reference.numpy_kernel import Implementation, PlainFunction, Run
from .backends.reference.registry import IMPLEMENTATIONS


def register_operation(kind: OpKind, run: Run | None = None, *, kernels: Implementation | None = None) -> None:
    """Add a kind of operation and the numpy kernels that compute it; nothing is added where anything is refused.

    The gradient of a kind is a kind of its own, which its gradient rule emits by name and which is registered in the
    same way. Registering the very same objects again changes nothing.

    Args:
        kind: the declaration. A layer gives it to `GraphBuilder.apply`.
        run: computes an operation of any shape without scratch memory. It is called with the arrays of inputs and
            outputs, and with the operation's attributes by keyword: `run(x, y, slope=0.1)`. It writes the outputs, such
            as by numpy's `out=`, and allocates no array.
        kernels: in place of `run`, lists the kernels (`NumpyKernel`) of an operation that it is told of (`OpSpec`),
            with the scratch arrays that each needs.

    Raises:
        ConfigError: the declaration contradicts itself, another kind has its name, or not exactly one of `run` and
            `kernels` is given where the kind is run at all.
    """
    check_kind(kind)
    where = _where(kind.name)
    given = [function for function in (run, kernels) if function is not None]
    if len(given) > 1 or bool(given) != kind.needs_kernels:
        right = "either run= or kernels=" if kind.needs_kernels else "no kernels, as every mode replaces this kind"
        raise ConfigError(where, right, "both" if len(given) > 1 else "one of them" if given else "neither")
    for function in given:
        _require_callable(where, "run" if function is run else "kernels", function)
    implementation = kernels if run is None else PlainFunction(run)
    new = kind.name not in KINDS
    KINDS.add(kind.name, kind)
    if implementation is not None:
        try:
            IMPLEMENTATIONS.add(kind.name, implementation)
        except ConfigError:
            if new:
                KINDS.remove(kind.name)
            raise


def remove_operation(name: str) -> None:
    """Take back what `register_operation` added; networks, trainers and plans that hold it cannot be used any more.

    Raises:
        ConfigError: there is no kind of that name, or it is the package's own.
    """
    KINDS.remove(name)
    if name in IMPLEMENTATIONS:
        IMPLEMENTATIONS.remove(name)


def check_kind(kind: OpKind) -> None:
    """Check that a declaration holds together.

    Raises:
        ConfigError: it does not; names the kind and the field.
    """
    if not isinstance(kind, OpKind):
        hint = f"Call the class: {kind.__name__}(…)." if isinstance(kind, type) else ""
        raise ConfigError("register_operation", "an OpKind", repr(kind), hint)
    where = _where(kind.name)
    for field in ("shapes", "backward", "training", "evaluation"):
        if getattr(kind, field) is not None:
            _require_callable(where, field, getattr(kind, field))
    _require_callable(where, "flops", kind.flops)
    for field in ("heavy", "random", "flat", "reshapes", "converts"):
        if not isinstance(getattr(kind, field), bool):
            raise ConfigError(where, f"{field}=True or {field}=False", repr(getattr(kind, field)))
    pairs = kind.inplace
    if not isinstance(pairs, tuple) or not all(_are_positions(pair) and len(pair) == 2 for pair in pairs):
        raise ConfigError(where, "inplace as pairs (output, input) of positions from 0 on", repr(pairs))
    if not _are_positions(kind.kept) or len(set(kind.kept)) != len(kind.kept):
        raise ConfigError(where, "kept as positions of outputs from 0 on, each once", repr(kind.kept))
    shared = sorted({output for output, _ in pairs}.intersection(kind.kept))
    if shared:
        raise ConfigError(where, "kept outputs that lie over no input", f"inplace={pairs} and kept={kind.kept}")
    if kind.flat and kind.random:
        hint = "A flat operation meets its elements in the order of a layout, which may differ between backends."
        raise ConfigError(where, "flat=True or random=True", "both", hint)


def _are_positions(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in values)


def _require_callable(where: str, field: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(where, f"{field} to be a function", repr(function))


def _where(name: object) -> str:
    return f"kind of operation {name!r}"
