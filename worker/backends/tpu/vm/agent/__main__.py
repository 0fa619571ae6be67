"""The agent's loop; run as `python3 -m agent FOLDER`."""

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import CALL_SECONDS, FOLDERS, HEARTBEAT_STEPS, PART_BYTES, STREAMED_FILES
from .bucket import Bucket
from .metadata_server import Metadata
from .runners import Container, JobFailed, Process

_BLOCK_BYTES = 1024**2
_ARTIFACT_SECONDS = 10.0


class Agent:
    """Runs one job."""

    def __init__(self, place: Path) -> None:
        settings = json.loads((place / "vm.json").read_text())
        self._place = place
        self._control = place / "control"
        self._prefix: str = settings["prefix"]
        self._model: str = settings["model"]
        self._seconds: float = settings["seconds"]
        self._bucket = Bucket(settings["bucket"], self._prefix + "token", settings["token_url"])
        plain = os.environ.get("GRADIENT_VM_RUN", "docker") == "process"
        self._runner: Any = Process(place) if plain else Container(place)
        self._sent: dict[str, tuple[int, int]] = {}
        self._positions: dict[str, int] = {}
        self._applied = b""

    def run(self) -> None:
        """Run the whole job, starting from its current state."""
        if self._bucket.get(self._prefix + "exit") is not None:
            return
        metadata = {"GCE_METADATA_HOST": self._serve_metadata()}
        metadata["GCE_METADATA_IP"] = metadata["GCE_METADATA_HOST"]
        if not (self._control / "started").exists():
            try:
                self._start(metadata)
            except JobFailed as error:
                self._report("failed", error.reason, error.detail)
                return
        self._report("running")
        reason = self._monitor()
        self._put("exit", json.dumps({"code": self._exit_code(), "reason": reason}).encode())

    def _serve_metadata(self) -> str:
        """Serve the job's tokens, at the port of an earlier agent if there was one: the job knows it."""
        file = self._place / "metadata-port"
        if file.exists():
            port = int(file.read_text())
            serve: Callable[[], None] = functools.partial(self._serve_again, port)
        else:
            server = Metadata(0, self._bucket)
            port, serve = server.server_address[1], server.serve_forever
            new = file.with_suffix(".new")
            new.write_text(str(port))
            new.replace(file)
        threading.Thread(target=serve, name="metadata", daemon=True).start()
        return f"127.0.0.1:{port}"

    def _serve_again(self, port: int) -> None:
        """Serve at this port as soon as it is free: another program may have taken it. The job is reported anyway."""
        while True:
            try:
                server = Metadata(port, self._bucket)
            except OSError as error:
                sys.stderr.write(f"no tokens for the job: port {port}: {error}\n")
                time.sleep(self._seconds)
            else:
                server.serve_forever()

    def _start(self, metadata: dict[str, str]) -> None:
        self._report("here")
        job = self._read_job()
        job["env"] |= metadata
        for name in FOLDERS:
            shutil.rmtree(self._place / name, ignore_errors=True)
            (self._place / name).mkdir()
            (self._place / name).chmod(0o777)  # the container may run as any user
        packed = self._place / "workspace.tar.gz"
        with self._bucket.open(self._prefix + "workspace.tar.gz") as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(packed) as archive:
            archive.extractall(self._place / "workspace")  # noqa: S202 - the service packed it
        self._report("pulling", detail=job["image"])
        self._runner.prepare(job)
        if self._bucket.get(self._prefix + "wish") is not None:
            raise JobFailed("stopped_by_user", "before it was started")
        (self._control / "command").write_text(job["command"] + "\n")
        self._runner.start(job)
        until = time.monotonic() + CALL_SECONDS
        while not (self._control / "started").exists():
            if time.monotonic() >= until:
                raise JobFailed("launch_failed", "the command did not begin")
            time.sleep(0.05)

    def _read_job(self) -> dict[str, Any]:
        """Read the description of the job, and remove it from the bucket, since it may hold secrets."""
        file = self._place / "job.json"
        while not file.exists():
            content = self._bucket.get(self._prefix + "job.json")
            if content is None:
                time.sleep(self._seconds)
                continue
            new = file.with_suffix(".new")
            new.touch(0o600)
            new.write_bytes(content)
            new.replace(file)
        self._bucket.remove(self._prefix + "job.json")
        job: dict[str, Any] = json.loads(file.read_text())
        return job

    def _monitor(self) -> str | None:
        """Report on the job until it has ended; return the reason if there is no exit code."""
        heartbeats = itertools.count()
        alive = artifacts = 0.0
        while True:
            current = time.monotonic()
            try:
                # Checked first: what was written before the end is sent below.
                ended = not self._runner.running()
                for name in STREAMED_FILES:
                    self._upload_output(name)
                if ended or current - artifacts >= _ARTIFACT_SECONDS:
                    artifacts = current
                    self._send_artifacts()
                if ended:
                    return None if self._exit_code() is not None else "process_lost"
                if current - alive >= HEARTBEAT_STEPS * self._seconds:
                    alive = current
                    self._put("alive", str(next(heartbeats)).encode())
                self._apply_request()
            except OSError as error:  # network or metadata server down: the job runs on, and is reported later
                sys.stderr.write(f"not told of the job: {error}\n")
            time.sleep(self._seconds)

    def _exit_code(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self._control / "exit").read_text())
        code: int | None = self._runner.code()
        return code

    def _apply_request(self) -> None:
        request = self._bucket.get(self._prefix + "wish") or b""
        if request != self._applied:
            (self._control / "stopping").write_text("asked to end\n")
            self._runner.signal(signal.SIGKILL if request == b"kill" else signal.SIGTERM)
            self._applied = request

    def _upload_output(self, name: str) -> None:
        """Send the new part of a file that the job writes, which may be anything."""
        try:
            descriptor = os.open(self._control / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            while stat.S_ISREG(os.fstat(descriptor).st_mode):
                at = self._position(name)
                data = os.pread(descriptor, PART_BYTES, at)
                if not data:
                    return
                if self._bucket.put(f"{self._prefix}{name}/{at:020d}", data, len(data), new=True):
                    self._positions[name] = at + len(data)
                else:  # sent before, but the answer was lost
                    del self._positions[name]
        finally:
            os.close(descriptor)

    def _position(self, name: str) -> int:
        """Return how many bytes of a file were sent, by this agent or an earlier one, according to the bucket."""
        if name not in self._positions:
            parts = self._bucket.sizes(f"{self._prefix}{name}/")
            self._positions[name] = max(
                (int(part.rpartition("/")[2]) + size for part, size in parts.items()), default=0
            )
        return self._positions[name]

    def _send_artifacts(self) -> None:
        """Send new and changed artifacts, regular files only, without following links; remove deleted ones."""
        root = self._place / "artifacts"
        there = set()
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                shown = os.fsencode(path.relative_to(root)).decode(errors="replace")
                there.add(shown)
                with contextlib.suppress(FileNotFoundError):
                    self._send(path, shown)
        for gone in self._sent.keys() - there:
            self._bucket.remove(self._model + gone)
            del self._sent[gone]

    def _send(self, path: Path, shown: str) -> None:
        status = path.lstat()
        state = status.st_size, status.st_mtime_ns
        if not stat.S_ISREG(status.st_mode) or self._sent.get(shown) == state:
            return
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            self._bucket.put(self._model + shown, _blocks(file, status.st_size), status.st_size)
        self._sent[shown] = state

    def _report(self, phase: str, reason: str | None = None, detail: str | None = None) -> None:
        self._put("status", json.dumps({"phase": phase, "reason": reason, "detail": detail}).encode())

    def _put(self, name: str, content: bytes) -> None:
        self._bucket.put(self._prefix + name, content, len(content))


def _blocks(file: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401 - a binary file
    """Read as many bytes of a file as were announced, even if it grows meanwhile."""
    while size:
        block: bytes = file.read(min(size, _BLOCK_BYTES))
        if not block:
            raise OSError("the file became shorter while it was sent")
        size -= len(block)
        yield block


if __name__ == "__main__":
    Agent(Path(sys.argv[1])).run()
