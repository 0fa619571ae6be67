"""One chaos run, from an empty folder to a report."""

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos import report, vitals
from chaos.checker import Checker, CheckResult, Violation
from chaos.clients import Clients
from chaos.clock import find_compiler
from chaos.faults import FAULTS, FaultKind
from chaos.nemesis import Nemesis
from chaos.stack import running_stack
from support.faults.container_jobs_deployment import list_engine_objects
from support.servers.postgres import find_binaries
from support.servers.private_docker_engine import missing_docker_requirements
from support.servers.redis_server import find_redis
from support.small_disk import find_mount

_FOLLOWERS_SECONDS = 120


@dataclass(frozen=True)
class RunPlan:
    """The parameters of a run.

    Attributes:
        seed: The seed of every random choice.
        faults: The number of faults injected in total.
        kinds: The kinds of fault to draw from.
        alone: The number of kinds that are injected alone first.
    """

    seed: int
    faults: int
    kinds: Sequence[FaultKind] = FAULTS
    alone: int = len(FAULTS)


def missing_requirements() -> str:
    """Name what this machine lacks for a run; empty if nothing."""
    requirements = {
        "PostgreSQL's server programs": find_binaries(),
        "redis-server": find_redis(),
        "the right to mount a disk": find_mount(),
        "a C compiler": find_compiler(),
    }
    words = [name for name, found in requirements.items() if not found]
    return ", ".join([*words, *filter(None, [missing_docker_requirements()])])


def run(plan: RunPlan, folder: Path, log: Callable[[str], None]) -> CheckResult:
    """Start everything, break it, repair it, and check all that is known of it.

    Args:
        plan: The parameters of the run.
        folder: An empty one, for everything that is written.
        say: Reports progress, a line at a time.
    """
    logging.getLogger("core.db.database").setLevel(logging.CRITICAL)  # the harness reads a database that it breaks
    with running_stack(folder) as stack:
        log(f"the service is ready; its processes' logs: {folder}/home-*.log")
        before = list_engine_objects(stack.server)
        clients = Clients(stack, plan.seed)
        watch = vitals.VitalsMonitor(stack, folder / "vitals.csv")
        nemesis = Nemesis(stack, clients, plan.seed, plan.kinds, log)
        checker = Checker(stack, clients, nemesis, before)
        outcome = checker.outcome
        with _repaired_at_end(nemesis), contextlib.closing(clients):
            clients.begin()
            alone = min(plan.alone, plan.faults)
            nemesis.inject_one_by_one(alone)
            log(f"{alone} faults one at a time; now {plan.faults - alone} that overlap")
            nemesis.inject_overlapping(plan.faults - alone)
            nemesis.wait()
            log("the last fault is mended; waiting for jobs and followers")
            clients.end(_FOLLOWERS_SECONDS)
            checker.check()
            measured = watch.end()
            outcome.violations += [Violation(f"I18 {words}", 0, 0) for words in vitals.find_leaks(measured)]
            stack.shut_down()
            checker.check_leftovers()
        for line in report.format_report(nemesis.injected, outcome, measured):
            log(line)
    return outcome


@contextlib.contextmanager
def _repaired_at_end(nemesis: Nemesis) -> Iterator[None]:
    """Repair everything however the block ends: a frozen process could not be cleared away."""
    try:
        yield
    finally:
        nemesis.aborted.set()
        nemesis.wait()


@contextlib.contextmanager
def run_folder(*, keep: Callable[[], bool]) -> Iterator[Path]:
    """A folder for a run, which goes at its end unless it is to be looked at."""
    folder = Path(tempfile.mkdtemp(prefix="gradient-chaos-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        if not keep():
            shutil.rmtree(folder)


class ProgressLog:
    """Progress, on the terminal and in a file, each line with the seconds since the beginning."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            for stream in (self._file, None):
                print(f"{time.monotonic() - self._began:7.1f}  {line}", file=stream, flush=True)

    def close(self) -> None:
        self._file.close()
