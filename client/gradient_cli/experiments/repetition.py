from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.errors import UsageError
from gradient_cli.experiments.recipe import Member, Recipe
from gradient_cli.follow import SUCCEEDED, describe_state
from gradient_cli.formatting import format_count
from gradient_cli.workspace import submission

_WAIT_SECONDS = 2.0
_POINTS = 3  # fewest points of a series: only its last value is used
MAX_JOBS = 100  # most jobs of one comparison, and so of a repetition


@dataclass
class Run:
    member: Member
    machine_type: str
    job: dict[str, Any]
    beside: bool = False  # it ran at the same time as another job of the experiment on the same host
    figures: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        return bool(self.job.get("state") == SUCCEEDED)


@dataclass
class Cell:
    member: Member
    machine_type: str
    runs: list[Run]

    @property
    def simulated(self) -> bool:
        """True if stand-ins ran the jobs."""
        return any(run.job.get("simulated") for run in self.runs)

    def values(self, name: str) -> list[float]:
        """Return a figure of each job that succeeded and has it."""
        values = [run.figures.get(name) for run in self.runs if run.succeeded]
        return [value for value in values if value is not None]

    def median(self, name: str) -> float | None:
        values = self.values(name)
        return median(values) if values else None


def choose_machine_types(api: Api, recipe: Recipe, given: str | None) -> list[str]:
    """Return the machine types to run on: the given ones, else those of the publication that the server has."""
    if given is not None:
        chosen = [name.strip() for name in given.split(",") if name.strip()]
        if not chosen or len(set(chosen)) < len(chosen):
            raise UsageError(f"machineType: {given!r} names a machine type twice", hint="For example CPU,V100.")
        return chosen
    offered = {
        str(machine_type["name"])
        for machine_type in api.machine_types()["machineTypes"]
        if machine_type.get("available")
    }
    chosen = [name for name in recipe.machine_types if name in offered]
    missing = [name for name in recipe.machine_types if name not in offered]
    if not chosen:
        raise UsageError(
            f"machineType: this server has none of {', '.join(recipe.machine_types)}",
            hint=f"Give --machineType with its machine types: {', '.join(sorted(offered)) or 'none is available'}.",
        )
    if missing:
        terminal.print_message(f"not available here, left out: {', '.join(missing)}")
    return chosen


def check_count(recipe: Recipe, machine_types: Sequence[str], repeats: int) -> None:
    """Refuse more jobs than a comparison takes."""
    count = len(recipe.members_by_machine(machine_types)) * repeats
    if count > MAX_JOBS:
        raise UsageError(
            f"repeats: {count} jobs exceed the limit of {MAX_JOBS} per comparison",
            hint="Give fewer --repeats or machine types.",
        )


def submit(
    api: Api,
    recipe: Recipe,
    machine_types: Sequence[str],
    data: Mapping[str, str],
    *,
    full: bool,
    repeats: int,
    parallel: bool,
) -> list[Run]:
    """Submit the jobs: each member on each of its machine types, with the seeds 1 to `repeats`.

    Unless they run in parallel, each waits for the end of the one before it.
    """
    specs = [
        (member, machine, _spec(recipe, member, machine, recipe.command_of(member, data, full=full), seed))
        for member, machine in recipe.members_by_machine(machine_types)
        for seed in range(1, repeats + 1)
    ]
    runs: list[Run] = []
    try:
        # An unknown machine type is reported before the first job exists.
        for _, _, spec in specs[::repeats]:
            api.resolve_job({**spec, "workspace": "none"})
        for member, machine, spec in specs:
            if runs and not parallel:
                spec["after"] = [f"{runs[-1].job['id']}:ended"]
            job = _submit(api, recipe, spec)
            runs.append(Run(member, machine, job))
            terminal.print_message(f"{job['id']}  {member.name} on {machine}, seed {spec['envVars']['SEED']}")
    except BaseException:
        if runs:
            terminal.print_message(f"submitted before the error: {', '.join(run.job['id'] for run in runs)}")
        raise
    return runs


def _spec(recipe: Recipe, member: Member, machine_type: str, command: str, seed: int) -> dict[str, Any]:
    return {
        "name": f"{recipe.name} {member.name}",
        "machineType": machine_type,
        "container": recipe.container,
        "command": command,
        "envVars": {"SEED": str(seed)},
        "tags": [f"experiment-{recipe.name}"],
        **({"cpus": member.cpus} if member.cpus else {}),
    }


def _submit(api: Api, recipe: Recipe, spec: dict[str, Any]) -> dict[str, Any]:
    folder = recipe.workspace
    if folder is None:
        return api.create({**spec, "workspace": "none"})
    return submission.submit(api, spec, folder, submission.read_folder(folder, []), lambda _: None)


def compare(api: Api, recipe: Recipe, runs: Sequence[Run]) -> str | None:
    """Make a comparison of the jobs, and return its id; None of a single job."""
    if len(runs) == 1:
        return None
    judged = {"metric": recipe.metric} if recipe.metric else {}
    made = api.compare_jobs({"jobs": [run.job["id"] for run in runs], "name": recipe.title, **judged})
    return str(made["id"])


def wait(api: Api, runs: Sequence[Run]) -> None:
    open_runs = list(runs)
    while open_runs:
        for run in list(open_runs):
            run.job = retry_until_connected(partial(api.job, run.job["id"]))
            if run.job.get("finishedAt"):
                open_runs.remove(run)
                terminal.print_message(
                    f"{run.job['id']}  {run.member.name} on {run.machine_type}: {describe_state(run.job)}"
                    f" ({format_count(len(open_runs), 'job')} left)"
                )
        if open_runs:
            time.sleep(_WAIT_SECONDS)


def measure(api: Api, runs: Sequence[Run], comparison_id: str | None) -> list[Cell]:
    """Read the figures of the jobs, and return the jobs by member and machine type."""
    compared = {}
    if comparison_id is not None:
        rows = api.comparison(comparison_id)["rows"]
        compared = {member["jobId"]: member for row in rows for member in row["members"]}
    cells: dict[tuple[str, str], Cell] = {}
    for run in runs:
        member = compared.get(run.job["id"], {})
        run.beside, run.figures = bool(member.get("beside")), _figures(api, run, member)
        cells.setdefault((run.member.name, run.machine_type), Cell(run.member, run.machine_type, [])).runs.append(run)
    return list(cells.values())


def _figures(api: Api, run: Run, compared: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a job: last values of its metrics, and what the service measured.

    `compared`: the job as the member of a comparison; empty: it has none.
    """
    figures: dict[str, float | None] = {"peak_host_bytes": (run.job.get("usage") or {}).get("peakMemoryBytes")}
    for series in api.metrics(run.job["id"], points=_POINTS)["series"]:
        if series["source"] == "job" and not isinstance(series["last"], str):  # values that are not finite are strings
            figures[series["name"]] = series["last"]
    bottleneck = api.predict(run.job["id"], run.machine_type)["bottleneck"]
    figures.update({share["name"]: share["value"] for share in bottleneck["figures"]})
    pace, batch_size = compared.get("stepsPerSecond"), figures.get("batch_size")
    if pace:
        figures["steps_per_second"] = pace
        figures["examples_per_second"] = pace * batch_size if batch_size else figures.get("examples_per_second")
    pace = figures.get("steps_per_second")
    figures["step_seconds"] = 1 / pace if pace else None
    figures["other_cpus"] = compared.get("otherCpus")
    return {**figures, "seconds": run.job.get("durationSeconds"), "cost": run.job.get("cost")}
