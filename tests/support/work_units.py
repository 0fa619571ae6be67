"""A pytest plugin for `--dist loadscope`: what is costly to start is started once, and long tests begin first."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

_TESTS = Path(__file__).parents[1]
_UNITS = {
    "docker": (
        "worker/backends/docker/",
        "e2e/docker/",
        "e2e/test_exec.py",
        "worker/backends/test_contract.py",
        "worker/statsd/test_containers.py",
    ),
    "tensorflow": (
        "images/",
        "e2e/training/",
        "e2e/tpu/test_examples.py",
        "e2e/tpu/test_training.py",
        "gradient_server/simulator/test_device_server.py",
    ),
    "chromium": ("e2e/browser/",),
}
"""Folders and files that one process runs; each other file is a unit of its own."""
_LONG = ("faults/", "e2e/", "original/", "worker/", "gradient_server/")
"""Folders whose files come next, before those of other folders."""


class UnitScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid.partition("::")[0].removeprefix(f"{_TESTS.name}/"))


def _unit(path: str) -> str:
    return next((unit for unit, places in _UNITS.items() if path.startswith(places)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.option.dist == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    yield
    order = [*_UNITS, *_LONG]

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(_TESTS).as_posix()
        return next((at for at, start in enumerate(order) if start in (_unit(path), f"{path.split('/')[0]}/")), 99)

    items.sort(key=place)
