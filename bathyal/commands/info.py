"""`bathyal info`: what this machine and this installation offer."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from ..engine.backends.registry import AUTO, BACKENDS, make_backend
from ..memory.devices.host import HostMachine
from ..memory.errors import DeviceError
from ..memory.process.cores import count_usable_cores
from ..memory.sizes import format_size
from ..models.registry import MODELS
from ..options.arguments import add_json_argument
from ..scheduler.strategies.names import list_spellings

SUMMARY = "say what this machine and this installation offer"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_json_argument(command)


def run(options: argparse.Namespace) -> int:
    """Print everything."""
    document = collect_facts()
    if options.json:
        print(json.dumps(document))
        return 0
    print(f"bathyal {document['version']}, Python {document['python']}, {document['cores']} cores")
    print(
        f"memory: {format_size(document['free_bytes'])} free, "
        f"default budget {format_size(document['default_budget_bytes'])}"
    )
    print("devices:")
    for name, version in document["backends"].items():
        print(f"  {name:<12}{version}")
    print("strategies: " + ", ".join(document["strategies"]))
    print("networks:")
    for name, description in document["models"].items():
        print(f"  {name:<14}{description}")
    return 0


def collect_facts() -> dict[str, Any]:
    """Return what machine and installation offer, for machines."""
    from .. import __version__

    machine = HostMachine()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cores": count_usable_cores(),
        "free_bytes": machine.free_bytes(),
        "default_budget_bytes": machine.default_budget(),
        "backends": {name: _describe_version(name) for name in BACKENDS if name != AUTO},
        "strategies": list(list_spellings()),
        "models": {name: entry.description for name, entry in MODELS.items()},
    }


def _describe_version(device: str) -> str:
    try:
        return make_backend(device).version()
    except DeviceError as error:
        return f"missing: {error}"
