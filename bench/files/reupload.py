"""Time and bytes of submitting a folder again after one line changed, against a submission without a folder."""

import os
import sys
import tempfile
import time
from pathlib import Path

from bench import bounds
from bench.floors.processes import run_to_end
from bench.measure import Goal, Result, Series, Size
from bench.service import environment, run_server

_CLI = str(Path(sys.executable).with_name("gradient-cli"))
_SUBMIT = [_CLI, "jobs", "create", "--machineType", "CPU", "--command", "true", "--detach", "--workspace"]
# Files changed just before a submission are read again by the next one.
_SETTLE_SECONDS = 2.5


def run(size: Size) -> Result:
    """Measure submissions through the client, each after a change of one file; and the first one, of all files."""
    files, file_bytes = size.pick(10_000, 200), size.pick(100_000, 10_000)
    total = files * file_bytes
    floor = Series("jobs create, no workspace", "s")
    first = Series(f"jobs create, {files:,} new files", "s")
    again = Series("jobs create, one file changed", "s")
    sent = Series("sent again, of the folder's bytes", "%")
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder, run_server("api") as api:
        root = Path(folder)
        env = environment(api.home, XDG_CACHE_HOME=str(root / "cache"))
        work = _write(root / "work", files, file_bytes)
        time.sleep(_SETTLE_SECONDS)
        for number in range(size.rounds):
            for series in (floor, first, again, sent):
                series.begin_round()
            floor.add(run_to_end([*_SUBMIT, "none"], env))
            if not number:
                first.add(run_to_end([*_SUBMIT, str(work)], env))
                time.sleep(_SETTLE_SECONDS)
            for _ in range(size.pick(5, 2)):
                (work / "0" / "1").write_bytes(os.urandom(100))
                stored = _stored_bytes(api.home)
                floor.add(run_to_end([*_SUBMIT, "none"], env))
                again.add(run_to_end([*_SUBMIT, str(work)], env))
                # The manifest is sent twice and stored once; the changed file is stored as it was sent.
                sent.add(100 * 2 * (_stored_bytes(api.home) - stored) / total)
    first.rounds = first.rounds[:1]
    goals = [
        Goal("one file changed, p50, s", again.p50, bounds.REUPLOAD_SECONDS),
        Goal("sent again, % of the folder's bytes", sent.p50, bounds.REUPLOAD_PERCENT),
    ]
    return Result([again, floor, first, sent], goals)


def _write(folder: Path, files: int, file_bytes: int) -> Path:
    for number in range(files):
        file = folder / str(number // 100) / str(number % 100)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(file_bytes))
    return folder


def _stored_bytes(home: Path) -> int:
    return sum(file.stat().st_size for file in (home / "workspaces").rglob("*") if file.is_file())
