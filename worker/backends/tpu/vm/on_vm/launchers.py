"""Runs the job on this machine: in a container, or as a process where machines are simulated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from worker.runner.commands import recorded, signal_recorded, start_command
from worker.runner.control_files import read_pid
from worker.runner.job_runner import JobFailed
from worker.runner.stop_signal import signal_number
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream

from .vm_metadata import read_token

FOLDERS = {
    "workspace": "/paperspace",
    "artifacts": "/artifacts",
    "storage": "/storage",
    "control": "/.gradient/control",
}
"""Paths in the container of the job's folders."""

_CONTAINER = "gradient-job"
_GOOGLES = os.environ.get("GRADIENT_VM_REGISTRIES", r"[a-z0-9-]+-docker\.pkg\.dev|([a-z]+\.)?gcr\.io")
"""Google's registries, the only ones that get a token of the VM's account."""
_SIGNAL_SECONDS = 10.0
ENGINE_SECONDS = 300.0
"""Time that an engine may take to restart; the VM is billed meanwhile, and cannot tell whether its job runs."""


def _login_of_account(image: str) -> dict[str, str] | None:
    """Return the login of the VM's account to one of Google's registries; None elsewhere, or without an account."""
    host = image.partition("/")[0]
    if re.fullmatch(_GOOGLES, host):
        with contextlib.suppress(OSError, ValueError, LookupError):
            return {"host": host, "username": "oauth2accesstoken", "password": read_token()}
    return None


def _wrapper_options(control: Path | str, mode: str, job: dict[str, Any], signal_name: str | None) -> list[str]:
    number, warning = signal_number(signal_name), [job["warning"]] if job["warning"] else []
    return [str(control), mode, *map(str, [number, job["stop_grace"], *warning])]


class Process:
    """The job as a process of this machine: simulated machines have no engine of their own."""

    def __init__(self, root: Path) -> None:
        self._place = root

    def prepare(self, job: dict[str, Any]) -> None:
        """Do nothing: a process needs no image."""

    def start(self, job: dict[str, Any]) -> None:
        folders = {f"GRADIENT_{name.upper()}_DIR": str(self._place / name) for name in FOLDERS}
        metrics = {"GRADIENT_METRICS_FILE": str(self._place / "control" / "metrics.jsonl")}
        disks = {"GRADIENT_DISKS_DIR": str(self._place / "disks")} if job.get("disks") else {}
        places = {"PS_JOBSPACE": str(self._place / "workspace"), "PS_MODEL_PATH": str(self._place / "artifacts")}
        python = dict(job.get("python") or {})
        if python:
            python["PATH"] = os.pathsep.join([python["PATH"], os.environ.get("PATH", os.defpath)])
        options = _wrapper_options(self._place / "control", "session", job, job["stop_signal"])
        subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [str(self._place / "run.sh"), *options],
            cwd=self._place / "workspace" / (job["folder"] or "."),
            env=dict(os.environ) | python | job["env"] | folders | metrics | places | disks,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def running(self) -> bool:
        return self._leader() in self.pids()

    def code(self) -> int | None:
        """Return None: without the wrapper's exit file the exit code is unknown."""
        return None

    def signal(self, number: int) -> None:
        """Signal the wrapper, or kill all processes except those of the wrapper, which record the exit code."""
        pids = [self._session()] if number != signal.SIGKILL else [pid for pid in self.pids() if pid != self._leader()]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self) -> list[int]:
        """Return the processes of the wrapper's session, without its leader, which ends last."""
        session, pids = self._session(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
                if state != "Z" and int(rest[2]) == session != int(entry.name):
                    pids.append(int(entry.name))
        return pids

    def run(self, request: ExecRequest) -> ProcessStream:
        """Start a user's command as a process of the job. Raises `ExecRefused`: it cannot be started."""
        try:
            leader = Path("/proc", str(self._leader()))
            entries = os.fsdecode((leader / "environ").read_bytes()).split("\0")
            folder = str((leader / "cwd").readlink())
        except OSError as error:
            raise ExecRefused("The job has just ended.") from error
        return start_command(request, dict(entry.split("=", 1) for entry in entries if "=" in entry), folder)

    def _leader(self) -> int | None:
        """Return the wrapper's pid; None if it has ended: the kernel gives its number to another process in time."""
        pid = read_pid(self._place / "control")
        with contextlib.suppress(OSError):
            if os.fsencode(self._place / "control") in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return None

    def _session(self) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(self._leader() or -1)
        return None


class Container:
    """The job in its container, with access to the machine's devices and network."""

    def __init__(self, root: Path) -> None:
        self._place = root
        self.silent_since: float | None = None

    def prepare(self, job: dict[str, Any]) -> None:
        """Pull the image, if needed, and remove the container of an earlier start."""
        self._docker("rm", "--force", _CONTAINER)
        if shutil.which("docker") is None:
            raise JobFailed("launch_failed", "the TPU VM does not have Docker, and it could not be installed")
        image = job["image"]
        if job["pull"] != "Always" and self._docker("image", "inspect", image).returncode == 0:
            return
        with tempfile.TemporaryDirectory() as config:  # no login is left on the VM, where the job could read it
            refused = self._log_in(config, job["login"] or _login_of_account(image))
            if refused and job["login"]:
                raise JobFailed("image_pull", refused)
            done = self._docker("--config", config, "pull", "--quiet", image)
        if done.returncode:
            raise JobFailed("image_pull", "; ".join(filter(None, (f"{image}: {done.stdout.strip()}", refused))))

    def _log_in(self, config: str, login: dict[str, str] | None) -> str:
        """Log in to a registry; return the reason that it was refused, or an empty text."""
        if login is None:
            return ""
        command = ("--config", config, "login", "--username", login["username"], "--password-stdin", login["host"])
        done = self._docker(*command, given=login["password"])
        return f"{login['host']} rejected the login of {login['username']}: {done.stdout}" if done.returncode else ""

    def start(self, job: dict[str, Any]) -> None:
        """Start the container with access to the TPU's devices, which takes every privilege on the machine."""
        if state := self._inspect("{{.State.Status}}"):  # an earlier runner was killed in the middle of this
            if state == "created":
                self._docker("start", _CONTAINER)
            return
        mounts = [f"--volume={self._place / name}:{inside}" for name, inside in FOLDERS.items()]
        mounts.append(f"--volume={self._place / 'run.sh'}:/.gradient/run.sh:ro")
        for disk in job.get("disks") or []:
            source = self._place / "disks" / disk["name"]
            mounts.append(f"--volume={source}:/disks/{disk['name']}:{'rw' if disk['writable'] else 'ro'}")
        # Names only: the values are passed in the environment, where no list of processes shows them.
        names = [f"--env={name}" for name in job["env"]]
        options = ["--detach", f"--name={_CONTAINER}", "--privileged", "--net=host", "--entrypoint=/bin/sh"]
        options += [f"--workdir={job['working_dir'] or FOLDERS['workspace']}", *job["options"], *mounts, *names]
        signal_name = job["stop_signal"] or self._config(job["image"]).get("StopSignal")
        command = ["/.gradient/run.sh", *_wrapper_options(FOLDERS["control"], "alone", job, signal_name)]
        done = self._docker("run", *options, job["image"], *command, env=job["env"])
        if done.returncode:
            raise JobFailed("launch_failed", done.stdout.strip())

    def _config(self, image: str) -> dict[str, Any]:
        with contextlib.suppress(ValueError):
            return dict(json.loads(self._docker("image", "inspect", "--format={{json .Config}}", image).stdout) or {})
        return {}

    def running(self) -> bool:
        """Return whether the container is running.

        Raises `OSError`: the engine does not answer; after some minutes the container counts as lost.
        """
        return self._inspect("{{.State.Running}}") == "true"

    def code(self) -> int | None:
        text = ""
        with contextlib.suppress(OSError):
            text = self._inspect("{{.State.ExitCode}}")
        return int(text) if text.isdecimal() else None

    def signal(self, number: int) -> None:
        self._docker("kill", f"--signal={number}", _CONTAINER)

    def pids(self) -> list[int]:
        """Return the processes whose control group is the container's."""
        container, pids = self._inspect("{{.Id}}"), []
        for entry in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                if container and container in entry.read_text():
                    pids.append(int(entry.parent.name))
        return pids

    def run(self, request: ExecRequest) -> ProcessStream:
        """Start a user's command in the container. Raises `ExecRefused`: it cannot be started."""
        with contextlib.suppress(OSError):
            if not self.running():
                raise ExecRefused("The job has just ended.")
        terminal, pid_file = request.terminal, f"session-{request.id}"
        options = ["--interactive", *(["--tty", f"--env=TERM={terminal.kind}"] if terminal else [])]
        command = recorded(request, f"{FOLDERS['control']}/{pid_file}")
        command = [_find_program(), "exec", *options, _CONTAINER, *command]
        return start_command(
            replace(request, command=tuple(command)),
            os.environ,
            "/",
            signal_command=partial(self._signal_session, pid_file),
        )

    def _signal_session(self, pid_file: str, name: str) -> None:
        command = signal_recorded(self._place / "control", pid_file, name)
        if command is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the job may suspend whatever starts in its container
                self._docker("exec", "--detach", _CONTAINER, *command, seconds=_SIGNAL_SECONDS)

    def _inspect(self, what: str) -> str:
        done = self._docker("inspect", f"--format={what}", _CONTAINER)
        output, now = done.stdout.strip(), time.monotonic()
        if done.returncode == 0 or "no such object" in output.lower():
            self.silent_since = None
            return "" if done.returncode else output
        self.silent_since = self.silent_since or now
        if now - self.silent_since < ENGINE_SECONDS:
            raise OSError(f"the container engine does not answer: {output}")
        return ""

    def _docker(
        self, *arguments: str, given: str | None = None, env: dict[str, str] | None = None, seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - no shell is between
            [_find_program(), *arguments],
            input=given,
            env={**(env or {}), **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )


def _find_program() -> str:
    return shutil.which("docker") or "docker"
