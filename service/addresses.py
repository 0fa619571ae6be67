"""Checks of the addresses in a job's spec, and removal of the passwords in them."""

from dataclasses import replace

from core.egress import Egress
from core.jobs.spec import JobSpec, split_login
from service.deps import OpenStores


def without_login(spec: JobSpec) -> tuple[JobSpec, str | None]:
    """Split a spec into the spec without the `user:password` of its git address, and that login."""
    if spec.workspace is None:
        return spec, None
    workspace, login = split_login(spec.workspace)
    return (spec, None) if login is None else (replace(spec, workspace=workspace), login)


def check_egress(stores: OpenStores, spec: JobSpec, image: str | None) -> None:
    """Refuse a job that names a git server or a registry to which connections are not allowed.

    Args:
        stores: The open stores.
        spec: The job.
        image: The image reference that its `container` resolves to.

    Raises:
        EgressRefused: The job names such a server or registry.
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
