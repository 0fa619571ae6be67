"""`python -m bench`: measures each figure together with its floor; a table on stderr, JSON on stdout."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import (
    abuse_latency,
    artifact_close,
    batch_rate,
    big_table,
    browser_pages,
    cli_start,
    container_outputs,
    container_start,
    download,
    first_line,
    jobs_rate,
    line_latency,
    log_shipping,
    prediction,
    refusal_timing,
    reupload,
    server_start,
    service_memory,
    submit_latency,
    submit_rate,
    trainer_link,
    trainer_pace,
    worker_memory,
)
from bench.engine import MissingRequirement
from bench.machine import facts
from bench.measure import Goal, Result, Size

BENCHES: dict[str, Callable[[Size], Result]] = {
    "submit": submit_latency.run,
    "first-line": first_line.run,
    "jobs-rate": jobs_rate.run,
    "submit-rate": submit_rate.run,
    "submit-batch": batch_rate.run,
    "line": line_latency.run,
    "big-table": big_table.run,
    "cli": cli_start.run,
    "start": server_start.run,
    "memory": service_memory.run,
    "log": log_shipping.run,
    "artifact": artifact_close.run,
    "reupload": reupload.run,
    "download": download.run,
    "key-check": refusal_timing.run,
    "abuse": abuse_latency.run,
    "trainer": trainer_pace.run,
    "trainer-link": trainer_link.run,
    "prediction": prediction.run,
    "browser-list": browser_pages.run_list,
    "browser-log": browser_pages.run_log,
    "browser-charts": browser_pages.run_charts,
    "container": container_start.run,
    "container-outputs": container_outputs.run,
    "container-memory": worker_memory.run,
}
_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected measurements; return 0 even if goals are missed, for that is a finding, not a failure."""
    parsed = _parser().parse_args(arguments)
    size = Size(1 if parsed.quick else parsed.rounds, parsed.quick)
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
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rounds: 1 or more")
    return number


def _print(result: Result) -> None:
    print(f"  {'':44} {'p50':>9} {'p99':>9} {'min':>9} {'max':>9} {'n':>5}", file=sys.stderr)
    for one in result.series:
        values = "".join(f" {value:9,.2f}" for value in (one.p50, one.p99, min(one.samples), max(one.samples)))
        print(f"  {one.what[:38]:38} {one.unit:5}{values} {len(one.samples):5}", file=sys.stderr)
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
