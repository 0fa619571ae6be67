"""The report of a run, for people: a table of the faults, every violation with the faults around it, and figures."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from chaos.checker import CheckResult, Violation, overlapping_faults
from chaos.nemesis import InjectedFault
from chaos.stack import DOCKER_TYPE, PROCESS_TYPE
from chaos.vitals import ProcessVitals
from support.faults.fault_report import align_columns

_HEAD = ("fault", "n", "violations", "alone: process", "docker", "overlapping: process p50", "max", "docker p50", "max")
_LISTED_PROCESSES = 12
"""Processes whose memory and files are reported."""


def format_report(
    injected: Sequence[InjectedFault], outcome: CheckResult, vitals: Sequence[ProcessVitals]
) -> Iterator[str]:
    """The report."""
    yield from format_table(injected, outcome.violations)
    yield ""
    yield "Seconds from a fault's end until a first canary had succeeded. A violation counts for each fault near it."
    yield f"Checked: {', '.join(f'{count:,} {what}' for what, count in outcome.checked_counts.items())}."
    if later := sorted(outcome.recording_delays):
        p50, p90, p99 = (later[int(share * (len(later) - 1))] for share in (0.5, 0.9, 0.99))
        yield f"From a job's own end to its record: p50 {p50:.2f} s, p90 {p90:.1f}, p99 {p99:.1f}, max {later[-1]:.1f}."
    yield from outcome.notes
    yield "The processes that lived longest:"
    yield from (f"  {one}" for one in sorted(vitals, key=lambda one: -one.seconds)[:_LISTED_PROCESSES])
    for one in (each for each in injected if each.failed):
        yield f"NOT INJECTED: {one.fault.name}: {one.failed}"
    yield f"{len(outcome.violations)} violations"
    for number, found in enumerate(outcome.violations, 1):
        around = Counter(one.fault.name for one in overlapping_faults(found, list(injected)))
        yield f"  {number}. {found.description}"
        yield f"     near: {', '.join(f'{name} x {count}' for name, count in around.items()) or 'no fault'}"


def format_table(injected: Sequence[InjectedFault], violations: Sequence[Violation]) -> list[str]:
    """A line for each kind of fault."""
    counted: Counter[str] = Counter()
    for found in violations:
        counted.update({one.fault.name for one in overlapping_faults(found, list(injected))})
    rows: list[tuple[str, ...]] = [_HEAD]
    for name in dict.fromkeys(one.fault.name for one in injected):
        of_it = [one for one in injected if one.fault.name == name and not one.failed]
        alone = [_recovery_figures(of_it, machine_type, alone=True)[1] for machine_type in (PROCESS_TYPE, DOCKER_TYPE)]
        over = [_recovery_figures(of_it, machine_type, alone=False) for machine_type in (PROCESS_TYPE, DOCKER_TYPE)]
        rows.append((name, str(len(of_it)), str(counted[name]), *alone, *over[0], *over[1]))
    return align_columns(rows, 1)


def _recovery_figures(injected: Sequence[InjectedFault], machine_type: str, *, alone: bool) -> tuple[str, str]:
    """Median and maximum of the recoveries."""
    found = [one.recovered.get(machine_type) for one in injected if one.alone is alone]
    seconds = [one for one in found if one is not None]
    return (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("-", "-")
