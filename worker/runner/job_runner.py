"""Runs one job where its worker does not see its folders, and reports on it in a store; it needs Python alone.

Below `hosts/RANK/` of the attempt's prefix it reads `job.json`, and writes `report`, `left` and the job's output in
parts: `log/N` and `metrics.jsonl/N`, where N counts from 0 and only the last part has fewer than PART_BYTES and is
replaced while it grows. All hosts of a job read `workspace.tar.gz`, `stop_request` (`stop` or `kill`, once the job is
to end) and, where there are several, `start`: the worker writes it when each of them is prepared.

After a restart it continues where it was.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import socket
import stat
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core.system.filesystem import write_atomically
from core.system.untrusted_folders import chmod_tree, remove_tree
from worker.runner.control_files import (
    STOPPING_FILE,
    WARNED_FILE,
    read_control,
    read_exit_code,
    read_exit_time,
    read_part,
    read_pid,
    write_control_file,
)
from worker.runner.folder_sender import FolderSender
from worker.runner.kept_port import KeptPort
from worker.runner.link import SessionServer
from worker.runner.statsd import DATAGRAM_BYTES, StatsdRows, append_rows
from worker.runner.stop_signal import signal_number
from worker.runner.stores import NETWORK_ERRORS, PART_BYTES, REPORT_STEPS, STREAMED_FILES, Store
from worker.runner.usage import UsageMeter, measure_usage
from worker.runner.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.runner.streams import ExecRequest, JobStream

FOLDERS = ("workspace", "artifacts", "storage", "control")
START_SECONDS = 60.0
_ARTIFACT_SECONDS = 10.0
_SHUTDOWN_STEP_SECONDS = 0.2
_STATSD_SECONDS = 0.5
_WARNING_SECONDS = 2.0  # in which the wrapper gets to the warning: of two signals at once it may take the second first
_SHUT_DOWN = "shut down"
_SIGNALLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_DETAIL_CHARACTERS = 4000  # longest text of a report: the worker reads no more than 64 KiB of it
_BOOT_FILE = "boot-id"
BOOT = Path("/proc/sys/kernel/random/boot_id")


class JobFailed(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Launcher(Protocol):
    """Starts the job on this machine, under the wrapper, and enters it."""

    def prepare(self, job: dict[str, Any]) -> None:
        """Fetch what the job needs, and remove what an earlier start left. Raises `JobFailed`."""

    def start(self, job: dict[str, Any]) -> None:
        """Start the job, unless it is started. Raises `JobFailed`."""

    def running(self) -> bool:
        """Return whether it is running. Raises `OSError`: nobody can tell now."""

    def code(self) -> int | None:
        """Return the exit code, if the wrapper left none; None: it is unknown."""

    def signal(self, number: int) -> None:
        """Send SIGTERM or SIGUSR1 to the wrapper, which stops or warns the job in order; or SIGKILL to all of it."""

    def pids(self) -> list[int]: ...

    def run(self, request: ExecRequest) -> JobStream:
        """Start a user's command in the job. Raises `ExecRefused`."""


class JobRunner:
    """See the module. `rank`: of this machine among those of the job."""

    def __init__(self, root: Path, settings: dict[str, Any], store: Store, launcher: Launcher, rank: int = 0) -> None:
        self.place, self.control = root, root / "control"
        self.settings, self.store, self.launcher, self.rank = settings, store, launcher, rank
        self.shared: str = settings["prefix"]
        self.prefix = f"{self.shared}hosts/{rank}/"
        self.seconds: float = settings["seconds"]
        model = settings["model"] + (f"hosts/{rank}/" if rank else "")
        self.artifacts = FolderSender(store, root / "artifacts", model)
        # The worker reads them; of several hosts those of the first, as with all metrics.
        self._events = FolderSender(store, root / "workspace", settings["workspace"], self._is_event_file)
        self._files = WorkspaceFiles(root / "workspace", root / "workspace.json")
        self._left = b""
        self._sessions = SessionServer(root, launcher.run, lambda: not self._is_running())
        self.report: dict[str, Any] = {"phase": "", "reason": None, "detail": None, "port": 0, "usage": {}}
        self.report |= {"collecting": False, "warned": False, "end": None}
        self._beats = itertools.count()
        self._reported, self._reported_at = "", 0.0
        self._report_lock = threading.Lock()
        self._positions: dict[str, int] = {}
        self._applied = b""
        self._shut_down = False
        self._warning: int | None = None  # number of the signal
        self._stop_signal = int(signal.SIGTERM)
        self.abandoned = False
        self.over = threading.Event()
        self._usage_read_at = self._synced_at = self._ended_at = 0.0
        self._meter = UsageMeter()

    def run(self) -> None:
        """Run the whole job, starting from its current state, and report its end."""
        reported = self.place / "reported"
        if reported.exists():
            self.over.set()
            return
        self._start_thread(self.send_report)
        try:
            end = self._run_job()
        except JobFailed as error:
            self.set_phase("failed", error.detail, error.reason)
            end = {"code": None}
        while not self.over.is_set():
            try:
                self._put("left", self._left)
                self.send_report(end)
            except NETWORK_ERRORS as error:
                sys.stderr.write(f"the end was not reported: {error}\n")
                time.sleep(self.seconds)
        reported.touch()

    def environment(self) -> dict[str, str]:
        """Return the variables of the job that are only known here."""
        port: int = self.settings["statsd_port"]
        if not port:
            return {}
        kept = KeptPort(self.place / "statsd-port", _bind_udp, port)
        threading.Thread(target=self._receive_statsd, args=(kept,), name="statsd", daemon=True).start()
        return {"GRADIENT_STATSD_PORT": str(kept.number)}

    def prepare(self, job: dict[str, Any]) -> None:
        """Prepare this machine for the job. Raises `JobFailed`."""
        self.launcher.prepare(job)

    def usage(self) -> dict[str, float]:
        return self._meter.sample(*measure_usage(self.launcher.pids(), self._meter))

    def _run_job(self) -> dict[str, Any]:
        variables = self.environment()
        while read_pid(self.control) is None:
            try:
                self.start(variables)
            except (*NETWORK_ERRORS, tarfile.TarError, EOFError) as error:
                # For example, the disk is full: a worker reads this, and decides for how long it is tried.
                self.set_phase("here", f"{type(error).__name__}: {error}")
                time.sleep(self.seconds)
        job = json.loads((self.place / "job.json").read_text())
        self._warning, self._stop_signal = job["warning"], signal_number(job["stop_signal"])
        sessions = job["sessions"]
        self.report["port"] = self._sessions.open(sessions["address"], bytes.fromhex(sessions["token"]))
        self.set_phase("running")
        for work in (self._sync_artifacts, self._read_usage):
            self._start_thread(work)
        end = self.monitor()
        self.finish()
        return end

    def finish(self) -> None:
        """Leave this machine as it can be deleted."""

    def start(self, variables: dict[str, str]) -> None:
        """Start the job. Raises `JobFailed`."""
        self.set_phase("here")
        job = self._read_job()
        job["env"] |= variables
        booted = self.place / _BOOT_FILE  # written when all is prepared: from then on it may have been started
        if not booted.exists() or booted.read_text() != BOOT.read_text():
            booted.unlink(missing_ok=True)
            self._prepare(job)
            write_atomically(self.control / "command", f"{job['command']}\n".encode(), mode=0o755)
            write_atomically(booted, BOOT.read_bytes())
        self.launcher.start(job)
        until = time.monotonic() + START_SECONDS
        while True:
            code = self.launcher.code()  # before the pid: a command may have begun and ended meanwhile
            if read_pid(self.control) is not None:
                break
            if code:
                raise JobFailed("launch_failed", f"the container ended with exit code {code} before the command began")
            if time.monotonic() >= until:
                raise JobFailed("launch_failed", "the command did not begin")
            time.sleep(0.05)

    def _prepare(self, job: dict[str, Any]) -> None:
        for name in FOLDERS:
            remove_tree(self.place / name)
            (self.place / name).mkdir()
            _open_to_all(self.place / name)
        packed = self.place / "workspace.tar.gz"
        with self.store.open(self.shared + "workspace.tar.gz") as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(packed) as archive:
            archive.extractall(self.place / "workspace")  # noqa: S202 - the service packed it
        _open_to_all(self.place / "workspace")
        self._files.record()
        in_slice = self.settings["slice"]
        self.artifacts.fetch("hosts/" if in_slice and self.rank == 0 else "")
        _open_to_all(self.place / "artifacts")
        self.set_phase("pulling", job["image"])
        self.prepare(job)
        if in_slice:  # programs wait only minutes for the other hosts
            self.set_phase("prepared")
        while in_slice and self.store.get(self.shared + "start") is None:
            self._check_not_stopped()
            time.sleep(self.seconds)
        self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self.store.get(self.shared + "stop_request") is not None:
            raise JobFailed("stopped_by_user", "before it was started")

    def _read_job(self) -> dict[str, Any]:
        """Read the description of the job, and remove it from the store, since it may hold secrets."""
        file = self.place / "job.json"
        while not file.exists():
            content = self.store.get(self.prefix + "job.json")
            if content is None:
                time.sleep(self.seconds)
                continue
            write_atomically(file, content)
        self.store.remove(self.prefix + "job.json")
        job: dict[str, Any] = json.loads(file.read_text())
        return job

    def monitor(self) -> dict[str, Any]:
        """Report on the job until it has ended; return its exit code, or the reason that there is none."""
        while True:
            try:
                self._heed_shutdown()
                ended = not self._is_running()  # checked first: what was written before the end is sent below
                if ended and not self._ended_at:
                    self._ended_at = read_exit_time(self.control) or time.time()
                    self.report["collecting"] = True
                    self._sessions.end()
                    self.artifacts.forget_refused()
                for name in STREAMED_FILES:
                    self._send_output(name)
                if ended:
                    self.artifacts.until = min(
                        self.artifacts.until, time.monotonic() + self.settings["collect_seconds"]
                    )
                    if self._shut_down:  # what the job itself saved comes first
                        self.artifacts.send()
                    self._left = self._left or self._collect_outputs()
                    self._events.send()
                    self.artifacts.send()
                    return self._end("")
                self._apply_request()
                self._apply_warning()
            except NETWORK_ERRORS as error:  # network or engine down: the job runs on, and is reported later
                sys.stderr.write(f"not told of the job: {error}\n")
                if time.monotonic() >= self.artifacts.until:  # the machine is billed for as long as it tries
                    return self._end(f"not sent in {self.settings['collect_seconds']:.0f} s: {error}")
            time.sleep(self.seconds)

    def _collect_outputs(self) -> bytes:
        """Copy the outputs that the job named to its artifacts; return what was left out of them, and notes."""
        patterns, most = self.settings["outputs"], self.settings["max_bytes"]
        until = self.artifacts.until
        left = self._files.collect(patterns, self.place / "artifacts", most, lambda: time.monotonic() >= until)
        return json.dumps(dict(zip(("skipped", "notes"), left))).encode()

    def _end(self, unsent: str) -> dict[str, Any]:
        code, reason = self._exit()
        missing = "; ".join(filter(None, (unsent, self.artifacts.refused())))
        return {"code": code, "reason": reason, "at": self._ended_at, "missing": missing}

    def _exit(self) -> tuple[int | None, str | None]:
        if self.abandoned:
            return None, "no_worker"
        requested = read_control(self.control, STOPPING_FILE)  # perhaps by a runner before the machine's restart
        if (self._shut_down and not self._applied) or requested == _SHUT_DOWN:
            return None, "shut_down"
        code = read_exit_code(self.control)
        # A restart ends programs with signals; a job that ended by itself before it has a code of its own.
        if code in {None, *_SIGNALLED} and (self.place / _BOOT_FILE).read_text() != BOOT.read_text():
            return None, "restarted"
        if code is None:
            code = self.launcher.code()
        return code, "process_lost" if code is None else None

    def _is_running(self) -> bool:
        try:
            return self.launcher.running()
        except OSError:
            if self._shut_down or read_exit_code(self.control) is not None:
                return False
            raise

    def _start_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=self._repeat, args=(work,), name=work.__name__, daemon=True).start()

    def _repeat(self, work: Callable[[], None]) -> None:
        """Repeat something until the job is over: sending a large file must delay nothing."""
        while not self.over.wait(self.seconds):
            try:
                work()
            except NETWORK_ERRORS as error:
                sys.stderr.write(f"{work.__name__}: {error}\n")

    def set_phase(self, phase: str, detail: str | None = None, reason: str | None = None) -> None:
        text = None if detail is None else detail[:_DETAIL_CHARACTERS]
        self.report |= {"phase": phase, "reason": reason, "detail": text}
        with contextlib.suppress(*NETWORK_ERRORS):  # it is sent again soon
            self.send_report()

    def send_report(self, end: dict[str, Any] | None = None) -> None:
        """Send the report if it has something new, or it is time for a sign of life; the one of the end is the last."""
        with self._report_lock:
            if self.over.is_set():
                return
            report = json.dumps({**self.report, "end": end})
            if report != self._reported or time.monotonic() - self._reported_at >= REPORT_STEPS * self.seconds:
                self._put("report", f'{report[:-1]}, "beat": {next(self._beats)}}}'.encode())
                self._reported, self._reported_at = report, time.monotonic()
            if end is not None:
                self.over.set()

    def _read_usage(self) -> None:
        """Read what the job uses of this machine, as often as it can be told."""
        if time.monotonic() - self._usage_read_at >= REPORT_STEPS * self.seconds:
            self.report["usage"], self._usage_read_at = self.usage(), time.monotonic()

    def _sync_artifacts(self) -> None:
        if time.monotonic() - self._synced_at >= _ARTIFACT_SECONDS:
            self._events.send()
            self.artifacts.send()
            self._synced_at = time.monotonic()

    def _is_event_file(self, path: Path) -> bool:
        """Return whether the job has written this file of its workspace for TensorBoard."""
        if self.rank == 0 and ".tfevents." in path.name:
            with contextlib.suppress(FileNotFoundError):
                status, began = path.lstat(), (self.control / "command").lstat()
                return stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= began.st_mtime_ns
        return False

    def _heed_shutdown(self) -> None:
        """Let the job save when the machine is shut down: there are seconds left."""
        shutting_down = not self._shut_down and (self.place / "shutting-down").exists()
        if shutting_down and read_exit_code(self.control) is None:
            self._shut_down = True
            self.seconds = min(self.seconds, _SHUTDOWN_STEP_SECONDS)
            if not self._applied:
                write_control_file(self.control, STOPPING_FILE, _SHUT_DOWN)
            if self._warning not in {None, self._stop_signal}:
                self.launcher.signal(signal.SIGUSR1)
                until = time.monotonic() + _WARNING_SECONDS
                while read_control(self.control, WARNED_FILE) is None and time.monotonic() < until:
                    time.sleep(0.05)
            self.launcher.signal(signal.SIGTERM)

    def _apply_request(self) -> None:
        request = self.store.get(self.shared + "stop_request") or b""
        if request != self._applied:
            write_control_file(self.control, STOPPING_FILE, "asked to end")
            self.launcher.signal(signal.SIGKILL if request == b"kill" else signal.SIGTERM)
            self._applied = request

    def _apply_warning(self) -> None:
        """Warn the job's program, if the worker wants it to be warned and it has not been."""
        if self._warning is not None and not self.report["warned"]:
            self.report["warned"] = read_control(self.control, WARNED_FILE) is not None
            if not self.report["warned"] and self.store.get(self.shared + "warning") is not None:
                self.launcher.signal(signal.SIGUSR1)

    def _send_output(self, name: str) -> None:
        """Send the new part of a file that the job writes, which may be anything."""
        while read_part(self.control, name, 0, 1):
            if name not in self._positions:
                self._positions[name] = self._find_position(f"{self.prefix}{name}/")
            sent = self._positions[name]
            part = sent // PART_BYTES
            data = read_part(self.control, name, part * PART_BYTES, PART_BYTES) or b""
            if part * PART_BYTES + len(data) <= sent:
                return
            self.store.put(f"{self.prefix}{name}/{part}", data, len(data))
            self._positions[name] = part * PART_BYTES + len(data)

    def _find_position(self, prefix: str) -> int:
        """Return where the first part begins that an earlier runner did not send whole."""
        sizes = self.store.sizes(prefix)
        return PART_BYTES * next(part for part in itertools.count() if sizes.get(f"{prefix}{part}") != PART_BYTES)

    def _receive_statsd(self, kept: KeptPort) -> None:
        values = StatsdRows()
        with kept.wait() as opened:
            opened.settimeout(_STATSD_SECONDS)
            while not self.over.is_set():
                with contextlib.suppress(OSError):  # nothing has come
                    values.receive(opened.recv(DATAGRAM_BYTES), self.settings["job_id"])
                if rows := values.take():
                    append_rows(self.control, rows)

    def _put(self, name: str, content: bytes) -> None:
        self.store.put(self.prefix + name, content, len(content))


def _open_to_all(folder: Path) -> None:
    """Let every user write there: the container may run as any."""
    folder.chmod(0o777)
    chmod_tree(folder, lambda mode: mode | (0o777 if stat.S_ISDIR(mode) else 0o666))


def _bind_udp(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", port))
    return opened
