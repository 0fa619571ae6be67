"""Choice of a job's image: resolves short names, and refuses builds where none are possible or allowed."""

from dataclasses import replace

from core.catalogue.backends import capabilities_of
from core.catalogue.images import with_digest
from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs.spec.job_spec import JobSpec
from service.deps import AppState


def choose_image(app_state: AppState, spec: JobSpec, machine: MachineType, *, uploaded: bool) -> str | None:
    """Resolve a job's `container` to an image reference; None: the worker's default image, or one to be built.

    Args:
        app_state: The application's state.
        spec: The job's spec.
        machine: Its machine type.
        uploaded: Whether it has an uploaded workspace.

    Raises:
        SpecInvalid: The image is to be built, and cannot be.
    """
    if not spec.use_dockerfile:
        return app_state.images.resolve(spec.container, machine).image
    backend = app_state.backend_for(machine)
    if not capabilities_of(backend).builds_images:
        why = "Machine types are simulated here" if backend != machine.backend else f"{machine.name} has no engine"
        raise SpecInvalid(
            f"{why}, so no image can be built: leave useDockerfile out, or have the service run jobs in containers "
            "(GRADIENT_MACHINES__SIMULATE=false).",
            field="useDockerfile",
        )
    if not app_state.settings.images.builds:
        raise SpecInvalid(
            "Building images is disabled on this service: a Dockerfile's steps run with more rights than a job. Build "
            "it yourself, push it, and use it as container; or ask the service's administrator to enable builds "
            "(GRADIENT_IMAGES__BUILDS=true, docs/images.md).",
            field="useDockerfile",
        )
    if spec.workspace is None and spec.workspace_sha256 is None and not uploaded:
        raise SpecInvalid(
            "useDockerfile builds from the workspace's Dockerfile, and there is no workspace. Upload a folder, or name "
            "a git URL.",
            field="useDockerfile",
        )
    return None


def with_pinned_image(job: Job) -> JobSpec:
    """Return the job's spec with the digest of the image it ran in place of the image's name.

    Raises:
        SpecInvalid: The digest is not known, or the job built its image.
    """
    spec = job.spec
    exact = None if spec.use_dockerfile else with_digest(job.image or "", job.image_digest)
    if exact is None:
        why = "it built its own" if spec.use_dockerfile else "its digest is not known"
        raise SpecInvalid(
            f"The image of job {job.id} cannot be pinned: {why}. Clone it without pinImage.", field="pinImage"
        )
    return replace(spec, container=exact)
