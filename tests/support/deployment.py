"""A real service in processes of its own, for tests that look at it from outside and kill parts of it."""

import contextlib
import io
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from support.fork_server import ForkServer

from core.system.processes import read_environment, running_processes

SERVER_PROGRAM = Path(sys.executable).parent / "gradient-server"
CLI_PROGRAM = Path(sys.executable).parent / "gradient-cli"
ENDED_STATES = {"Stopped", "Failed", "Error", "Cancelled"}
TIMEOUT_SECONDS = float(os.environ.get("GRADIENT_TEST_PATIENCE", "120"))
EMPTY_SSL_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of servers without TLS: loading the system's certificates costs more than most requests."""
_FORK_SERVER = ForkServer()
_CONSTANTS_PROGRAM = Path(__file__).parent / "constants.py"
# Git servers of tests are on this machine.
_LOCAL_EGRESS = {"GRADIENT_EGRESS__ALLOWED": '["127.0.0.1", "localhost"]'}


def wait_until(condition: Callable[[], Any], description: str, seconds: float = TIMEOUT_SECONDS) -> Any:
    """The first true value of `condition`; fails if there is none in time."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {description}"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)  # most of what is waited for costs the service a request each time


# Jobs of most tests read and write files of the test; test_job_sandbox.py is about sandboxes.
# Few of them need packages, which take a minute to install.
# The port of the ssh endpoint is one for the whole machine.
PLAIN_JOBS = {
    "GRADIENT_PROCESS__SANDBOX": "off",
    "GRADIENT_ENVIRONMENTS__DEFAULT": "[]",
    "GRADIENT_SSH__PORT": "0",
}

# The user of a namespace of its own, who may do nothing that root may: the rest of the machine is as it is.
ORDINARY = (
    *("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--unshare-user", "--uid", "12345", "--gid", "12345", "--"),
)
# Likewise, on a machine where pasta makes no networks.
WITHOUT_TUN = (*ORDINARY[:-1], "--tmpfs", "/dev/net", "--")


class Process:
    """One process of the service; its output is kept in a file.

    Args:
        env: Its environment, and constants of modules by their full names.
        inside: Words that begin its command, if it is to run in a namespace of its own.
    """

    def __init__(self, arguments: list[str], env: dict[str, Any], log: Path, inside: Sequence[str] = ()) -> None:
        self.log = log
        constants = {name: value for name, value in env.items() if "." in name}
        env = {name: value for name, value in env.items() if name not in constants}
        self._code: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        if not inside and not {"LD_PRELOAD", "FAKE_GPUS"} & env.keys():
            self.pid = _FORK_SERVER.start(arguments, env, constants, log)
            return
        program = [str(SERVER_PROGRAM)]
        if constants:
            program = [sys.executable, str(_CONSTANTS_PROGRAM), json.dumps(constants)]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*inside, *program, *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = self._popen.pid

    def exit_code(self) -> int | None:
        if self._code is None:
            self._code = _FORK_SERVER.exit_code(self.pid) if self._popen is None else self._popen.poll()
        return self._code

    def alive(self) -> bool:
        return self.exit_code() is None

    def frozen(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def signal(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        wait_until(lambda: not self.alive(), f"process {self.pid} to end")
        assert self._code is not None
        return self._code

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Deployment:
    """API and workers over one GRADIENT_HOME."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        self._homes = [home]  # with those of workers on other hosts
        self._settings = settings
        self.processes: list[Process] = []
        self.api: Process | None = None
        # One for all requests: each new one would read the machine's certificates first.
        self.client = httpx.Client(timeout=TIMEOUT_SECONDS, verify=EMPTY_SSL_CONTEXT)

    def environment(self, **settings: Any) -> dict[str, str]:
        """Return the environment of the service's processes."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")}
        given = {k: v for k, v in (self._settings | settings).items() if "." not in k}
        return env | {"GRADIENT_HOME": str(self.home)} | _LOCAL_EGRESS | PLAIN_JOBS | given

    def client_environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a client of this machine."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")}
        return env | {"GRADIENT_HOME": str(self.home)} | variables

    def cli(
        self,
        *arguments: str,
        folder: str | Path = "/",
        given: str | None = None,
        code: int | None = 0,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the client in a folder, and check its exit code unless that is None."""
        done = subprocess.run(
            [str(CLI_PROGRAM), *arguments],
            cwd=folder,
            env=self.client_environment(**variables),
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    @property
    def database_url(self) -> str:
        return self._settings.get("GRADIENT_DATABASE__URL") or f"sqlite:///{self.home / 'gradient.db'}"

    @property
    def logs(self) -> list[Path]:
        """Files with what the service's own processes said."""
        return sorted(self.home.parent.glob(f"{self.home.name}-*.log"))

    def start(self, *arguments: str, inside: Sequence[str] = (), **settings: Any) -> Process:
        if "GRADIENT_HOME" in settings:
            self._homes.append(Path(settings["GRADIENT_HOME"]))
        process = Process(
            list(arguments),
            self.environment(**settings) | {k: v for k, v in (self._settings | settings).items() if "." in k},
            self.home.parent / f"{self.home.name}-{len(self.processes)}.log",
            inside,
        )
        self.processes.append(process)
        return process

    def start_api(self, **settings: Any) -> Process:
        self._forget_address()
        self.api = self.start("api", "--port", "0", **settings)
        self.wait_ready(self.api)
        return self.api

    def start_up(self, *arguments: str, **settings: Any) -> Process:
        self._forget_address()
        self.api = self.start("up", "--port", "0", *arguments, **settings)
        self.wait_ready(self.api)
        return self.api

    def _forget_address(self) -> None:
        """Keep the key, but not where an earlier process listened."""
        file = self.home / "cli.json"
        if file.exists():
            file.write_text(json.dumps({"apiKey": self.cli_json["apiKey"]}))

    def migrate(self) -> None:
        assert self.start("migrate").wait() == 0

    def start_worker(self, name: str = "w1", *, inside: Sequence[str] = (), **settings: Any) -> Process:
        return self.start("worker", "--name", name, inside=inside, **settings)

    def wait_ready(self, process: Process) -> None:
        def ready() -> bool:
            assert process.alive(), process.read_log()
            try:
                return self.request("GET", "/readiness", retry=False).status_code == 200
            except (OSError, ValueError, KeyError, httpx.TransportError):
                return False

        wait_until(ready, "the API to be ready")

    def stop(self) -> None:
        self.client.close()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in (*self.find_job_processes(), *self._find_sandboxes()):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _find_sandboxes(self) -> list[psutil.Process]:
        """Find the sandboxes of this deployment's jobs, which outlive it; what runs inside ends with them."""
        found = []
        for process in running_processes(pid for pid in psutil.pids() if _read_name(pid) == "bwrap"):
            with contextlib.suppress(psutil.Error):
                if any(word.startswith(f"{home}/") for home in self._homes for word in process.cmdline()):
                    found.append(process)
        return found

    def find_job_processes(self, job_id: str | None = None) -> list[psutil.Process]:
        """Find the running processes of this deployment's jobs, by their environment."""
        return [process for process, env in self.find_job_environments() if job_id in (None, env["GRADIENT_JOB_ID"])]

    def find_job_environments(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """Yield the running processes of this deployment's jobs, and the service's variables in their environment."""
        storages = tuple(f"{os.path.realpath(home / 'storage')}/" for home in self._homes)
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error):
                env = read_environment(pid, "GRADIENT_")
                # A worker with a home of its own reaches the same storage by another name.
                if os.path.realpath(env.get("GRADIENT_STORAGE_DIR", "/")).startswith(storages):
                    yield psutil.Process(pid), env

    @property
    def storage(self) -> Path:
        """Folder that the jobs of its one project share; created with the first of them."""
        projects = self.home / "storage" / "projects"
        [folder] = wait_until(lambda: list(projects.glob("*")), "the project's storage")
        return folder

    @property
    def datasets(self) -> Path:
        """Folder of data sets that every job can read."""
        folder = self.home / "storage" / "datasets"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def cli_json(self) -> dict[str, str]:
        return json.loads((self.home / "cli.json").read_text())

    def request(self, method: str, path: str, *, retry: bool = True, **options: Any) -> httpx.Response:
        """One request; while the API is away (it was killed) it is sent again."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        extra_headers = options.pop("headers", {})
        while True:
            try:
                address = self.cli_json
                headers = {"x-api-key": address["apiKey"]} | extra_headers
                return self.client.request(method, address["url"] + path, headers=headers, **options)
            except (httpx.TransportError, OSError, ValueError, KeyError):
                if not retry or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def submit(
        self, command: str, *, key: str | None = None, files: Mapping[str, str | bytes] | None = None, **spec: Any
    ) -> str:
        """Submit a job, and return its id. `files`: its workspace."""
        headers = {"Idempotency-Key": key} if key else {}
        body = {"machineType": "CPU", "command": command} | spec
        sent: dict[str, Any] = {"json": body}
        if files is not None:
            sent = {"data": {"spec": json.dumps(body)}, "files": {"workspace": ("w.zip", _pack(files))}}
        answer = self.request("POST", "/jobs", headers=headers, **sent)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["id"]

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.request("GET", f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_ended(self, job_id: str, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in ENDED_STATES else None

        return wait_until(ended, f"job {job_id} to end (now {self.job(job_id)['state']})", seconds)

    def raw_log(self, job_id: str) -> bytes:
        return self.request("GET", f"/jobs/{job_id}/logs/raw").content

    def events(self, job_id: str) -> list[dict[str, Any]]:
        return self.request("GET", f"/jobs/{job_id}/events").json()["events"]

    def artifacts(self, job_id: str) -> dict[str, Any]:
        return self.request("GET", f"/jobs/{job_id}/artifacts").json()

    def artifact(self, job_id: str, path: str) -> bytes:
        return self.request("GET", f"/jobs/{job_id}/artifacts/file/{path}").content

    def scratch(self) -> list[str]:
        """Names of the scratch directories that are there."""
        folder = self.home / "attempts"
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _pack(files: Mapping[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _read_name(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    return None
