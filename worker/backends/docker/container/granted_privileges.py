"""Extra privileges that this host's administrator grants to machine types, checked against the host.

Only the worker's own file grants privileges; jobs and the service cannot.
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from core.catalogue.container_privileges import ContainerPolicy, paths_overlap
from core.catalogue.machine_types import Catalogue
from core.errors import MachineTypeUnknown
from core.settings import Settings
from worker.backends.base import LaunchError


class PolicyByMachineType:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalogue = Catalogue.offered(settings)

    def for_type(self, machine_type: str) -> ContainerPolicy:
        """Return the extra privileges of a machine type; a type that this host does not know gets the default."""
        try:
            policy = self._catalogue.get(machine_type).docker
        except MachineTypeUnknown:
            return ContainerPolicy()
        wrong = "; ".join(policy_problems(policy, self._settings))
        if wrong:
            raise LaunchError(
                "launch_failed", f"[{machine_type}.docker] grants privileges that this host cannot provide: {wrong}"
            )
        return policy


def policy_problems(policy: ContainerPolicy, settings: Settings) -> Iterator[str]:
    """Yield the parts of a grant that this host cannot give, each as a phrase."""
    for device in policy.devices:
        path = Path(device)
        if not path.exists():
            yield f"{device} does not exist"
        elif not stat.S_ISCHR(path.stat().st_mode):
            yield f"{device} is not a character device"
    protected = [str(settings.root.resolve()), *_engine_socket(settings)]
    for source in policy.mounts:
        if not Path(source).is_dir():
            yield f"{source} is not a folder"
            continue
        where = str(Path(source).resolve())  # links are followed here: a folder's name does not show where it is
        if where != source and not _is_mountable(where):
            yield f"{source} leads to {where}, which is a system folder of the host"
        elif any(paths_overlap(where, path) for path in protected):
            yield f"{source} contains or is inside a folder of the service or the container engine"


def _engine_socket(settings: Settings) -> list[str]:
    parts = urlsplit(settings.docker.url)
    return [str(Path(parts.path).resolve())] if parts.scheme == "unix" else []


def _is_mountable(source: str) -> bool:
    try:
        ContainerPolicy(mounts={source: "/opened"})
    except ValueError:
        return False
    return True
