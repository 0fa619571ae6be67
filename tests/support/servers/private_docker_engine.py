"""A private Docker engine for tests, in namespaces of its own: it shares neither network, firewall, mounts nor
processes with this machine, and all of it is gone with one process.
"""

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from docker.api.client import APIClient
from docker.errors import DockerException
from support.deployment import wait_until

from core.settings.docker import DockerSettings
from core.system.processes import running_processes

SHELL_IMAGE, BARE_IMAGE = "gradient-test:shell", "gradient-test:bare"
"""Images: a few programs and a shell; one program and no shell."""

_PROGRAMS = ("dockerd", "containerd", "runc", "docker-init", "iptables", "unshare", "nsenter", "ip")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


@functools.cache
def missing_docker_requirements() -> str:
    """Name what this machine lacks for running containers in tests; empty if nothing."""
    if os.geteuid() != 0:
        return "not root"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    read_busybox = shutil.which("busybox")
    if read_busybox is None or subprocess.run(["ldd", read_busybox], capture_output=True, check=False).returncode == 0:
        missing.append("a static busybox")
    if missing:
        return f"no {', no '.join(missing)}"
    unshare_command = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    allowed = subprocess.run(unshare_command, capture_output=True, check=False).returncode == 0
    return "" if allowed else "namespaces cannot be made here"


class PrivateDockerEngine:
    """An engine with `live-restore`.

    Args:
        programs: A folder that it looks for programs in first: a stand-in for NVIDIA's toolkit, say.
        data: Folder of its images and containers; the default is in its own.
        config: More for its daemon.json.

    Attributes:
        kills: How often it was killed.
    """

    def __init__(self, programs: Path | None = None, data: Path | None = None, **config) -> None:
        self._path = _PATH if programs is None else f"{programs}:{_PATH}"
        self.folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
        self._data = data or self.folder / "data"
        fixed = {"live-restore": True, "cgroup-parent": f"/{self.folder.name}"}
        (self.folder / "daemon.json").write_text(json.dumps(fixed | config))
        self.socket = self.folder / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.kill_count = 0
        # Ends everything in its process namespace when it ends: engine, shims, containers.
        unshare_command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._namespace_process = subprocess.Popen(
            [*unshare_command, "sh", "-c", "ip link set lo up; exec docker-init -- sleep infinity"]
        )
        # The first process there reaps: an engine that comes back takes a dead containerd for a living one otherwise.
        wait_until(lambda: "docker-init" in [one.name() for one in self._inner_processes()], "the namespaces")
        self.network = ["nsenter", "--target", str(self._inner_processes()[0].pid), "--net"]
        self.namespaces = ["nsenter", "--target", str(self._inner_processes()[0].pid), "--net", "--mount", "--pid"]
        self._process: subprocess.Popen[bytes] | None = None

    def mount_data(self, size: int) -> None:
        """Give it a disk of its own, of so many bytes, before it is started."""
        place = self.folder / "data"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        subprocess.run([*self.namespaces, *mount], check=True)

    def start(self) -> None:
        folder = self.folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.namespaces,
                    *("dockerd", "--config-file", folder / "daemon.json", "--host", self.url, "--bridge", "none"),
                    *("--data-root", self._data, "--exec-root", folder / "exec", "--pidfile", folder / "pid"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": self._path},
            )
        wait_until(self._is_responding, "the engine to answer")

    def signal(self, number: signal.Signals) -> None:
        """Signal the engine, not its containerd or its containers."""
        assert self._process is not None
        for process in psutil.Process(self._process.pid).children():
            process.send_signal(number)

    def kill(self) -> None:
        """Kill the engine, as a crash does."""
        self.kill_count += 1
        self.signal(signal.SIGKILL)
        self._process.wait()
        (self.folder / "pid").unlink(missing_ok=True)  # its number may be another process's by the next start

    def set_live_restore(self, *, on: bool) -> None:
        """Set whether containers outlive the engine, from its next start or reload on."""
        file = self.folder / "daemon.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"live-restore": on}))

    def kill_containerd(self) -> None:
        """End what starts and watches the containers; the engine starts it again."""
        for process in running_processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == "containerd" and str(self.folder) in " ".join(process.cmdline()):
                    process.kill()

    def terminate(self) -> None:
        """Stop the engine as `systemctl stop docker` does."""
        self.signal(signal.SIGTERM)
        self._process.wait()

    def freeze(self) -> None:
        """Suspend the engine: it still takes connections, but does not answer."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGCONT)  # it stops with what it started

    @contextlib.contextmanager
    def client(self) -> Iterator[APIClient]:
        with contextlib.closing(APIClient(self.url, version="auto", timeout=60)) as client:
            yield client

    def settings(self, **options) -> DockerSettings:
        return DockerSettings(
            **{"url": self.url, "default_image": SHELL_IMAGE, "pull": "never", "firewall": "off"} | options
        )

    @property
    def service_settings(self) -> dict[str, str]:
        """Settings of a service whose machine types are real, and whose jobs are containers of this engine."""
        return {
            "GRADIENT_MACHINES__SIMULATE": "false",
            "GRADIENT_DOCKER__URL": self.url,
            "GRADIENT_DOCKER__PULL": "never",
            "GRADIENT_DOCKER__FIREWALL": "off",
        }

    def load_images(self) -> None:
        shell = build_layer({"bin/busybox": read_busybox(), "tmp/": None}, links=list_busybox_commands())
        bare = build_layer({"busybox": read_busybox()})
        with self.client() as client:
            client.import_image_from_data(shell, repository="gradient-test", tag="shell", changes=["ENV PATH=/bin"])
            client.import_image_from_data(bare, repository="gradient-test", tag="bare")

    def remove(self) -> None:
        """End it and everything in it; nothing of it stays."""
        self._namespace_process.kill()
        self._namespace_process.wait()
        if self._process is not None:
            self._process.wait()
        wait_until(lambda: not self._has_mounts(), "its mounts to go")
        shutil.rmtree(self.folder)
        for place in ("", "*/"):
            for group in Path("/sys/fs/cgroup").glob(f"{place}{self.folder.name}"):
                for folder, *_ in os.walk(group, topdown=False):
                    Path(folder).rmdir()

    def _inner_processes(self) -> list[psutil.Process]:
        return psutil.Process(self._namespace_process.pid).children()

    def _is_responding(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(DockerException), self.client() as client:
            return client.ping()
        return False

    def _has_mounts(self) -> bool:
        return str(self.folder) in Path("/proc/self/mounts").read_text()


@contextlib.contextmanager
def running_engine(
    programs: Path | None = None, data_bytes: int | None = None, data: Path | None = None, **config
) -> Iterator[PrivateDockerEngine]:
    """An engine with two small images, gone when the block ends.

    Args:
        programs: See `PrivateDockerEngine`.
        data: See `PrivateDockerEngine`.
        data_bytes: Its data are on a disk of their own of so many bytes.
        config: See `PrivateDockerEngine`.
    """
    server = PrivateDockerEngine(programs, data, **config)
    try:
        if data_bytes is not None:
            server.mount_data(data_bytes)
        server.start()
        server.load_images()
        yield server
    finally:
        server.remove()


def read_busybox() -> bytes:
    """The static program of many names."""
    return Path(shutil.which("busybox")).read_bytes()


def list_busybox_commands() -> list[str]:
    """Its names."""
    listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if name != "busybox"]


def build_layer(files: dict[str, bytes | None], links: tuple[str, ...] | list[str] = ()) -> bytes:
    """A root file system, as tar: files, folders (no content), links in /bin to busybox."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.rstrip("/"))
            entry.mode = 0o755 if content is not None else 0o1777
            entry.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            entry.size = len(content or b"")
            tar.addfile(entry, io.BytesIO(content or b""))
        for name in links:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return packed.getvalue()
