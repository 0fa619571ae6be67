"""The addresses in a job: those that nothing may connect to are refused, and passwords in them kept apart."""

from dataclasses import replace

from core.egress import Egress
from core.jobs.spec import JobSpec, split_login
from service.deps import OpenStores


def without_login(spec: JobSpec) -> tuple[JobSpec, str | None]:
    """The spec without the `user:password` of its git address, and that."""
    if spec.workspace is None:
        return spec, None
    workspace, login = split_login(spec.workspace)
    return replace(spec, workspace=workspace), login


def check_egress(stores: OpenStores, spec: JobSpec, image: str | None) -> None:
    """Refuse a job that names a git server or a registry which may not be connected to.

    Args:
        stores: The open stores.
        spec: The job.
        image: The image reference that its container stands for.

    Raises:
        EgressRefused: It does.
    """
    if spec.workspace is None and image is None and spec.registry_target is None:
        return
    egress = Egress(stores.settings.egress)
    if spec.workspace is not None:
        egress.check_url(spec.workspace.removeprefix("git+"), "workspace")
    if image is not None:
        egress.check_image(image, "container")
    if spec.registry_target is not None:
        egress.check_image(spec.registry_target, "registryTarget")
