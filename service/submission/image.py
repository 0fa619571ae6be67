"""Choice of a job's image: resolves short names, and refuses what this server cannot run or build.

Where jobs run without containers, an image is refused unless the default packages stand for it: a job that ran
with other packages than its image's would fail late, or not at all.
"""

from dataclasses import replace

from core.catalogue.backends import capabilities_of, runs_containers
from core.catalogue.images import ImageCatalogue, with_digest
from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs.scheduling.capacity import live_workers
from core.jobs.spec.job_spec import JobSpec
from service.app_state import AppState


def choose_image(
    app_state: AppState, spec: JobSpec, machine: MachineType, *, uploaded: bool, may_ignore_container: bool
) -> tuple[str | None, tuple[str, ...]]:
    """Resolve a job's `container` to an image reference; return it with notes for the user.

    None: the worker's default image, one to be built, or no image.

    `may_ignore_container`: record a container that this server cannot run, with a note, rather than refuse it.
    """
    if spec.use_dockerfile:
        _check_build(app_state, spec, machine, uploaded=uploaded)
        return None, ()
    image, backend = app_state.images.resolve(spec.container, machine), app_state.backend_for(machine)
    lacking = capabilities_of(backend).optional_containers and _lacks_containers(app_state, machine, backend)
    if image is None or (runs_containers(backend, app_state.settings, image) and not lacking):
        return image, ()
    if may_ignore_container:
        text = (
            f"The container {spec.container} is not used: jobs on {machine.name} are processes here, which use the "
            "machine's programs. List Python packages in requirements.txt, or have the server run jobs in "
            "Docker (docs/deploy.md)."
        )
        return None, (text,)
    if lacking:
        raise _without_containers(machine)
    package = app_state.images.stand_in(image)
    if package is None:
        raise _refused_container(spec, app_state.images)
    if spec.python is not None:
        raise SpecInvalid(
            f"This server replaces {spec.container} by its default packages. Leave out either python or container.",
            field="python",
        )
    text = (
        f"Instead of the image {spec.container}, the job gets this server's default packages with {package}: "
        "machine types are simulated here, without containers. As in a container, requirements.txt is not "
        "installed before the command."
    )
    return image, (text,)


def _lacks_containers(app_state: AppState, machine: MachineType, backend: str) -> bool:
    with app_state.database.read() as session:
        return live_workers(session).lack_containers(machine.name, backend)


def _without_containers(machine: MachineType) -> SpecInvalid:
    return SpecInvalid(
        f"Jobs on {machine.name} run without containers: its cluster has neither Apptainer nor Singularity nor Pyxis, "
        "or GRADIENT_SLURM__CONTAINER_PROGRAM has to name one. Leave container out and list Python packages in "
        "requirements.txt.",
        field="container",
    )


def _refused_container(spec: JobSpec, images: ImageCatalogue) -> SpecInvalid:
    names = ", ".join(short.name for short in images if images.stand_in(short.image))
    return SpecInvalid(
        f"This server runs jobs without containers and has no replacement for {(spec.container or '')[:120]!r}. "
        "Leave container out and list Python packages in requirements.txt, or have the server run jobs in Docker "
        f"(gradient-server up --backend docker). Images that its default packages replace: {names or 'none'}.",
        field="container",
    )


def _check_build(app_state: AppState, spec: JobSpec, machine: MachineType, *, uploaded: bool) -> None:
    backend = app_state.backend_for(machine)
    if not capabilities_of(backend).builds_images:
        why = (
            "Machine types are simulated here"
            if backend != machine.backend
            else f"{machine.name} has no container engine"
        )
        raise SpecInvalid(
            f"{why}, so images cannot be built: leave useDockerfile out, or have the service run jobs in containers "
            "(gradient-server up --backend docker, or GRADIENT_MACHINES__SIMULATE=false).",
            field="useDockerfile",
        )
    if not app_state.settings.images.builds:
        raise SpecInvalid(
            "Building images is disabled on this service: a Dockerfile's steps run with more rights than a job. "
            "Build the image yourself, push it and name it as container, or ask the service's administrator to "
            "enable builds (GRADIENT_IMAGES__BUILDS=true, docs/images.md).",
            field="useDockerfile",
        )
    if spec.workspace is None and spec.workspace_sha256 is None and not uploaded:
        raise SpecInvalid(
            "useDockerfile builds from the workspace's Dockerfile, but there is no workspace. Upload a folder or "
            "give a git URL.",
            field="useDockerfile",
        )


def with_pinned_image(job: Job) -> JobSpec:
    """Return the job's spec with the digest of the image it ran in place of the image's name."""
    spec = job.spec
    exact = None if spec.use_dockerfile else with_digest(job.image or "", job.image_digest)
    if exact is None:
        why = "it built its image" if spec.use_dockerfile else "its digest is not known"
        raise SpecInvalid(
            f"The image of job {job.id} cannot be pinned: {why}. Clone it without pinImage.", field="pinImage"
        )
    return replace(spec, container=exact)
