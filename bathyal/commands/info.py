"""`bathyal info`: what this machine and this installation offer."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from ..engine.backends.cuda.graphs import MATH
from ..engine.settings import BACKENDS, Maker, usable_cores
from ..memory.devices.host import HostMachine
from ..memory.errors import DeviceError
from ..memory.sizes import format_size
from ..models.registry import MODELS
from ..scheduler.strategies.names import list_spellings


def run(options: argparse.Namespace) -> int:
    """Print everything."""
    document = facts()
    if options.json:
        print(json.dumps(document))
        return 0
    print(f"bathyal {document['version']}, Python {document['python']}, {document['cores']} cores")
    print(
        f"memory: {format_size(document['free_bytes'])} free, "
        f"default budget {format_size(document['default_budget_bytes'])}"
    )
    print("backends:")
    for name, version in document["backends"].items():
        print(f"  {name:<12}{version}")
    print("strategies: " + ", ".join(document["strategies"]))
    print("networks:")
    for name, description in document["models"].items():
        print(f"  {name:<14}{description}")
    return 0


def facts() -> dict[str, Any]:
    """The same as data."""
    from .. import __version__

    machine = HostMachine()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cores": usable_cores(),
        "free_bytes": machine.free_bytes(),
        "default_budget_bytes": machine.default_budget(),
        "backends": {name: _version(make) for name, make in BACKENDS.items()},
        "strategies": list(list_spellings()),
        "models": {name: entry.description for name, entry in MODELS.items()},
    }


def _version(make: Maker) -> str:
    try:
        return make(MATH[0], True).version()
    except DeviceError as error:
        return f"missing: {error}"
