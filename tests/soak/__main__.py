"""`make soak`: run many small jobs through a whole service, and see that no process keeps more and more of anything."""

import argparse
import logging
import signal
import sys
from pathlib import Path

from chaos.run import ProgressLog, missing_requirements, run_folder
from soak.load import run_jobs
from soak.samples import Sampler, find_growth, format_table
from soak.service import running_service


def main() -> int:
    """0: all is flat; 1: something rises, a job did not complete, or interrupted."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="how many are run (default: 2000)")
    parser.add_argument("--seconds", type=float, help="submit no more after this long")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every sample there")
    given = parser.parse_args()
    if lacking := missing_requirements():
        parser.error(f"this machine lacks {lacking}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    logging.getLogger("core.db.database").setLevel(logging.CRITICAL)
    wrong = ["interrupted"]
    with run_folder(keep=lambda: bool(wrong)) as folder:
        log = ProgressLog(folder / "soak.log")
        try:
            with running_service(folder) as service, Sampler(service, given.csv or folder / "samples.csv") as samples:
                log(f"the service is ready; its processes' logs: {folder}/home-*.log")
                wrong = run_jobs(service, given.jobs, given.seconds, log)
                samples.end()
            for line in format_table(samples.samples):
                log(line)
            wrong += find_growth(samples.samples)
            for line in wrong or ["all is flat"]:
                log(line)
        finally:
            log.close()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
