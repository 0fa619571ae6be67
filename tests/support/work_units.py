"""A pytest plugin for `--dist loadscope`: what is costly to start is started once, and long tests begin first."""

import math
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

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
SECONDS_FILE = Path(__file__).with_name("unit_seconds.txt")
"""Measured by `make test-seconds`: the seconds of each unit that takes at least five; the longest begin first."""
_LEAST_SECONDS = 5.0
_seconds: dict[str, float] = defaultdict(float)  # of each file
_deaths: dict[str, list[str]] = defaultdict(list)
"""How the test processes ended that died, by the test that each was in."""


class UnitScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid.partition("::")[0].removeprefix(f"{_TESTS.name}/"))

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand on what a process that died had not finished; return the test in which a second process died.

        xdist hands on its finished units, too, and a process that is given one of these waits for ever.
        """
        units = self.assigned_work[node]
        test = next((test for unit in units.values() for test, is_done in unit.items() if not is_done), None)
        died_twice = test is not None and test in _deaths
        if test is not None:
            _deaths[test].append(_ending(node))
        for scope, unit in list(units.items()):
            if died_twice and test in unit:
                unit[test] = True
            if all(unit.values()):
                del units[scope]
        super().remove_node(node)
        return test if died_twice else None


def _ending(node: WorkerController) -> str:
    """Return how the process of a node ended: its exit code, or the signal as a negative number."""
    try:
        return str(node.gateway._io.popen.wait(5))
    except subprocess.TimeoutExpired:
        return "its connection"


def _unit(path: str) -> str:
    return next((unit for unit, places in _UNITS.items() if path.startswith(places)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.option.dist == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    yield
    lines = SECONDS_FILE.read_text().splitlines() if SECONDS_FILE.exists() else []
    measured = {unit: float(seconds) for seconds, unit in (line.split(maxsplit=1) for line in lines)}
    short = 0.0 if measured else math.inf

    def place(item: pytest.Item) -> tuple[float, bool]:
        unit = _unit(item.path.relative_to(_TESTS).as_posix())
        return -measured.get(unit, short), unit not in _UNITS

    items.sort(key=place)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0].removeprefix(f"{_TESTS.name}/")] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for test, endings in _deaths.items():
        terminalreporter.write_sep("=", f"A TEST PROCESS DIED ({', '.join(endings)}) in {test}", red=True)
    folders = _sum_by(lambda path: path.rpartition("/")[0])
    longest = ", ".join(f"{folder or '.'} {seconds:.0f}" for folder, seconds in folders if seconds >= 1)
    if longest:
        terminalreporter.write_line(f"seconds by folder: {longest}")
    if config.option.keep_seconds:
        lines = [f"{seconds:.0f} {unit}\n" for unit, seconds in _sum_by(_unit) if seconds >= _LEAST_SECONDS]
        SECONDS_FILE.write_text("".join(lines))


def _sum_by(group: Callable[[str], str]) -> list[tuple[str, float]]:
    """Return the seconds of each group of files, the longest first."""
    sums: dict[str, float] = defaultdict(float)
    for path, seconds in _seconds.items():
        sums[group(path)] += seconds
    return sorted(sums.items(), key=lambda pair: -pair[1])
