"""`make chaos`: break a whole installation for half an hour or more, and check that it kept every promise."""

import argparse
import os
import random
import signal
import sys

from chaos.faults import FAULTS
from chaos.run import ProgressLog, RunPlan, missing_requirements, run, run_folder


def _arguments() -> argparse.Namespace:
    """Parse the arguments; exit with 2 if the run is impossible."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="how many are injected")
    parser.add_argument("--seed", type=int, default=os.environ.get("GRADIENT_CHAOS_SEED"), help="of every choice")
    parser.add_argument("--only", action="append", default=[], help="inject only faults whose name has this in it")
    parser.add_argument("--keep", action="store_true", help="keep the run's folder even if nothing was wrong")
    given = parser.parse_args()
    given.kinds = tuple(one for one in FAULTS if not given.only or any(words in one.name for words in given.only))
    if not given.kinds:
        parser.error(f"no fault is called {' or '.join(given.only)}; there are {', '.join(one.name for one in FAULTS)}")
    if lacking := missing_requirements():
        parser.error(f"this machine lacks {lacking}")
    return given


def main() -> int:
    """Return 0 if there was no violation, 1 if there were some or the run was interrupted."""
    given = _arguments()
    # In the background a shell has Ctrl-C ignored; either signal ends the run, and clears everything away.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seed = random.randrange(10**6) if given.seed is None else int(given.seed)  # noqa: S311 - repeatable, not secret
    wrong = True
    with run_folder(keep=lambda: wrong or given.keep) as folder:
        log = ProgressLog(folder / "chaos.log")
        log(f"GRADIENT_CHAOS_SEED={seed}, {given.faults} faults; the log: {folder}/chaos.log")
        try:
            wrong = bool(run(RunPlan(seed, given.faults, given.kinds, len(given.kinds)), folder, log).violations)
        except KeyboardInterrupt:
            log("interrupted; everything is cleared away")
        finally:
            log.close()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
