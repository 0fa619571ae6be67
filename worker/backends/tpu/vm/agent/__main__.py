"""The agent's loop; run as `python3 -m agent FOLDER`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import signal
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker.runner.control_files import STOPPING_FILE, read_control, read_exit_code, read_pid, write_control_file
from worker.runner.link import SessionServer
from worker.runner.usage import UsageMeter, measure_usage
from worker.runner.workspace_files import WorkspaceFiles

from . import CALL_SECONDS, FOLDERS, HEARTBEAT_STEPS, NETWORK_ERRORS, PART_BYTES, STREAMED_FILES
from .artifacts import ArtifactSender
from .bucket import Bucket
from .chip_metrics import read_chips
from .deletion import delete_vm
from .disks import mount_disks, unmount_disks
from .metadata_server import Metadata
from .runners import Container, JobFailed, Process
from .statsd_receiver import open_port, receive
from .vm_metadata import read_rank

_ARTIFACT_SECONDS = 10.0
_SAVE_SECONDS = 600.0
_SHUTDOWN_STEP_SECONDS = 0.2
_SHUT_DOWN = "shut down"
_SIGNALLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_DETAIL_CHARACTERS = 4000  # longest text of a status: the worker reads no more than 64 KiB of it
_PART_NAME = re.compile(r"[0-9]{20}")
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Agent:
    def __init__(self, root: Path) -> None:
        settings = json.loads((root / "vm.json").read_text())
        self._place = root
        self._control = root / "control"
        self._in_slice: bool = settings["slice"]
        self._rank = read_rank() if self._in_slice else 0
        self._shared: str = settings["prefix"]
        self._prefix = f"{self._shared}hosts/{self._rank}/" if self._in_slice else self._shared
        model: str = settings["model"] + (f"hosts/{self._rank}/" if self._rank else "")
        self._seconds: float = settings["seconds"]
        self._abandoned_seconds: float = settings["abandoned_seconds"]
        self._collect_seconds: float = settings["collect_seconds"]
        self._resources: list[str] = settings["resources"]
        self._job_id: str = settings["job_id"]
        self._statsd_port: int = settings["statsd_port"]
        self._outputs: tuple[list[str], int | None] = settings["outputs"], settings["max_bytes"]
        self.bucket = Bucket(settings["bucket"], self._shared + "token", settings["token_url"])
        self.artifacts = ArtifactSender(self.bucket, root / "artifacts", model)
        # The worker reads them; of a slice those of one host, as with all metrics.
        self._left = b""
        self._files = WorkspaceFiles(root / "workspace", root / "workspace.json")
        self._events = ArtifactSender(self.bucket, root / "workspace", settings["workspace"], self._is_event_file)
        plain = os.environ.get("GRADIENT_VM_RUN", "docker") == "process"
        self.runner: Any = Process(root) if plain else Container(root)
        self._sessions = SessionServer(root, self.runner.run, lambda: not self._is_running())
        self._positions: dict[str, int] = {}
        self._applied = b""
        self._shut_down = False
        self._abandoned = False
        self.over = threading.Event()
        self._beats = itertools.count()
        self._usage: dict[str, float] = {}
        self._usage_read_at = 0.0
        self._meter = UsageMeter()
        self._ended_at = 0.0
        self._reported, self._reported_at, self._synced_at = b"", 0.0, 0.0
        self._alive_lock = threading.Lock()

    def run(self) -> None:
        """Run the whole job, starting from its current state; then wait until the VM is deleted."""
        guard = threading.Thread(target=self.guard, name="guard", daemon=True)
        guard.start()
        if self.bucket.get(self._prefix + "exit") is None:
            self._run_job()
        with self._alive_lock:
            self._put("heartbeat", self.status(ended=True))
            self.over.set()
        (self._place / "reported").touch()
        while guard.is_alive():  # a worker that is there deletes the VM now
            self.bucket.token()
            guard.join(self._seconds)

    def _run_job(self) -> None:
        metadata = {"GCE_METADATA_HOST": self._serve_metadata()}
        metadata["GCE_METADATA_IP"] = metadata["GCE_METADATA_HOST"]
        metadata |= self._receive_statsd()
        while not (self._control / "started").exists():
            try:
                self.start(metadata)
            except JobFailed as error:
                self.report("failed", error.reason, error.detail)
                return
            except (*NETWORK_ERRORS, tarfile.TarError, EOFError) as error:
                # For example, the disk is full: a worker reads this, and decides for how long it is tried.
                self.report("here", detail=f"{type(error).__name__}: {error}")
                time.sleep(self._seconds)
        sessions = json.loads((self._place / "job.json").read_text())["sessions"]
        port = self._sessions.open(sessions["address"], bytes.fromhex(sessions["token"]))
        self.report("running", detail=str(port))
        for work in (self._beat, self._sync_artifacts, self._read_usage):
            threading.Thread(target=self._repeat, args=(work,), name=work.__name__, daemon=True).start()
        end = self.monitor()
        unmount_disks(self._place)
        self._put("left", self._left)
        self._put("exit", json.dumps({**end, "at": self._ended_at}).encode())

    def guard(self) -> None:
        """End the job and the VM when no worker was heard of for too long: nobody else would, and it costs money."""
        while (left := self.bucket.received_at + self._abandoned_seconds - time.monotonic()) > 0:
            time.sleep(left)
        sys.stderr.write(f"no worker made contact for {self._abandoned_seconds:.0f} s\n")
        self._abandoned = True
        with contextlib.suppress(OSError):
            write_control_file(self._control, STOPPING_FILE, "no worker")
            grace = json.loads((self._place / "job.json").read_text())["stop_grace"]
            self.runner.signal(signal.SIGTERM)
            if not self.over.wait(grace):
                self.runner.signal(signal.SIGKILL)
        until = time.monotonic() + _SAVE_SECONDS
        self.over.wait(_SAVE_SECONDS)
        # The node's other hosts save, too; the first deletes all, or the last one that can. Without a job none saves.
        if self._in_slice and (self._place / "job.json").exists():
            self._wait_for_others(until if self._rank == 0 else until + _SAVE_SECONDS)
        delete_vm(self._resources)

    def _wait_for_others(self, until: float) -> None:
        count = len(json.loads((self._place / "job.json").read_text())["env"]["TPU_WORKER_HOSTNAMES"].split(","))
        names = [f"{self._shared}hosts/{rank}/exit" for rank in range(count)]
        while time.monotonic() < until:
            with contextlib.suppress(*NETWORK_ERRORS):
                if self._rank == 0 and all(self.bucket.get(name) is not None for name in names):
                    return
            time.sleep(self._seconds)

    def _serve_metadata(self) -> str:
        """Serve the job's tokens, at the port of an earlier agent if there was one: the job knows it."""
        file = self._place / "metadata-port"
        if file.exists():
            port = int(file.read_text())
            serve: Callable[[], None] = functools.partial(self._serve_again, port)
        else:
            server = Metadata(0, self.bucket)
            port, serve = server.server_address[1], server.serve_forever
            new = file.with_suffix(".new")
            new.write_text(str(port))
            new.replace(file)
        threading.Thread(target=serve, name="metadata", daemon=True).start()
        return f"127.0.0.1:{port}"

    def _receive_statsd(self) -> dict[str, str]:
        if not self._statsd_port:
            return {}
        opened = open_port(self._statsd_port, self._place / "statsd-port")
        receiving = opened, self._control, self._job_id, self.over
        threading.Thread(target=receive, args=receiving, name="statsd", daemon=True).start()
        return {"GRADIENT_STATSD_PORT": str(opened.getsockname()[1])}

    def _serve_again(self, port: int) -> None:
        """Serve at this port as soon as it is free: another program may have taken it. The job is reported anyway."""
        while True:
            try:
                server = Metadata(port, self.bucket)
            except OSError as error:
                sys.stderr.write(f"no tokens for the job: port {port}: {error}\n")
                time.sleep(self._seconds)
            else:
                server.serve_forever()

    def start(self, metadata: dict[str, str]) -> None:
        self.report("here")
        job = self._read_job()
        job["env"] |= metadata
        for name in FOLDERS:
            shutil.rmtree(self._place / name, ignore_errors=True)
            (self._place / name).mkdir()
            (self._place / name).chmod(0o777)  # the container may run as any user
        packed = self._place / "workspace.tar.gz"
        with self.bucket.open(self._shared + "workspace.tar.gz") as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(packed) as archive:
            archive.extractall(self._place / "workspace")  # noqa: S202 - the service packed it
        _open_to_all(self._place / "workspace")
        self._files.record()
        self.artifacts.fetch("hosts/" if self._in_slice and self._rank == 0 else "")
        _open_to_all(self._place / "artifacts")
        mount_disks(self._place, job.get("disks") or [])
        self.report("pulling", detail=job["image"])
        self.runner.prepare(job)
        if self._in_slice:  # programs wait only minutes for the other hosts
            self.report("prepared")
        while self._in_slice and self.bucket.get(self._shared + "start") is None:
            self._check_not_stopped()
            time.sleep(self._seconds)
        self._check_not_stopped()
        (self._place / "boot-id").write_text(BOOT.read_text())
        (self._control / "command").write_text(job["command"] + "\n")
        (self._control / "command").chmod(0o755)
        self.runner.start(job)
        until = time.monotonic() + CALL_SECONDS
        while True:
            code = self.runner.code()  # before the pid: a command may have begun and ended meanwhile
            if read_pid(self._control) is not None:
                break
            if code:
                raise JobFailed("launch_failed", f"the container ended with exit code {code} before the command began")
            if time.monotonic() >= until:
                raise JobFailed("launch_failed", "the command did not begin")
            time.sleep(0.05)

    def _check_not_stopped(self) -> None:
        if self.bucket.get(self._shared + "stop_request") is not None:
            raise JobFailed("stopped_by_user", "before it was started")

    def _read_job(self) -> dict[str, Any]:
        """Read the description of the job, and remove it from the bucket, since it may hold secrets."""
        file = self._place / "job.json"
        while not file.exists():
            content = self.bucket.get(self._prefix + "job.json")
            if content is None:
                time.sleep(self._seconds)
                continue
            new = file.with_suffix(".new")
            new.touch(0o600)
            new.write_bytes(content)
            new.replace(file)
        self.bucket.remove(self._prefix + "job.json")
        job: dict[str, Any] = json.loads(file.read_text())
        return job

    def monitor(self) -> dict[str, object]:
        """Report on the job until it has ended; return its exit code, or the reason that there is none."""
        while True:
            try:
                self._heed_shutdown()
                ended = not self._is_running()  # checked first: what was written before the end is sent below
                if ended and not self._ended_at:
                    self._ended_at = time.time()
                    self._sessions.end()
                    self.artifacts.forget_refused()
                for name in STREAMED_FILES:
                    self._upload_output(name)
                if ended:
                    self.artifacts.until = min(self.artifacts.until, time.monotonic() + self._collect_seconds)
                    if self._shut_down:  # what the job itself saved comes first
                        self.artifacts.send()
                    self._left = self._left or self._collect_outputs()
                    self._events.send()
                    self.artifacts.send()
                    return self._end() | self._missing()
                self._apply_request()
            except NETWORK_ERRORS as error:  # network or engine down: the job runs on, and is reported later
                sys.stderr.write(f"not told of the job: {error}\n")
                if time.monotonic() >= self.artifacts.until:  # the VM is billed for as long as it tries
                    return self._end() | self._missing(f"not sent in {self._collect_seconds:.0f} s: {error}")
            time.sleep(self._seconds)

    def _collect_outputs(self) -> bytes:
        """Copy the outputs that the job named to its artifacts; return what was left out of them, and notes."""
        (patterns, most), until = self._outputs, self.artifacts.until
        left = self._files.collect(patterns, self._place / "artifacts", most, lambda: time.monotonic() >= until)
        return json.dumps(dict(zip(("skipped", "notes"), left))).encode()

    def _missing(self, unsent: str = "") -> dict[str, object]:
        """Return the part of the end's report that says why artifacts are missing, if some are."""
        why = "; ".join(filter(None, (unsent, self.artifacts.refused())))
        return {"missing": why} if why else {}

    def _is_running(self) -> bool:
        try:
            running: bool = self.runner.running()
        except OSError:
            if self._shut_down or read_exit_code(self._control) is not None:
                return False
            raise
        return running

    def _end(self) -> dict[str, object]:
        if self._abandoned:
            return {"code": None, "reason": "no_worker"}
        requested = read_control(self._control, STOPPING_FILE)  # perhaps by an agent before the VM's restart
        if (self._shut_down and not self._applied) or requested == _SHUT_DOWN:
            return {"code": None, "reason": "shut_down"}
        code = read_exit_code(self._control)
        # A restart ends programs with signals; a job that ended by itself before it has a code of its own.
        if code in {None, *_SIGNALLED} and (self._place / "boot-id").read_text() != BOOT.read_text():
            return {"code": None, "reason": "restarted"}
        if code is not None:
            return {"code": code, "reason": None}
        code = self.runner.code()
        return {"code": code, "reason": "process_lost" if code is None else None}

    def _repeat(self, work: Callable[[], None]) -> None:
        """Repeat something in a thread of its own until the job is over: sending a large file must delay nothing."""
        while not self.over.wait(self._seconds):
            try:
                work()
            except NETWORK_ERRORS as error:
                sys.stderr.write(f"{work.__name__}: {error}\n")

    def _beat(self) -> None:
        """Tell that the VM is alive, and how much was sent: at intervals, and when there is more."""
        sent = self.status()
        due = sent != self._reported or time.monotonic() - self._reported_at >= HEARTBEAT_STEPS * self._seconds
        with self._alive_lock:
            if due and not self.over.is_set():
                self._put("heartbeat", self.status(beat=next(self._beats), usage=self._usage))
                self._reported, self._reported_at = sent, time.monotonic()

    def status(self, *, beat: int = 0, ended: bool = False, usage: dict[str, float] | None = None) -> bytes:
        report = {"beat": beat, "ended": ended, "collecting": self._ended_at > 0, "usage": usage or {}}
        return json.dumps(report | self._positions).encode()

    def _read_usage(self) -> None:
        """Read what the job uses of the VM and of the TPU, as often as it can be told."""
        if time.monotonic() - self._usage_read_at >= HEARTBEAT_STEPS * self._seconds:
            used = measure_usage(self.runner.pids(), self._meter)
            self._usage, self._usage_read_at = self._meter.sample(*used) | read_chips(), time.monotonic()

    def _sync_artifacts(self) -> None:
        if time.monotonic() - self._synced_at >= _ARTIFACT_SECONDS:
            self._events.send()
            self.artifacts.send()
            self._synced_at = time.monotonic()

    def _is_event_file(self, path: Path) -> bool:
        """Return whether the job has written this file of its workspace for TensorBoard."""
        if self._rank == 0 and ".tfevents." in path.name:
            with contextlib.suppress(FileNotFoundError):
                status, began = path.lstat(), (self._control / "command").lstat()
                return stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= began.st_mtime_ns
        return False

    def _heed_shutdown(self) -> None:
        """Let the job save when the VM is shut down: there are seconds left."""
        shutting_down = not self._shut_down and (self._place / "shutting-down").exists()
        if shutting_down and read_exit_code(self._control) is None:
            self._shut_down = True
            self._seconds = min(self._seconds, _SHUTDOWN_STEP_SECONDS)
            if not self._applied:
                write_control_file(self._control, STOPPING_FILE, _SHUT_DOWN)
            self.runner.signal(signal.SIGTERM)

    def _apply_request(self) -> None:
        request = self.bucket.get(self._shared + "stop_request") or b""
        if request != self._applied:
            write_control_file(self._control, STOPPING_FILE, "asked to end")
            self.runner.signal(signal.SIGKILL if request == b"kill" else signal.SIGTERM)
            self._applied = request

    def _upload_output(self, name: str) -> None:
        """Send the new part of a file that the job writes, which may be anything."""
        try:
            descriptor = os.open(self._control / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            self._positions.setdefault(name, 0)
            return
        try:
            while stat.S_ISREG(os.fstat(descriptor).st_mode):
                at = self.position(name)
                data = os.pread(descriptor, PART_BYTES, at)
                if not data:
                    return
                if self.bucket.put(f"{self._prefix}{name}/{at:020d}", data, len(data), new=True):
                    self._positions[name] = at + len(data)
                else:  # sent before, but the answer was lost
                    del self._positions[name]
        finally:
            os.close(descriptor)

    def position(self, name: str) -> int:
        """Return how many bytes of a file were sent, by this agent or an earlier one, according to the bucket."""
        if name not in self._positions:
            parts = self.bucket.sizes(f"{self._prefix}{name}/")
            sizes = {part.rpartition("/")[2]: size for part, size in parts.items()}
            # The job can write there, too: only names of parts count.
            self._positions[name] = max(
                (int(part) + size for part, size in sizes.items() if _PART_NAME.fullmatch(part)), default=0
            )
        return self._positions[name]

    def report(self, phase: str, reason: str | None = None, detail: str | None = None) -> None:
        text = None if detail is None else detail[:_DETAIL_CHARACTERS]
        self._put("status", json.dumps({"phase": phase, "reason": reason, "detail": text}).encode())

    def _put(self, name: str, content: bytes) -> None:
        self.bucket.put(self._prefix + name, content, len(content))


def _open_to_all(folder: Path) -> None:
    """Let every user write to the workspace: the container may run as any."""
    for parent, folders, files in os.walk(folder):
        Path(parent).chmod(0o777)
        for path in (Path(parent, name) for name in (*folders, *files)):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o666)


if __name__ == "__main__":
    Agent(Path(sys.argv[1])).run()
