"""Runs one job on a TPU VM, and tells of it in the bucket; a program by itself, with nothing but Python's own library.

Below the attempt's prefix in the bucket it finds `job.json` and `workspace.tar.gz`, and `wish` (`stop` or `kill`) once
the job is to end. It writes `status` (how far it is), `log/OFFSET` and `metrics.jsonl/OFFSET` (what the job wrote, in
parts that are named by where they begin and never replaced), `alive` (a count), and at last `exit`. What the job leaves
in its folder of artifacts goes where its model goes. Begun again, it goes on where it was.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PART_BYTES = 4 * 1024**2
FOLLOWED = ("log", "metrics.jsonl")
_METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
_STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
_CONTAINER = "gradient-job"
_MISSING, _PRESENT = 404, 412
_BLOCK_BYTES = 1024**2
_CALL_SECONDS, _ARTIFACT_SECONDS = 60, 10.0
BEAT_STEPS = 5
"""Steps from one sign of life to the next."""
_FOLDERS = {
    "workspace": "/paperspace",
    "artifacts": "/artifacts",
    "storage": "/storage",
    "control": "/.gradient/control",
}


class Bucket:
    """The objects below a prefix, by the account that the VM acts as."""

    def __init__(self, name: str) -> None:
        self._objects = f"{_STORAGE}/storage/v1/b/{name}/o"
        self._uploads = f"{_STORAGE}/upload/storage/v1/b/{name}/o"
        self._token = ""
        self._until = 0.0

    def get(self, name: str) -> bytes | None:
        """An object's content; None if there is no such object."""
        try:
            with self.open(name) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code == _MISSING:
                return None
            raise

    def open(self, name: str) -> Any:  # noqa: ANN401 - a response of urllib's, whose type it keeps to itself
        """An object to be read."""
        return self._ask("GET", f"{self._objects}/{urllib.parse.quote(name, safe='')}?alt=media")

    def put(self, name: str, content: Any, size: int, *, new: bool = False) -> bool:  # noqa: ANN401 - bytes or a file
        """Write an object; False if `new` was asked for and it is there."""
        query = urllib.parse.urlencode(
            {"uploadType": "media", "name": name} | ({"ifGenerationMatch": 0} if new else {})
        )
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        try:
            self._ask("POST", f"{self._uploads}?{query}", content, headers).close()
        except urllib.error.HTTPError as error:
            if new and error.code == _PRESENT:
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._ask("DELETE", f"{self._objects}/{urllib.parse.quote(name, safe='')}").close()
        except urllib.error.HTTPError as error:
            if error.code != _MISSING:
                raise

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names below a prefix, and how many bytes each has."""
        found: dict[str, int] = {}
        token = ""
        while True:
            query = urllib.parse.urlencode({"prefix": prefix} | ({"pageToken": token} if token else {}))
            with self._ask("GET", f"{self._objects}?{query}") as answer:
                page = json.load(answer)
            found |= {one["name"]: int(one["size"]) for one in page.get("items", ())}
            token = page.get("nextPageToken", "")
            if not token:
                return found

    def _ask(self, method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - as above
        given = {"Authorization": f"Bearer {self._bearer()}"} | (headers or {})
        request = urllib.request.Request(url, data=body, headers=given, method=method)  # noqa: S310 - Google's, or a simulator's
        return urllib.request.urlopen(request, timeout=_CALL_SECONDS)  # noqa: S310 - the same

    def _bearer(self) -> str:
        if time.monotonic() >= self._until:
            url = f"http://{_METADATA}/computeMetadata/v1/instance/service-accounts/default/token"
            request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as answer:  # noqa: S310 - the same
                made = json.load(answer)
            self._token = made["access_token"]
            self._until = time.monotonic() + max(0.0, float(made["expires_in"]) - 60)
        return self._token


class JobFailed(Exception):
    """The job cannot be started.

    Args:
        reason: What the service calls it.
        detail: For the user.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Process:
    """The job as a process of this machine: where machines are simulated, and have no engine of their own."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def prepare(self, job: dict[str, Any]) -> None:
        """Nothing has to be fetched for it."""

    def start(self, job: dict[str, Any]) -> None:
        """Start the wrapper in a session of its own."""
        folders = {f"GRADIENT_{name.upper()}_DIR": str(self._place / name) for name in _FOLDERS}
        metrics = {"GRADIENT_METRICS_FILE": str(self._place / "control" / "metrics.jsonl")}
        places = {"PS_JOBSPACE": str(self._place / "workspace"), "PS_MODEL_PATH": str(self._place / "artifacts")}
        subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [str(self._place / "run.sh"), str(self._place / "control")],
            cwd=self._place / "workspace" / (job["folder"] or "."),
            env=dict(os.environ) | job["env"] | folders | metrics | places,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def running(self) -> bool:
        """Whether the wrapper is alive."""
        leader = self._leader()
        return leader is not None and leader in set(self._members(leader))

    def code(self) -> int | None:
        """How it ended where the wrapper left no word: not known."""
        return None

    def signal(self, number: int) -> None:
        """Signal all of it but the wrapper, which tells how it ended."""
        leader = self._leader()
        for pid in self._members(leader) if leader is not None else ():
            if pid != leader:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _leader(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self._place / "control" / "started").read_text())
        return None

    def _members(self, leader: int) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                state, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
                if state != "Z" and int(rest[2]) == leader:
                    yield int(entry.name)


class Container:
    """The job in its container, which has the machine's devices and network."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def prepare(self, job: dict[str, Any]) -> None:
        """Have the image."""
        if shutil.which("docker") is None:
            raise JobFailed("launch_failed", "there is no Docker on the TPU VM, and it could not be installed")
        image, login = job["image"], job["login"]
        if job["pull"] != "Always" and self._docker("image", "inspect", image).returncode == 0:
            return
        if login is not None:
            sign_in = ("login", "--username", login["username"], "--password-stdin", login["host"])
            done = self._docker(*sign_in, given=login["password"])
            if done.returncode:
                raise JobFailed("image_pull", f"{login['host']} takes no sign-in of {login['username']}: {done.stdout}")
        done = self._docker("pull", "--quiet", image)
        if done.returncode:
            raise JobFailed("image_pull", f"{image}: {done.stdout.strip()}")

    def start(self, job: dict[str, Any]) -> None:
        """Start the container, which may touch the TPU's devices (that takes every right on the machine)."""
        mounts = [f"--volume={self._place / name}:{inside}" for name, inside in _FOLDERS.items()]
        mounts.append(f"--volume={self._place / 'run.sh'}:/.gradient/run.sh:ro")
        # Names alone: the values come by the environment, where no list of processes shows them.
        names = [f"--env={name}" for name in job["env"]]
        options = ["--detach", f"--name={_CONTAINER}", "--privileged", "--net=host", "--entrypoint=/bin/sh"]
        options += [f"--workdir={job['working_dir'] or _FOLDERS['workspace']}", *job["options"], *mounts, *names]
        command = ["/.gradient/run.sh", _FOLDERS["control"], "alone"]
        self._docker("rm", "--force", _CONTAINER)
        done = self._docker("run", *options, job["image"], *command, env=job["env"])
        if done.returncode:
            raise JobFailed("launch_failed", done.stdout.strip())

    def running(self) -> bool:
        """Whether the container is."""
        return self._told("{{.State.Running}}") == "true"

    def code(self) -> int | None:
        """What the engine says of its end."""
        told = self._told("{{.State.ExitCode}}")
        return int(told) if told.isdecimal() else None

    def signal(self, number: int) -> None:
        """Signal the wrapper, which passes it on."""
        self._docker("kill", f"--signal={number}", _CONTAINER)

    def _told(self, what: str) -> str:
        return self._docker("inspect", f"--format={what}", _CONTAINER).stdout.strip()

    def _docker(
        self, *arguments: str, given: str | None = None, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        program = shutil.which("docker") or "docker"
        return subprocess.run(  # noqa: S603 - no shell is between
            [program, *arguments],
            input=given,
            env={**(env or {}), **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


class Agent:
    """See the module."""

    def __init__(self, place: Path) -> None:
        settings = json.loads((place / "vm.json").read_text())
        self._place = place
        self._control = place / "control"
        self._prefix: str = settings["prefix"]
        self._model: str = settings["model"]
        self._seconds: float = settings["seconds"]
        self._bucket = Bucket(settings["bucket"])
        plain = os.environ.get("GRADIENT_VM_RUN", "docker") == "process"
        self._runner: Any = Process(place) if plain else Container(place)
        self._sent: dict[str, tuple[int, int]] = {}
        self._at: dict[str, int] = {}
        self._obeyed = b""

    def run(self) -> None:
        """The whole job, from wherever it is."""
        if self._bucket.get(self._prefix + "exit") is not None:
            return
        if not (self._control / "started").exists():
            try:
                self._start()
            except JobFailed as error:
                self._say("failed", error.reason, error.detail)
                return
        self._say("running")
        reason = self._follow()
        self._put("exit", json.dumps({"code": self._code(), "reason": reason}).encode())

    def _start(self) -> None:
        self._say("here")
        job = self._job()
        for name in _FOLDERS:
            shutil.rmtree(self._place / name, ignore_errors=True)
            (self._place / name).mkdir()
            (self._place / name).chmod(0o777)  # the container's user may be any
        packed = self._place / "workspace.tar.gz"
        with self._bucket.open(self._prefix + "workspace.tar.gz") as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(packed) as archive:
            archive.extractall(self._place / "workspace")  # noqa: S202 - the service packed it
        self._say("pulling", detail=job["image"])
        self._runner.prepare(job)
        if self._bucket.get(self._prefix + "wish") is not None:
            raise JobFailed("stopped_by_user", "before it was started")
        (self._control / "command").write_text(job["command"] + "\n")
        self._runner.start(job)
        until = time.monotonic() + _CALL_SECONDS
        while not (self._control / "started").exists():
            if time.monotonic() >= until:
                raise JobFailed("launch_failed", "the command did not begin")
            time.sleep(0.05)

    def _job(self) -> dict[str, Any]:
        """What is to run. It may hold secrets: it does not stay in the bucket."""
        kept = self._place / "job.json"
        while not kept.exists():
            content = self._bucket.get(self._prefix + "job.json")
            if content is None:
                time.sleep(self._seconds)
                continue
            new = kept.with_suffix(".new")
            new.touch(0o600)
            new.write_bytes(content)
            new.replace(kept)
        self._bucket.remove(self._prefix + "job.json")
        job: dict[str, Any] = json.loads(kept.read_text())
        return job

    def _follow(self) -> str | None:
        """Tell of the job until it has ended; why, where its exit code does not say it."""
        beats = itertools.count()
        alive = artifacts = 0.0
        while True:
            current = time.monotonic()
            try:
                # Looked at first: what was written before the end is sent after this.
                over = not self._runner.running()
                for name in FOLLOWED:
                    self._ship(name)
                if over or current - artifacts >= _ARTIFACT_SECONDS:
                    artifacts = current
                    self._send_artifacts()
                if over:
                    return None if self._code() is not None else "vanished"
                if current - alive >= BEAT_STEPS * self._seconds:
                    alive = current
                    self._put("alive", str(next(beats)).encode())
                self._obey()
            except OSError as error:  # the network, or the metadata server: the job runs on, and is told of later
                sys.stderr.write(f"not told of the job: {error}\n")
            time.sleep(self._seconds)

    def _code(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self._control / "exit").read_text())
        code: int | None = self._runner.code()
        return code

    def _obey(self) -> None:
        wish = self._bucket.get(self._prefix + "wish") or b""
        if wish != self._obeyed:
            (self._control / "stopping").write_text("asked to end\n")
            self._runner.signal(signal.SIGKILL if wish == b"kill" else signal.SIGTERM)
            self._obeyed = wish

    def _ship(self, name: str) -> None:
        """Send what is new in a file that the job writes, which may be anything."""
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
                    self._at[name] = at + len(data)
                else:  # sent, and its answer was lost
                    del self._at[name]
        finally:
            os.close(descriptor)

    def _position(self, name: str) -> int:
        """Bytes of a file that are sent: the bucket knows it, whoever of us sent them."""
        if name not in self._at:
            parts = self._bucket.sizes(f"{self._prefix}{name}/")
            self._at[name] = max((int(part.rpartition("/")[2]) + size for part, size in parts.items()), default=0)
        return self._at[name]

    def _send_artifacts(self) -> None:
        """Send what is new or changed of what the job leaves: regular files, found without following a link."""
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

    def _say(self, phase: str, reason: str | None = None, detail: str | None = None) -> None:
        self._put("status", json.dumps({"phase": phase, "reason": reason, "detail": detail}).encode())

    def _put(self, name: str, content: bytes) -> None:
        self._bucket.put(self._prefix + name, content, len(content))


def _blocks(file: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401 - a binary file
    """As much of a file as was announced, whatever it grows to meanwhile."""
    while size:
        block: bytes = file.read(min(size, _BLOCK_BYTES))
        if not block:
            raise OSError("the file became shorter while it was sent")
        size -= len(block)
        yield block


if __name__ == "__main__":
    Agent(Path(sys.argv[1])).run()
