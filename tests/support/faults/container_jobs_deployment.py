"""Jobs in containers under watch: what is left of them is found in the engine, on its disk and in the kernel."""

import contextlib
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from support.faults.job_journal import recorded_command
from support.faults.observed_deployment import ObservedDeployment
from support.servers.private_docker_engine import SHELL_IMAGE, PrivateDockerEngine

from core.system.processes import running_processes
from worker.backends.docker.container.config import LABEL_ATTEMPT, LABEL_HOME, LABEL_JOB

# Pids are of each container's own counting: whether another run of the job lives is told by a pipe instead, which
# can be opened for writing at once as long as any process of another run holds it open.
_DETECT_OVERLAP = """
life="$GRADIENT_STORAGE_DIR/life-$GRADIENT_JOB_ID"
{ mkfifo "$life" || { timeout 1 sh -c ': >"$1"' sh "$life" && echo $$ >>"$truth.overlaps"; }; } 2>/dev/null
exec 9<>"$life"
"""
JOBS_NETWORK = "gradient-jobs"
ENGINE_INTERNALS = {"control group", "interface", "network namespace", "mount", "folder"}
"""Objects that an engine forgets if it is killed while it makes or starts a container: no API call removes them."""


def recorded_in_container(body: str = "say done", code: int = 0) -> str:
    """As `recorded`, for a command in a container."""
    return recorded_command(body, code, alone=_DETECT_OVERLAP)


class ContainerDeployment(ObservedDeployment):
    """A deployment whose machine types are real, and whose jobs run in containers of one engine.

    Args:
        server: The engine.
        url: Where the service finds it, if that is not straight.
    """

    def __init__(self, home: Path, server: PrivateDockerEngine, *, url: str | None = None, **settings: str) -> None:
        fixed = server.service_settings | {
            "GRADIENT_DOCKER__URL": url or server.url,
            "GRADIENT_DOCKER__NETWORK": JOBS_NETWORK,
        }
        super().__init__(home, **{**fixed, **settings})
        self.server = server

    def submit(self, command: str, *, key: str | None = None, **spec: Any) -> str:
        return super().submit(command, key=key, **{"container": SHELL_IMAGE} | spec)

    def containers(self) -> list[tuple[str, int]]:
        with self.server.client() as client:
            filters = {"label": [f"{LABEL_HOME}={self.home.resolve()}"]}
            found = client.containers(all=True, filters=filters)
        return [(one["Labels"][LABEL_JOB], int(one["Labels"][LABEL_ATTEMPT])) for one in found]

    def find_job_processes(self, job_id: str | None = None) -> list[psutil.Process]:
        """Find the running processes of the jobs in the kernel, whatever the engine remembers."""
        ours = {job_id} if job_id else {accepted for accepted, _ in self.accepted}
        found = []
        for process in running_processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("GRADIENT_JOB_ID") in ours:
                    found.append(process)
        return found


def list_engine_objects(server: PrivateDockerEngine) -> Counter[tuple[str, str]]:
    """List everything that an engine keeps for containers: kind and name of each thing."""
    with server.client() as client:
        found = [("container", name) for one in client.containers(all=True) for name in one["Names"]]
        found += [("network", one["Name"]) for one in client.networks() if one["Name"] != JOBS_NETWORK]
        found += [("volume", one["Name"]) for one in client.volumes()["Volumes"] or ()]
    mounts = _run_in_namespaces(server, "cat", "/proc/self/mounts")
    for place in (line.split()[1] for line in mounts):
        if not place.endswith("/netns/default"):  # made for all when the first container needs one
            found.append(("network namespace" if "/netns/" in place else "mount", place))
    links = _run_in_namespaces(server, "ip", "-o", "link")
    found += [("interface", "veth") for line in links if ": veth" in line]
    for place in ("containers", "overlay2", "vfs/dir", "volumes", "image/overlay2/layerdb/mounts"):
        folder = server.folder / "data" / place
        found += [("folder", f"{place}/{one.name}") for one in (folder.iterdir() if folder.is_dir() else ())]
    for pattern in (f"{server.folder.name}/*", f"*/{server.folder.name}/*"):
        groups = (group for group in Path("/sys/fs/cgroup").glob(pattern) if group.is_dir())
        found += [("control group", str(group)) for group in groups]
    return Counter(found)


def find_shims(server: PrivateDockerEngine) -> list[psutil.Process]:
    """The engine's own helpers, one of which is beside each living container."""
    found = []
    for process in running_processes():
        with contextlib.suppress(psutil.Error):
            if "containerd-shim" in process.name() and str(server.folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


def _run_in_namespaces(server: PrivateDockerEngine, *command: str) -> list[str]:
    done = subprocess.run([*server.namespaces, *command], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
