"""Sets constants of the service's modules: in this process until the end of a test, or, as a program, in a new one."""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_ORIGINALS: dict[tuple[str, str], Any] = {}


def set_constants(values: Mapping[str, Any]) -> None:
    """Set constants by their full names, such as `worker.backends.tpu.times.WATCH_SECONDS`."""
    for name, value in values.items():
        module_name, _, constant = name.rpartition(".")
        module = import_module(module_name)
        _ORIGINALS.setdefault((module_name, constant), getattr(module, constant))
        setattr(module, constant, value)


def restore_constants() -> None:
    while _ORIGINALS:
        (module_name, constant), value = _ORIGINALS.popitem()
        setattr(import_module(module_name), constant, value)


if __name__ == "__main__":
    from gradient_server.main import main

    set_constants(json.loads(sys.argv[1]))
    sys.argv = ["gradient-server", *sys.argv[2:]]
    sys.exit(main(sys.argv[1:]))
