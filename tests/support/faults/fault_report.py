"""A pytest plugin that prints a table of the faults' effects at the end of a run, also over many test processes."""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pytest
from support.deployment import TIMEOUT_SECONDS
from support.faults.invariants import InvariantReport, InvariantViolation, check_invariants
from support.faults.observed_deployment import ObservedDeployment

FULL_RUN = os.environ.get("GRADIENT_FAULTS") == "full"
_HEAD = ("fault", "what", "tries", "jobs", "lost", "doubled", "stuck", "repair p50", "max")
FAULT_DESCRIPTIONS = {
    "F1": "API killed while it answers",
    "F2": "worker killed again and again",
    "F3": "worker killed at every point",
    "F4": "worker killed while it collects",
    "F5": "worker frozen beyond its lease",
    "F6": "Redis flushed",
    "F7": "Redis down, Redis frozen",
    "F8": "Redis killed under load",
    "F9": "every message repeated",
    "F10": "every message dropped",
    "F11": "container engine killed and restarted",
    "F12": "containers ended without their engine",
    "F13": "container engine slow, silent, refusing",
    "F14": "PostgreSQL restarted at once",
    "F15": "PostgreSQL out of reach",
    "F16": "PostgreSQL slow",
    "F17": "writers starve SQLite",
    "F18": "disk full",
    "F19": "clock jumps",
    "F21": "mass submission",
    "F22": "log torture",
    "F23": "log readers come and go",
    "F24": "very many lines, files and bytes",
    "F25": "hostile artifacts",
    "F26": "hostile control files",
    "F27": "hostile workspaces",
    "F28": "jobs that resist their stop",
    "F29": "stop races every step",
    "F30": "bombs, hogs and scans in containers",
    "F31": "artifact store out of order",
    "F32": "upgrade while jobs run",
}


def tries(quick: int, full: int) -> int:
    """Return the number of times to try a fault: `quick` in every run, `full` with GRADIENT_FAULTS=full."""
    return full if FULL_RUN else quick


@dataclass
class FaultTrial:
    """One round, or more, of one fault."""

    fault: str
    tries: int = 1
    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    repairs: list[float] = field(default_factory=list)
    """Seconds from the fault's end until all was well again, of each round."""
    _lifted: float | None = field(default=None, repr=False)

    def mark_lifted(self) -> None:
        """The fault is over: from here on the service repairs what it did."""
        self._lifted = time.monotonic()

    def repaired(self) -> None:
        """All is well again."""
        if self._lifted is not None:
            self.repairs.append(time.monotonic() - self._lifted)
            self._lifted = None

    def count(self, report: InvariantReport) -> None:
        """Add what a check found."""
        self.jobs += report.jobs
        self.lost += report.lost
        self.doubled += report.doubled
        self.stuck += report.stuck


_trials: list[FaultTrial] = []


@contextlib.contextmanager
def fault_trial(
    fault: str,
    deployment: ObservedDeployment,
    *,
    seconds: float = TIMEOUT_SECONDS,
    healthy: bool = True,
    outputs: bool = True,
    judged: bool = True,
) -> Iterator[FaultTrial]:
    """One trial of a fault: at its end every job has to end, and the whole history has to be right.

    Args:
        fault: Its number.
        deployment: What it is done to.
        seconds: How long the jobs have to end.
        healthy: Whether a stop had nothing in its way.
        outputs: Whether logs and artifacts are compared, too.
        judged: Whether the jobs tell the truth about themselves, so that the history can be held against it.

    Raises:
        HistoryBroken: An invariant does not hold.
    """
    one = FaultTrial(fault)
    _trials.append(one)
    yield one
    try:
        deployment.wait_all_ended(seconds)
        one.repaired()
        if judged:
            one.count(check_invariants(deployment, healthy=healthy, outputs=outputs))
        else:
            one.jobs += len(deployment.accepted)
    except InvariantViolation as broken:
        one.count(broken.report)
        raise
    except AssertionError:
        one.stuck += len(deployment.accepted) - len(deployment.seen_ended)
        raise


# ---- The plugin


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = [asdict(one) for one in _trials]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    _trials.extend(FaultTrial(**one) for one in getattr(node, "workeroutput", {}).get("faults", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _trials:
        terminalreporter.write_sep("=", "faults" if FULL_RUN else "faults (few tries; all of them: make faults)")
        for line in format_table(_trials):
            terminalreporter.write_line(line)


def format_table(trials: list[FaultTrial]) -> list[str]:
    """The table, a line for each fault."""
    rows = [_HEAD]
    for fault in sorted({one.fault for one in trials}, key=lambda name: int(name[1:])):
        trials_of_fault = [one for one in trials if one.fault == fault]
        sums = [
            sum(getattr(one, name) for one in trials_of_fault) for name in ("tries", "jobs", "lost", "doubled", "stuck")
        ]
        repairs = [seconds for one in trials_of_fault for seconds in one.repairs]
        times = (f"{statistics.median(repairs):.1f} s", f"{max(repairs):.1f} s") if repairs else ("-", "-")
        rows.append((fault, FAULT_DESCRIPTIONS[fault], *(str(number) for number in sums), *times))
    return align_columns(rows, 2)


def align_columns(rows: Sequence[Sequence[str]], text_columns: int) -> list[str]:
    """The lines of a table whose first columns, so many, are words, and whose others are figures."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
