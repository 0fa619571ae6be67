"""Run time of `gradient-cli`, against Python doing nothing."""

import sys
from pathlib import Path

from bench import bounds
from bench.floors.processes import run_to_end
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import environment, run_server, submit

_CLI = str(Path(sys.executable).with_name("gradient-cli"))


def run(size: Size) -> Result:
    """Measure each in turn; the list comes from a server on this machine with ten jobs."""
    nothing = Series("python -c pass", "ms")
    shown = Series("gradient-cli --help", "ms")
    listed = Series("gradient-cli jobs list", "ms")
    commands = ((nothing, [sys.executable, "-c", "pass"]), (shown, [_CLI, "--help"]), (listed, [_CLI, "jobs", "list"]))
    with run_server("api") as api:
        with api.connect() as connection:
            for _ in range(10):
                submit(connection, "python main.py")
        # In a separate cache: only the first start compiles what it imports, as an installation does.
        cache = str(api.home / "bytecode")
        env = environment(api.home, PYTHONPYCACHEPREFIX=cache, PYTHONDONTWRITEBYTECODE="")
        for _, command in commands:
            run_to_end(command, env)
        for _ in range(size.rounds):
            for series, _ in commands:
                series.begin_round()
            for _ in range(size.pick(20, 3)):
                for series, command in commands:
                    series.add(run_to_end(command, env) * 1000)
    goals = [
        ratio_goal("gradient-cli --help, p50, times python -c pass", shown, nothing, bounds.CLI_HELP),
        ratio_goal("gradient-cli jobs list, p50, times python -c pass", listed, nothing, bounds.CLI_LIST),
    ]
    return Result([shown, listed, nothing], goals)
