"""Converts database rows to their public form: state names, reasons as sentences, durations, costs."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.catalogue.machine_types import Catalogue, MachineType
from core.comparison import comparisons
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Attempt, Event, Job, PortAllocation, Project
from core.errors import SpecInvalid
from core.formatting import format_moment
from core.jobs import projects, queries
from core.jobs.costs import amounts
from core.jobs.kept_jobs import kept_until
from core.jobs.projects import ActiveCounts
from core.jobs.queries import JobFilter, relations_of
from core.jobs.reasons import CANNOT_START, REASONS, reason_message
from core.jobs.scheduling.capacity import LiveWorkers
from core.jobs.scheduling.port_allocations import ports_of_jobs
from core.jobs.scheduling.wait_status import WaitStatus, wait_statuses
from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.params import Value
from core.jobs.states import OWNED, WAITING_PHASE, JobState
from core.jobs.tracking import job_notes, params
from core.security import api_keys
from core.settings import Settings
from core.storage import retention
from core.storage.retention import OutputKind, RecordedRemoval
from core.system.canonical_host import canonical_host
from service.app_state import AppState
from service.presenters.outputs.removed import removed_view
from service.schemas.catalogue import MachineTypeView
from service.schemas.job_list import ListJobs
from service.schemas.jobs import (
    EventView,
    GpuView,
    JobComparison,
    JobSlurm,
    JobTpu,
    JobView,
    MachineNode,
    PortView,
    ResolvedJob,
    UsageView,
)
from service.schemas.projects import ProjectView
from service.ssh.endpoint import job_url

_PUBLIC_STATES = {
    JobState.QUEUED: "Pending",
    JobState.STARTING: "Pending",
    JobState.RUNNING: "Running",
    JobState.FINISHING: "Running",
    JobState.KEPT: "Kept",
    JobState.SUCCEEDED: "Stopped",
    JobState.CANCELLED: "Cancelled",
}
_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
_AT_ONCE_SECONDS = 2.0
_PUBLIC_FAILED_STATES = {True: "Failed", False: "Error"}
"""Public name of the state `failed`, by whether there is an exit code: the command failed, or it could not be run."""

PUBLIC_STATES = (*dict.fromkeys(_PUBLIC_STATES.values()), *_PUBLIC_FAILED_STATES.values())  # the public state names

STATE_WORDS = {state: state for state in PUBLIC_STATES} | {"Stopped": "Succeeded", "Kept": "Kept for you to look"}
"""The words that people read, by the public state names, which are those of the original service."""


def port_views(spec: JobSpec, held: Sequence[PortAllocation] = (), dashboard: str | None = None) -> list[PortView]:
    """Return a job's ports, with links for those allocated on a host.

    `dashboard`: the dashboard's host name. No link leads there: a browser would send its session to the job.
    """
    hosts = {port.internal: port for port in held}
    views = []
    for port in spec.parsed_ports():
        host = hosts.get(port.internal)
        external = host.port if host else port.external or None
        address = f"[{host.address}]" if host and ":" in host.address else host and host.address
        apart = host is not None and canonical_host(host.address) not in {dashboard, ""}
        url = f"{port.scheme}://{address}:{external}" if apart else None
        views.append(PortView(internal=port.internal, external=external, url=url))
    return views


def public_state(state: JobState, exit_code: int | None) -> str:
    return _PUBLIC_STATES.get(state) or _PUBLIC_FAILED_STATES[exit_code is not None]


def job_filter(query: ListJobs, catalogue: Catalogue) -> JobFilter:
    """Build the filter of a list of jobs, except for `mine`, which depends on the caller."""
    wanted = {part.strip().casefold(): part.strip() for part in (query.state or "").split(",") if part.strip()}
    state_names = {name.casefold(): outside for outside, word in STATE_WORDS.items() for name in (outside, word)}
    for unknown in sorted(wanted.keys() - state_names.keys()):
        raise SpecInvalid(
            f"{wanted[unknown][:80]!r} is not a state. Use one of: {', '.join(STATE_WORDS.values())}.", field="state"
        )
    names = {state_names[name] for name in wanted}
    failed = {exited for exited, outside in _PUBLIC_FAILED_STATES.items() if outside in names}
    states = [inside for inside, outside in _PUBLIC_STATES.items() if outside in names]
    return JobFilter(
        states=[*states, JobState.FAILED] if failed else states,
        failed_with_exit_code=next(iter(failed)) if len(failed) == 1 else None,
        project=query.project,
        project_id=query.project_id,
        machine_type=catalogue.get(query.machine_type).name if query.machine_type else None,
        name=query.name,
        id_prefix=query.id_prefix,
        array=query.array,
        folded=query.fold,
        tags=[tag.strip() for tag in (query.tag or "").split(",") if tag.strip()],
        text=query.query,
        since=query.since,
    )


def job_view(session: Session, app_state: AppState, job: Job) -> JobView:
    return job_views(session, app_state, [job])[0]


def submitted_view(app_state: AppState, job: Job, project: str, notes_on_job: Sequence[str]) -> JobView:
    """Convert a submitted job to its public form, without queue position and estimate, whose cost grows with the queue.

    Makes no query: with a slow database, each would delay the response.
    """
    return _job_view(job, _JobContext(project, notes=notes_on_job), app_state.settings, datetime.now(UTC))


def job_views(session: Session, app_state: AppState, jobs: Sequence[Job]) -> list[JobView]:
    """Convert jobs to their public form; the number of queries does not depend on the number of jobs."""
    return views_with_waits(session, app_state, jobs, wait_statuses(session, jobs)) if jobs else []


def views_with_waits(
    session: Session, app_state: AppState, jobs: Sequence[Job], waits: Mapping[str, WaitStatus]
) -> list[JobView]:
    """Convert jobs to their public form, with these places in the queue, by the ids of the jobs."""
    around = relations_of(session, jobs)
    removed = retention.recorded_removals(session, jobs)
    ports = ports_of_jobs(session, jobs)
    texts = job_notes.notes_of(session, jobs)
    compared = comparisons.comparisons_of(session, [job.id for job in jobs])
    given = params.of_jobs(session, jobs)
    stoppers = queries.stopped_by(session, jobs)
    several = [job.id for job in jobs if job.attempt > 1 or capabilities_of(job.backend).billed]
    costs = amounts.of_jobs(session, several)
    settings, current = app_state.settings, datetime.now(UTC)
    return [
        _job_view(
            job,
            _JobContext(
                around[job.id].project,
                around[job.id].owner,
                waits.get(job.id),
                removed.get(job.id, ()),
                ports.get(job.id, ()),
                around[job.id].attempt,
                texts.get(job.id, ()),
                compared.get(job.id, ()),
                costs.get(job.id),
                given[job.id],
                stoppers.get(job.id),
            ),
            settings,
            current,
        )
        for job in jobs
    ]


class _JobContext(NamedTuple):
    """Data of a job from outside its row."""

    project: str
    owner: str | None = None
    waits: WaitStatus | None = None
    removed: Sequence[RecordedRemoval] = ()
    ports: Sequence[PortAllocation] = ()
    attempt: Attempt | None = None
    notes: Sequence[str] = ()
    comparisons: Sequence[Comparison] = ()
    amounts: tuple[float, float] | None = None  # US dollars and GPU hours, if its row does not tell them
    params: Mapping[str, Value] | None = None  # None: not read
    stopped_by: str | None = None  # name of the API key that asked to stop it


def _job_view(job: Job, context: _JobContext, settings: Settings, current: datetime) -> JobView:
    spec, waits = job.spec, context.waits
    reason, message = job_reason(job, waits, current, context.stopped_by)
    seconds = _duration_seconds(job, current)
    hours = (seconds or 0.0) / 3600
    dollars, hours = context.amounts or (hours * job.price_per_hour, hours * job.gpu_count)
    ports = port_views(spec, context.ports, settings.dashboard_host if context.ports else None)
    return JobView.of(
        job,
        **option_fields(spec, context.params)
        | {"name": job.shown_name, "machine_type": job.machine_type, "ports": ports, "nodes": job.nodes or spec.nodes},
        project=context.project,
        owner=context.owner,
        owner_key=job.submitted_by,
        state=public_state(job.state, job.exit_code),
        reason=reason,
        message=message,
        diverged=context.attempt.diverged if context.attempt else None,
        exit_code=job.exit_code if job.state not in {JobState.QUEUED, JobState.STARTING} else None,
        sandboxed=(job.handle or {}).get("sandboxed"),
        parent_job_id=job.parent_id,
        duration_seconds=seconds,
        cost=round(dollars, 6),
        gpu_hours=round(hours, 6),
        queue_position=waits.position if waits else None,
        estimated_start_at=waits.starts_at if waits else None,
        kept_until=kept_until(job),
        silent_since=job.heartbeat_at if is_silent(job, current) else None,
        **_machine_fields(context.attempt, job),
        notes=list(context.notes),
        removed=[removed_view(removal) for removal in context.removed],
        comparisons=_comparison_views(context.comparisons, settings),
        stop_requested=job.stop_requested_at is not None,
        url=f"{settings.public_url}/ui/jobs/{job.id}",
        ssh_url=job_url(job, settings),
    )


def _comparison_views(compared: Sequence[Comparison], settings: Settings) -> list[JobComparison]:
    start = f"{settings.public_url}/ui/comparisons"
    return [
        JobComparison(id=comparison.id, name=comparison.name, url=f"{start}/{comparison.id}") for comparison in compared
    ]


def option_fields(spec: JobSpec, given: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """Return the options of a job as its public form has them, with its parameters; the caller adds links to ports."""
    shown = {"workspace": spec.redacted_workspace(), "env_vars": spec.redacted_env()}
    return spec.to_json() | shown | {"params": spec.all_params() if given is None else given}


def _machine_fields(attempt: Attempt | None, job: Job) -> dict[str, Any]:
    """Build the fields of a job with its GPUs, its TPU and its usage; None: no attempt yet."""
    gpus = (attempt.gpus if attempt else None) or []
    first = gpus[0] if gpus else {}
    return {
        "gpu_name": first.get("name"),
        "gpu_mem": first.get("memory"),
        "gpu_driver": first.get("driver"),
        "gpu_cuda": first.get("cuda"),
        "gpu_count": len(gpus) or None,
        "gpus": [
            GpuView(**{name: gpu.get(name) for name in GpuView.model_fields} | {"index": str(gpu.get("index"))})
            for gpu in gpus
        ],
        **_machine_view(attempt, job),
        "usage": _usage_view(attempt),
    }


def _machine_view(attempt: Attempt | None, job: Job) -> dict[str, Any]:
    machine = attempt.allocation if attempt else None
    if attempt is None or machine is None:
        return {"tpu": None, "slurm": None}
    hosts, exits = machine.get("addresses", ()), machine.get("exits", {})
    nodes = [
        MachineNode(
            rank=rank, host=host, state=_node_state(attempt, job, exits, str(rank)), exit_code=exits.get(str(rank))
        )
        for rank, host in enumerate(hosts if len(hosts) > 1 else ())
    ]
    name, zone, kind = machine["name"], machine["zone"], machine["type"]
    if kind == "slurm":
        return {"tpu": None, "slurm": JobSlurm(job_id=name, partition=zone, nodes=nodes)}
    return {"tpu": JobTpu(zone=zone, name=name, type=kind, grpc_url=machine["url"], nodes=nodes), "slurm": None}


def _node_state(attempt: Attempt, job: Job, exits: Mapping[str, int | None], rank: str) -> str:
    """Return the public state of one of several hosts: that of a job with its end."""
    code = exits.get(rank)
    if job.state is JobState.CANCELLED or (rank not in exits and attempt.ended_at is None):
        return public_state(job.state, code)
    return public_state(JobState.SUCCEEDED if code == 0 else JobState.FAILED, code)


def _usage_view(attempt: Attempt | None) -> UsageView | None:
    if attempt is None or attempt.sampled_seconds is None:
        return None
    return UsageView.of(
        attempt,
        sampled_seconds=round(attempt.sampled_seconds, 3),
        **{
            name: None if percent is None else round(percent, 1)
            for name in UsageView.model_fields
            if name.endswith("_percent")
            for percent in [getattr(attempt, name)]
        },
    )


def job_reason(
    job: Job, waits: WaitStatus | None, current: datetime, stopped_by: str | None = None
) -> tuple[str | None, str | None]:
    """Return why a job waits or how it ended, as code and sentence."""
    if waits is not None:
        return waits.reason, reason_message(waits.reason, waits.detail)
    if job.heartbeat_at is not None and is_silent(job, current):
        return "worker_unresponsive", reason_message("worker_unresponsive", format_moment(job.heartbeat_at))
    if job.phase == WAITING_PHASE:
        return job.reason, job.phase_detail
    if stopped_by:
        return job.reason, f"Ended by a stop request of {stopped_by}."
    return job.reason, _reason_message(job.reason, job.reason_detail)


def is_silent(job: Job, current: datetime) -> bool:
    """Return whether the job is assigned to a worker that has sent no heartbeat for too long."""
    heartbeat_at = job.heartbeat_at
    if job.state not in OWNED or heartbeat_at is None:
        return False
    return (current - heartbeat_at).total_seconds() > queries.WORKER_STALE_SECONDS


def _reason_message(reason: str | None, detail: str | None) -> str | None:
    # A row written by a newer release may have a reason unknown to this one.
    return reason_message(reason, detail) if reason in REASONS else detail


def _duration_seconds(job: Job, current: datetime) -> float | None:
    if job.started_at is None:
        return None
    until = job.ended_at or job.finished_at or current
    return round(max(0.0, (until - job.started_at).total_seconds()), 3)


def event_views(session: Session, job: Job) -> list[EventView]:
    events = queries.events(session, job.id)
    actors = api_keys.names(session, {event.actor for event in events if event.actor})
    return [_event_view(event, job, actors.get(event.actor or "")) for event in events]


def _event_view(event: Event, job: Job, actor: str | None) -> EventView:
    return EventView.of(
        event,
        from_state=_public_event_state(event.from_state, job),
        to_state=_public_event_state(event.to_state, job),
        message=_reason_message(event.reason, event.detail),
        actor=actor,
        actor_key=event.actor,
    )


def _public_event_state(state: str | None, job: Job) -> str | None:
    return public_state(JobState(state), job.exit_code) if state else None


def machine_type_view(machine: MachineType, backend: str, offered: LiveWorkers) -> MachineTypeView:
    """Convert a machine type to its public form, with its availability."""
    return MachineTypeView.of(
        machine,
        backend=backend,
        memory_bandwidth_gbps=machine.measured_bandwidth_gb_per_s or machine.memory_bandwidth_gb_per_s,
        tflops=machine.peak_tflops,
        measured=bool(machine.measured_tflops),
        simulated=backend != machine.backend,
        available=offered.available(machine.name, backend),
    )


def resolved_view(
    spec: JobSpec, machine: MachineType, backend: str, project: Mapping[str, str | None], image: str | None
) -> ResolvedJob:
    """Convert a job that would be created to its public form; `project` has its name and id, as far as known."""
    return ResolvedJob(
        **option_fields(spec) | {"ports": port_views(spec)},
        image=image,
        project=project["name"],
        project_id=project["id"],
        backend=backend,
        simulated=backend != machine.backend,
    )


def project_view(project: Project, jobs: int, live: ActiveCounts, settings: Settings) -> ProjectView:
    """Convert a project to its public form, with the numbers of its jobs and its retention policies."""
    logs, artifacts = (
        retention.policy_for(project, kind, settings.retention) for kind in (OutputKind.LOGS, OutputKind.ARTIFACTS)
    )
    return ProjectView.of(
        project,
        job_count=jobs,
        running_count=live.running,
        queued_count=live.queued,
        closed=project.closed_at is not None,
        max_stored_mb=projects.storage_limit_mb(project, settings.disk.project_mb) or None,
        keep_logs_days=logs.days,
        keep_logs_by="project" if logs.own else "service",
        keep_artifacts_days=artifacts.days,
        keep_artifacts_by="project" if artifacts.own else "service",
    )


def would_start(waits: WaitStatus) -> str | None:
    """Describe when a job that is submitted now would start; None: it cannot be known."""
    if waits.reason in CANNOT_START:
        return f"cannot start: {reason_message(waits.reason, waits.detail)}"
    if waits.starts_at is None:
        if waits.reason in {"behind_jobs", "waiting_for_machine"}:
            return None
        return f"would wait: {reason_message(waits.reason, waits.detail)}"
    seconds = (waits.starts_at - datetime.now(UTC)).total_seconds()
    if seconds < _AT_ONCE_SECONDS:
        return "would start at once"
    unit, size = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    return f"would start in about {seconds / size:,.0f} {unit}"
