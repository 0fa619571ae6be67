"""The check of what the form makes before it is submitted: all that would be refused, or a dry run of its jobs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job
from core.errors import GradientError
from core.jobs.scheduling.capacity import live_workers
from core.jobs.scheduling.wait_status import WaitStatus, prospective_waits
from core.jobs.scheduling.workers import held_job_counts
from service.app_state import AppState
from service.dashboard.forms.kinds import Kind, Preview
from service.schemas.base import parse_request
from service.schemas.comparisons import SubmitComparison
from service.schemas.jobs import DryRun, SubmitJob
from service.submission import create

GENERAL = ""  # the field of errors that no field caused
_MAX_ERRORS = 12
_SIMULATED, _NOT_OFFERED = "Simulated on this server's CPU", "No worker offers these now"
_STAND_INS = {"command": "true", "space": {"x": "1..1000"}, "metric": "loss:min", "trials": 1, "cron": "0 0 * * *"}
_REQUIRED = frozenset({"machineType", "command", "space", "cron"})


@dataclass(slots=True)
class JobPlan:
    errors: dict[str, str] = field(default_factory=dict)  # errors by field; with one, nothing would be created
    request: SubmitJob | None = None
    # the jobs that would be created, one for each machine type, without the fields that would be refused
    dry_runs: list[DryRun] = field(default_factory=list)
    max_cost: float | None = None  # of all of them, or of each job of a schedule; None: unlimited
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set_jobs(self, preview: Preview, ceiling: float | None, dry_runs: list[DryRun]) -> None:
        self.dry_runs, self.facts = dry_runs, preview.facts
        costs = [run.max_cost for run in dry_runs]
        whole = None if None in costs else preview.each * sum(filter(None, costs))
        self.max_cost = min((amount for amount in (whole, ceiling) if amount is not None), default=None)
        machines: dict[str, list[str]] = {}
        for run in dry_runs:
            for text in run.notes:
                machines.setdefault(text, []).append(run.machine_type.name)
        self.notes = [
            text if len(names) == len(dry_runs) else f"{', '.join(names)}: {text}" for text, names in machines.items()
        ]


def check_job(app_state: AppState, key_id: str, kind: Kind, fields: dict[str, Any], errors: dict[str, str]) -> JobPlan:
    """Check a request, and collect the errors of all fields: a refused one is left out, and the rest checked again."""
    plan = JobPlan(errors=dict(errors))
    left, stand_ins = dict(fields), _stand_ins(app_state, kind)
    for name in _REQUIRED & stand_ins.keys() - left.keys():
        if name == "command" and left.get("buildOnly"):
            left[name] = ""
            continue
        plan.errors.setdefault(name, "Required.")
        left[name] = stand_ins[name]
    for _ in range(_MAX_ERRORS):
        try:
            request = parse_request(kind.model, left)
            preview = kind.preview(request)
            runs = [create.dry_run(app_state, key_id, job, uploaded=False) for job in preview.jobs]
            plan.set_jobs(preview, left.get("maxCost"), runs)
            break
        except RequestValidationError as error:
            messages = {
                str(error_item["loc"][1]): _sentence(str(error_item["msg"]))
                for error_item in error.errors()
                if len(error_item["loc"]) > 1
            }
        except GradientError as error:
            messages = {(error.field or GENERAL).split(".")[0]: error.message}
        new = {name: text for name, text in messages.items() if name not in plan.errors}
        plan.errors |= new
        if not new or not (left.keys() | stand_ins.keys()) & new.keys():
            break
        for name in new:
            left.pop(name, None)
        left |= {name: stand_ins[name] for name in new.keys() & stand_ins.keys()}
    if not plan.errors:
        plan.request = request
    return plan


def _stand_ins(app_state: AppState, kind: Kind) -> dict[str, Any]:
    """Return values that are never refused, so that the other fields can be checked without what is refused."""
    machine = next(iter(app_state.catalogue)).name
    machines = f"{machine},{machine}" if kind.model is SubmitComparison else machine
    values = _STAND_INS | {"machineType": machines}
    names = {option.alias for option in kind.model.model_fields.values()}
    return {name: value for name, value in values.items() if name in names}


def _sentence(text: str) -> str:
    text = text.removeprefix("Value error, ").replace("Input should be", "Must be").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """A machine type to choose, with the wait of a job that is submitted to it now."""

    machine: MachineType
    simulated: bool
    available: bool
    free: int
    wait: WaitStatus


def machine_choices(session: Session, app_state: AppState) -> list[MachineChoice]:
    backends = {machine.name: app_state.backend_for(machine) for machine in app_state.catalogue}
    jobs = [
        Job(
            id=machine.name,
            project_id="",
            machine_type=machine.name,
            backend=backends[machine.name],
            priority=50,
            gpus=machine.gpus,
            spec_json={},
        )
        for machine in app_state.catalogue
    ]
    waits, offered, held = prospective_waits(session, jobs), live_workers(session), held_job_counts(session)
    return [
        MachineChoice(
            machine,
            backends[machine.name] != machine.backend,
            offered.available(machine.name, backends[machine.name]),
            offered.free_slots(machine.name, backends[machine.name], held),
            waits[machine.name],
        )
        for machine in app_state.catalogue
    ]


def machine_groups(choices: Sequence[MachineChoice], chosen: Collection[str]) -> dict[str, list[MachineChoice]]:
    """Group machine types, those that are chosen first, as a list shows them."""
    groups: dict[str, list[MachineChoice]] = {"Chosen": [], "": [], _SIMULATED: [], _NOT_OFFERED: []}
    for choice in choices:
        offered = _NOT_OFFERED if not choice.available else _SIMULATED if choice.simulated else ""
        groups["Chosen" if choice.machine.name in chosen else offered].append(choice)
    return groups
