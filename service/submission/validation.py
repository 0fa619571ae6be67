"""Validation of a job that a client requested: what can be told before anything is stored."""

from dataclasses import replace

from core.catalogue.backends import capabilities_of, runs_containers
from core.catalogue.machine_types import MachineType
from core.errors import SpecInvalid
from core.jobs import projects, queries
from core.jobs.spec.container_options import is_in_workspace
from core.jobs.spec.data_disks import parse_data_disks, zones_of_disks
from core.jobs.spec.job_spec import MAX_NAME, JobSpec, split_login
from core.jobs.spec.labels import check_label
from core.jobs.spec.ports import check_not_reserved
from core.notifications import receivers
from core.security import credentials
from service.app_state import AppState
from service.schemas.jobs import SubmitJob
from service.submission.image import choose_image
from service.submission.stages import ValidatedJob

DEFAULT_PROJECT = "default"

_MAX_IDEMPOTENCY_KEY = 255


def check_idempotency_key(key: str | None) -> None:
    if key is not None and not (
        0 < len(key) <= _MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable() and " " not in key
    ):
        raise SpecInvalid(
            f"An Idempotency-Key has 1 to {_MAX_IDEMPOTENCY_KEY} visible ASCII characters; use a random UUID.",
            field="Idempotency-Key",
        )


def check_project_name(name: str) -> str:
    check_label(name, "project", MAX_NAME)
    return name


def validate(
    app_state: AppState, request: SubmitJob, *, uploaded: bool, may_ignore_container: bool = False
) -> ValidatedJob:
    machine = app_state.catalogue.get(request.machine_type)
    spec = request.spec(machine.name)
    if capabilities_of(app_state.backend_for(machine)).own_queue:
        spec = replace(spec, nodes=request.nodes)
    if spec.workspace is not None and uploaded:
        raise SpecInvalid("Give either a git URL or an uploaded folder, not both.", field="workspace")
    if request.project is not None and request.project_id is not None:
        raise SpecInvalid("Give either project (a name) or projectId, not both.", field="projectId")
    if request.project is not None:
        check_project_name(request.project)
    if spec.ports:
        check_not_reserved(spec.parsed_ports(), app_state.settings.own_ports)
    username, password = request.registry_username, request.registry_password
    if bool(username) != bool(password):
        raise SpecInvalid(
            "A registry login needs both registryUsername and registryPassword; give both.",
            field="registryPassword" if username else "registryUsername",
        )
    if username and password:
        credentials.check_login(username, password, "registryUsername", "registryPassword")
    valid = validate_spec(app_state, spec, machine, uploaded=uploaded, may_ignore_container=may_ignore_container)
    if request.project_id is not None or spec.secrets() or spec.notify:
        with app_state.database.read() as session:
            if request.project_id is not None:
                project_id: str | None = queries.project(session, request.project_id).id
            else:
                project_id = projects.find_id(session, request.project or DEFAULT_PROJECT)
            credentials.check_secrets_exist(session, spec, project_id)
            receivers.check_exist(session, spec.notify)
    return valid


def validate_spec(
    app_state: AppState, spec: JobSpec, machine: MachineType, *, uploaded: bool, may_ignore_container: bool
) -> ValidatedJob:
    """Refuse a job that cannot be run here, and separate the login of its git address."""
    spec, git_login = _split_git_login(spec)
    _check_priority(app_state, spec)
    _check_backend_supports(app_state, spec, machine)
    image, notes = choose_image(app_state, spec, machine, uploaded=uploaded, may_ignore_container=may_ignore_container)
    simulated = app_state.backend_for(machine) != machine.backend and machine.kind != "cpu"
    text = (
        f"Simulated: this server has no {machine.accelerator}. The job runs on the server's CPU, at its speed; the "
        "cost is the real machine's price for that time. For a real machine, add a worker that has one. To refuse "
        "simulated machine types, set GRADIENT_MACHINES__OFFER_SIMULATED=false for the server."
    )
    return ValidatedJob(spec, machine, image, git_login, notes, (text,) if simulated else ())


def _split_git_login(spec: JobSpec) -> tuple[JobSpec, str | None]:
    """Split a spec into the spec without the `user:password` of its git address, and that login."""
    if spec.workspace is None:
        return spec, None
    workspace, login = split_login(spec.workspace)
    return (spec, None) if login is None else (replace(spec, workspace=workspace), login)


def _check_priority(app_state: AppState, spec: JobSpec) -> None:
    highest = app_state.settings.limits.priority
    if spec.priority > highest:
        raise SpecInvalid(
            f"{spec.priority} is above {highest}, the highest priority here (GRADIENT_LIMITS__PRIORITY).",
            field="priority",
        )


def _check_backend_supports(app_state: AppState, spec: JobSpec, machine: MachineType) -> None:
    """Refuse options that the machine would ignore."""
    backend = app_state.backend_for(machine)
    _check_capacity(app_state, spec, machine)
    if spec.keep_on_fail and not capabilities_of(backend).keeps:
        raise SpecInvalid(
            f"The machine of a job on {machine.name} cannot be kept after a failure. Leave keepOnFail out.",
            field="keepOnFail",
        )
    if spec.data_disks or spec.on_disk is not None:
        _check_disks(app_state, spec, machine, backend)
    if spec.array_reuse == "on" and backend != "process":
        raise SpecInvalid(
            f"A member on {machine.name} is not a process on this host: it needs a separate container or machine. "
            "Leave arrayReuse out.",
            field="arrayReuse",
        )
    in_container = runs_containers(backend, app_state.settings, spec.container)
    if in_container:
        _check_no_python(spec, machine)
    if spec.slurm_options and not capabilities_of(backend).own_queue:
        raise SpecInvalid(f"{machine.name} is not on a Slurm cluster. Leave them out.", field="slurmOptions")
    if capabilities_of(backend).own_queue:
        _check_slurm(spec, machine, in_container=in_container)
    elif not in_container:
        _check_simulated(spec)


def _check_capacity(app_state: AppState, spec: JobSpec, machine: MachineType) -> None:
    if spec.capacity is not None and machine.kind != "tpu":
        raise SpecInvalid(f"{machine.name} is not a TPU. Leave capacity out.", field="capacity")
    if spec.capacity == "flex-start" and app_state.settings.tpu.simulator_address is not None:
        raise SpecInvalid("The simulated cloud has no flex-start capacity. Use standard or spot.", field="capacity")


def _check_simulated(spec: JobSpec) -> None:
    """Refuse what only containers have."""
    simulated = "Machine types are simulated on this server: jobs run as processes of the server's user."
    if spec.user is not None:
        raise SpecInvalid(f"{simulated} Leave the user out, or use a server with containers.", field="user")
    if spec.working_dir is not None and not is_in_workspace(spec.working_dir):
        raise SpecInvalid(
            f"{simulated} They have no container; name a folder of the workspace, such as src/train.",
            field="workingDir",
        )


def _check_slurm(spec: JobSpec, machine: MachineType, *, in_container: bool) -> None:
    """Refuse what a job in Slurm cannot have: it is a program of the worker's user on a compute node."""
    options = {"user": spec.user, "network": spec.network, "sharedMemMb": spec.shared_mem_mb}
    options["workingDir"] = not in_container and spec.working_dir and not is_in_workspace(spec.working_dir)
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        hint = "Name a folder of the workspace, such as src/train" if given == "workingDir" else f"Leave {given} out"
        raise SpecInvalid(
            f"A job on {machine.name} is a program of the worker's user on a node of a Slurm cluster"
            f"{'' if in_container else ', without a container'}. {hint}.",
            field=given,
        )
    longest = machine.slurm.time_limit
    if longest is not None and (spec.time_limit or 0) > longest:
        raise SpecInvalid(
            f"Jobs on {machine.name} may run for {longest:,} seconds at most, and this one asks for "
            f"{spec.time_limit:,}. Set a shorter limit, or choose another machine type.",
            field="timeLimit",
        )


def _check_no_python(spec: JobSpec, machine: MachineType) -> None:
    options = {"python": spec.python, "packages": spec.packages, "requirementsFile": spec.requirements_file}
    options |= {"extras": spec.extras, "groups": spec.groups}
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise SpecInvalid(
            f"{machine.name} runs jobs in containers, whose image provides Python and its packages. Leave {given} "
            "out and name an image, such as python:3.12-slim; the command can install packages in it (pip install).",
            field=given,
        )


def _check_disks(app_state: AppState, spec: JobSpec, machine: MachineType, backend: str) -> None:
    settings = app_state.settings.tpu
    on_vm = capabilities_of(backend).billed and settings.on_vm(by_default=machine.tpu_on_vm)
    if spec.on_disk is not None and on_vm:
        raise SpecInvalid(
            f"The disk of {machine.name} is its VM's, which is not measured. Leave it out.", field="onDisk"
        )
    if not spec.data_disks:
        return
    if not on_vm:
        raise SpecInvalid(
            f"Only TPU VMs have data disks, and jobs on {machine.name} do not run on one. Leave the disks out.",
            field="dataDisks",
        )
    if not zones_of_disks(parse_data_disks(spec.data_disks), settings.data_disks, machine.hosts) & set(settings.zones):
        raise SpecInvalid("None of the zones in GRADIENT_TPU__ZONES has these disks.", field="dataDisks")
