"""`python -m bench`: measures each figure together with its floor; a table on stderr, JSON on stdout."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench.browser_pages
import bench.cli_start
import bench.containers.outputs
import bench.containers.start
import bench.containers.worker_memory
import bench.files.artifact_close
import bench.files.download
import bench.files.reupload
import bench.jobs.array_rate
import bench.jobs.first_line
import bench.jobs.line_latency
import bench.jobs.log_shipping
import bench.jobs.rate
import bench.jobs.slurm_jobs
import bench.jobs.sweep
import bench.server.abuse_latency
import bench.server.big_table
import bench.server.followers
import bench.server.many_hosts
import bench.server.memory
import bench.server.reads
import bench.server.refusal_timing
import bench.server.start
import bench.submissions.latency
import bench.submissions.rate
import bench.trainer.link
import bench.trainer.pace
import bench.trainer.prediction
from bench.machine import facts
from bench.measure import Goal, MissingRequirement, Result, Size

BENCHES: dict[str, Callable[[Size], Result]] = {
    "submit": bench.submissions.latency.run,
    "first-line": bench.jobs.first_line.run,
    "jobs-rate": bench.jobs.rate.run,
    "array-rate": bench.jobs.array_rate.run,
    "slurm-jobs": bench.jobs.slurm_jobs.run,
    "sweep": bench.jobs.sweep.run,
    "submit-rate": bench.submissions.rate.run,
    "line": bench.jobs.line_latency.run,
    "big-table": bench.server.big_table.run,
    "cli": bench.cli_start.run,
    "start": bench.server.start.run,
    "memory": bench.server.memory.run,
    "followers": bench.server.followers.run,
    "reads": bench.server.reads.run,
    "many-hosts": bench.server.many_hosts.run,
    "log": bench.jobs.log_shipping.run,
    "artifact": bench.files.artifact_close.run,
    "reupload": bench.files.reupload.run,
    "download": bench.files.download.run,
    "key-check": bench.server.refusal_timing.run,
    "abuse": bench.server.abuse_latency.run,
    "trainer": bench.trainer.pace.run,
    "trainer-link": bench.trainer.link.run,
    "prediction": bench.trainer.prediction.run,
    "browser-list": bench.browser_pages.run_list,
    "browser-log": bench.browser_pages.run_log,
    "browser-charts": bench.browser_pages.run_charts,
    "browser-runs": bench.browser_pages.run_runs,
    "container": bench.containers.start.run,
    "container-outputs": bench.containers.outputs.run,
    "container-memory": bench.containers.worker_memory.run,
}
_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected measurements; return 0 even if goals are missed, for that is a finding, not a failure."""
    parsed = _parser().parse_args(arguments)
    rounds = 1 if parsed.quick else parsed.rounds
    size = Size(rounds, parsed.quick, parsed.database, parsed.processes, parsed.before)
    report: dict[str, Any] = {"machine": facts(), "quick": size.quick, "rounds": size.rounds, "benches": {}}
    goals: list[Goal] = []
    for name in parsed.only or BENCHES:
        print(f"\n{name}", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        try:
            result = BENCHES[name](size)
        except MissingRequirement as error:
            print(f"  NOT RUN: {error}", file=sys.stderr, flush=True)
            report["benches"][name] = {"notRun": str(error)}
            continue
        report["benches"][name] = {"loadBefore": round(load, 2)} | result.figures()
        _print(result)
        goals += result.goals
    _print_goals(goals)
    text = json.dumps(report, indent=2)
    if parsed.json:
        parsed.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds each: shows that it works, not how fast it is")
    parser.add_argument("--only", action="append", choices=BENCHES, metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--rounds", type=_positive, default=_ROUNDS, help=f"turns of each (default: {_ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON there")
    many = parser.add_argument_group("of measurements with many clients")
    many.add_argument("--database", metavar="URL", help="a PostgreSQL server to create databases on, instead of SQLite")
    many.add_argument("--processes", type=_positive, default=1, help="processes of the API (default: 1)")
    many.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout of another revision, measured in turn")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: 1 or more")
    return number


def _print(result: Result) -> None:
    for line in [list(result.table[0]), *(row.values() for row in result.table)] if result.table else []:
        print("  " + " ".join(f"{cell!s:>11}" for cell in line), file=sys.stderr)
    print(f"  {'':44} {'p50':>9} {'p99':>9} {'min':>9} {'max':>9} {'n':>5}", file=sys.stderr)
    for series in result.series:
        values = "".join(
            f" {value:9,.2f}" for value in (series.p50, series.p99, min(series.samples), max(series.samples))
        )
        print(f"  {series.what[:38]:38} {series.unit:5}{values} {len(series.samples):5}", file=sys.stderr)
    for goal in result.goals:
        sign = "≤" if goal.at_most else "≥"
        spread = f" (rounds {goal.spread[0]:.2f} to {goal.spread[1]:.2f})" if goal.spread else ""
        result = "met" if goal.met else "MISSED"
        print(f"  {result:6} {goal.what}: {goal.value:.2f} {sign} {goal.limit:g}{spread}", file=sys.stderr, flush=True)


def _print_goals(goals: Sequence[Goal]) -> None:
    """Print one line for each goal; in the last column, 1 is just met, and less is better."""
    print(f"\n  {'goal':84} {'bound':>9} {'figure':>9} {'ratio':>6}", file=sys.stderr)
    for goal in goals:
        bound = f"{'≤' if goal.at_most else '≥'} {goal.limit:g}"
        missed = "" if goal.met else "  MISSED"
        print(f"  {goal.what[:84]:84} {bound:>9} {goal.value:9.2f} {goal.ratio:6.2f}{missed}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
