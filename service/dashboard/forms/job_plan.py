"""The check of a job before it is submitted: everything that would be refused, or a dry run."""

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
from service.schemas.base import parse_request
from service.schemas.jobs import DryRun, SubmitJob
from service.submission import create

GENERAL = ""  # the field of errors that no field caused
_MAX_ERRORS = 12


@dataclass(slots=True)
class JobPlan:
    errors: dict[str, str] = field(default_factory=dict)  # errors by field; a job with one would be refused
    request: SubmitJob | None = None
    # the job that would be created, without the fields that would be refused; None: too little is valid
    dry_run: DryRun | None = None


def check_job(
    app_state: AppState, key_id: str, fields: dict[str, Any], errors: dict[str, str], *, uploaded: bool
) -> JobPlan:
    """Check a job, and collect the errors of all fields: a refused field is left out, and the rest is checked again."""
    plan = JobPlan(errors=dict(errors))
    left = dict(fields)
    for name, stand_in in (("machineType", next(iter(app_state.catalogue)).name), ("command", "true")):
        if name not in left and not (name == "command" and left.get("buildOnly")):
            plan.errors.setdefault(name, "Required.")
            left[name] = stand_in
        left.setdefault(name, "")
    for _ in range(_MAX_ERRORS):
        try:
            request = parse_request(SubmitJob, left)
            plan.dry_run = create.dry_run(app_state, key_id, request, uploaded=uploaded)
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
        if not new or not left.keys() & new.keys():
            break
        _leave_out(app_state, left, new)
    if not plan.errors:
        plan.request = request
    return plan


def _sentence(text: str) -> str:
    text = text.removeprefix("Value error, ").replace("Input should be", "Must be").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _leave_out(app_state: AppState, fields: dict[str, Any], refused: dict[str, str]) -> None:
    stand_ins = {"machineType": next(iter(app_state.catalogue)).name, "command": "true"}
    for name in refused:
        fields.pop(name, None)
        if name in stand_ins:
            fields[name] = stand_ins[name]


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """A machine type to choose, with the wait of a job that is submitted to it now."""

    machine: MachineType
    available: bool
    free: int
    wait: WaitStatus


def machine_choices(session: Session, app_state: AppState) -> list[MachineChoice]:
    """Return the machine types, first those that a worker offers."""
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
    choices = [
        MachineChoice(
            machine,
            offered.available(machine.name, backends[machine.name]),
            offered.free_slots(machine.name, backends[machine.name], held),
            waits[machine.name],
        )
        for machine in app_state.catalogue
    ]
    return sorted(choices, key=lambda choice: not choice.available)
