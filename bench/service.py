"""Starts the service and the floor's servers, each in its own process and folder, and connects to them."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

SERVER = Path(sys.executable).with_name("gradient-server")
INTERPRETER = os.path.realpath(sys.executable)
"""Outside of the service's environment, which jobs do not see."""
NO_LIMITS = {
    f"GRADIENT_LIMITS__{name}": "0"
    for name in ("REQUESTS_PER_MINUTE", "SUBMISSIONS_PER_MINUTE", "QUEUED_PER_KEY", "QUEUED_PER_PROJECT")
}
"""Settings of a server to which one key may send as fast as it can."""
ENDED = frozenset({"Stopped", "Failed", "Error", "Cancelled"})

ROOT = Path(__file__).parent.parent
_READY_SECONDS = 30.0
_RESPONSE_SECONDS = 120.0
_POLL_SECONDS = 0.02
_BLOCK = 65536

T = TypeVar("T")


def wait_for(poll: Callable[[], T | None], what: str, seconds: float = _READY_SECONDS) -> T:
    """Return the first value other than None that `poll` returns.

    Raises:
        TimeoutError: There was none in time.
    """
    deadline = time.monotonic() + seconds
    while (value := poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(_POLL_SECONDS)
    return value


class Connection:
    """One keep-alive connection with minimal overhead, so that the server is measured and not the client.

    Args:
        port: The port of a server on this machine.
        headers: Sent with every request.
        seconds: Time after which a silent server is an error.
    """

    def __init__(self, port: int, headers: dict[str, str], seconds: float = _RESPONSE_SECONDS) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a POST request; return status and body of the answer."""
        json_body = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return self._request("POST", path, json_body if body else "content-length: 0\r\n", body)

    def get(self, path: str) -> tuple[int, bytes]:
        """Send a GET request; return status and body of the answer."""
        return self._request("GET", path)

    def _request(self, method: str, path: str, headers: str = "", body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}{self._headers}\r\n"
        self._socket.sendall(head.encode() + body)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        status, _, fields = data[:end].partition(b"\r\n")
        length = next(int(f.split(b":")[1]) for f in fields.lower().split(b"\r\n") if f.startswith(b"content-length:"))
        while len(data) < end + 4 + length:
            data += self._receive()
        return int(status.split()[1]), data[end + 4 :]

    def _receive(self) -> bytes:
        data = self._socket.recv(_BLOCK)
        if not data:
            raise ConnectionError("the server closed the connection in the middle of an answer")
        return data


@dataclass(frozen=True, slots=True)
class Service:
    """A running server.

    Attributes:
        home: Folder of all its data.
        port: The port it listens on, at 127.0.0.1.
        headers: Headers that authenticate a request.
        pid: Its process id.
    """

    home: Path
    port: int
    headers: dict[str, str]
    pid: int

    def connect(self) -> Connection:
        """Open a connection for many requests."""
        return Connection(self.port, self.headers)

    def get(self, path: str, accept: str = "application/json") -> HTTPResponse:
        """Send a GET request over a new connection; return the answer for reading."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_RESPONSE_SECONDS)
        connection.request("GET", path, headers={**self.headers, "accept": accept})
        answer = connection.getresponse()
        if answer.status >= 400:  # noqa: PLR2004 - HTTP's errors begin there
            raise ConnectionError(f"GET {path}: {answer.status} {answer.read()!r}")
        return answer

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job's current state."""
        with self.get(f"/jobs/{job_id}") as answer:
            job: dict[str, Any] = json.load(answer)
        return job

    def wait(self, job_id: str, seconds: float = _RESPONSE_SECONDS) -> dict[str, Any]:
        """Wait for the end of the job, and return it."""

        def ended() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in ENDED else None

        return wait_for(ended, f"the end of job {job_id}", seconds)


def server_processes(pid: int) -> list[psutil.Process]:
    """Return the server's own processes, without those of jobs."""
    server = psutil.Process(pid)
    processes = [server]
    for child in server.children():
        with suppress(psutil.NoSuchProcess):  # it was a job's
            if str(SERVER) in child.cmdline() or child.cmdline() == server.cmdline():
                processes.append(child)
    return processes


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of the server's own processes, without those of jobs."""
    times = [times_of.cpu_times() for times_of in server_processes(pid)]
    return sum(times_of.user + times_of.system for times_of in times)


def submit(connection: Connection, command: str) -> str:
    """Submit a job; return its id.

    Raises:
        ConnectionError: The job was refused.
    """
    body = json.dumps({"machineType": "CPU", "command": command}).encode()
    status, answer = connection.post("/jobs", body)
    if status != 201:  # noqa: PLR2004 - created
        raise ConnectionError(f"POST /jobs: {status} {answer!r}")
    return str(json.loads(answer)["id"])


def submit_many(connection: Connection, command: str, count: int) -> list[str]:
    return [submit(connection, command) for _ in range(count)]


def submit_alone(service: Service, command: str) -> str:
    """Submit over a new connection: the server closes one that was idle for some seconds."""
    with service.connect() as connection:
        return submit(connection, command)


def follow(service: Service, job_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a job's log as they arrive: name and data."""
    name = ""
    with service.get(f"/jobs/{job_id}/logs", "text/event-stream") as answer:
        while line := answer.readline():
            field, _, value = line.rstrip(b"\n").partition(b": ")
            if field == b"event":
                name = value.decode()
            elif field == b"data":
                yield name, json.loads(value)


@contextmanager
def run_server(
    command: str, *options: str, prepare: Callable[[Path], None] | None = None, checkout: Path = ROOT, **settings: str
) -> Iterator[Service]:
    """Run `gradient-server COMMAND` (up or api) in a new folder, with these settings added to its defaults.

    Args:
        command: The command.
        options: Its other options.
        prepare: Fills the folder before the start.
        checkout: The folder of the code to run, which may be that of another revision, with its own environment.
        settings: The settings.
    """
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        home = Path(folder)
        if prepare is not None:
            prepare(home)
        code = {"PYTHONPATH": f"{checkout}:{checkout / 'client'}"}
        installed = checkout / ".venv" / "bin" / SERVER.name  # with the packages that its code was written for
        program = str(installed if installed.exists() else SERVER)
        with run_program([program, command, "--port", "0", *options], home, **code, **settings) as process:

            def read_address() -> dict[str, str] | None:
                _check_alive(process, home)
                written = home / "cli.json"
                return json.loads(written.read_text("utf-8")) if written.exists() else None

            local = wait_for(read_address, "the server's address")
            port = int(local["url"].rpartition(":")[2])
            service = Service(home, port, {"x-api-key": local["apiKey"]}, process.pid)
            wait_for(lambda: _is_ready(service), "the server to answer")
            yield service


@contextmanager
def run_worker(service: Service, **settings: str) -> Iterator[int]:
    """Run a separate worker for a service; yields its pid."""
    with run_program([str(SERVER), "worker", "--name", "bench"], service.home, "worker-output", **settings) as process:
        yield process.pid


@contextmanager
def run_floor(commit: str) -> Iterator[Service]:
    """Run the floor's HTTP server on its own database with the service's tables.

    Args:
        commit: `each`: one transaction for each request; `group`: one for all waiting requests.
    """
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        home = Path(folder)
        create_tables(home)
        port = free_port()
        with run_floor_program("http_insert", home, port, str(home / "gradient.db"), str(port), commit) as service:
            yield service


@contextmanager
def run_floor_program(name: str, home: Path, port: int, *arguments: str) -> Iterator[Service]:
    """Run one of the floors' HTTP servers; its output goes to a file in `home`."""
    command = [sys.executable, "-m", f"bench.floors.{name}", *arguments]
    with run_program(command, home, "floor-output") as process:
        service = Service(home, port, {}, process.pid)
        wait_for(lambda: _is_ready(service), "the floor to answer")
        yield service


def create_tables(home: Path, **settings: str) -> None:
    """Create the service's own tables and indexes, in `gradient.db` in a folder if the settings name no database."""
    subprocess.run([str(SERVER), "migrate"], env=environment(home, **settings), check=True, capture_output=True)


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Return this process's environment with this folder and these settings in place of its service settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    defaults = {
        "GRADIENT_HOME": str(home),
        "GRADIENT_LOG_LEVEL": "warning",
        "GRADIENT_ENVIRONMENTS__DEFAULT": "[]",  # no installation in the background
    }
    return env | defaults | settings


@contextmanager
def run_program(
    arguments: list[str], home: Path, output_name: str = "output", **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; its output goes to a file in its home."""
    env = environment(home, **settings)
    with (home / output_name).open("wb") as output:
        process = subprocess.Popen(arguments, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _check_alive(process: subprocess.Popen[bytes], home: Path) -> None:
    if process.poll() is not None:
        raise ConnectionError(f"the server ended: {(home / 'output').read_text('utf-8', 'replace')}")


def _is_ready(service: Service) -> bool | None:
    try:
        service.get("/health").close()
    except ConnectionRefusedError:
        return None
    return True


def free_port() -> int:
    """Find a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
