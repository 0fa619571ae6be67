"""Images of containers: which one a name stands for now, and its file for Apptainer, made once by digest."""

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from core.catalogue.registry_images import MAX_ANSWER, Answer, ImageRefused, Registry, RegistryImage, is_local
from core.formatting import MIB
from core.ids import new_id
from core.settings import Settings
from core.system.untrusted_folders import move
from worker.backends.base import LaunchError, LaunchSpec, Progress, UnusedImage
from worker.backends.process.isolated_programs import TooLong, run_here
from worker.backends.slurm.commands import Commands

IMAGE_FILE = "image"  # beside a job's control folder: the name of the image that it uses
_SECONDS = 3600.0  # for pull and conversion
_WAIT_SECONDS = 2.0
_UNUSED_SECONDS = 600.0
_LEVEL = re.compile(r"^[A-Z]+: +", re.MULTILINE)
_REGISTRY_SECONDS = 30.0


def find_image(reference: str, auth: dict[str, str] | None) -> RegistryImage:
    """Look an image up in its registry, which checks the login. Raises `LaunchError`."""
    try:
        return Registry(reference, auth, _read).find()
    except ImageRefused as error:
        raise LaunchError("image_pull", f"{reference}: {error}") from error


def _read(method: str, url: str, headers: Mapping[str, str]) -> Answer:
    """Ask a registry as this host does, by its proxy if it has one."""
    request = Request(url, method=method)  # noqa: S310 - http or https
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    try:
        with urlopen(request, timeout=_REGISTRY_SECONDS) as answer:  # noqa: S310 - the same
            return Answer(answer.status, answer.headers, answer.read(MAX_ANSWER))
    except HTTPError as error:
        error.close()
        return Answer(error.code, error.headers, b"")


class ConvertedImages:
    """They are on the file system that the compute nodes share."""

    def __init__(self, settings: Settings, commands: Commands) -> None:
        self.folder = settings.root / "images" / "slurm"
        self._attempts, self._commands = settings.root / "attempts", commands
        self._max_bytes = settings.slurm.images_mb * MIB
        self._converting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def ensure(
        self, spec: LaunchSpec, program: str, image: RegistryImage, auth: dict[str, str] | None, progress: Progress
    ) -> Path:
        """Return the file of an image, converted now if there is none. Raises `LaunchError`."""
        file, lock = self.folder / f"{image.name}.sif", self._converting[image.name]
        while not lock.acquire(timeout=_WAIT_SECONDS):
            progress("pulling", f"{spec.container}: another job is pulling it")
        new = file.with_name(f"{new_id('new')}.sif")
        try:
            if not file.exists():
                if spec.job_spec.image_pull_policy == "Never":
                    why = "it is not here, and its imagePullPolicy is Never"
                    raise LaunchError("image_pull", f"{spec.container}: {why}")
                file.parent.mkdir(parents=True, exist_ok=True)
                prefix, env = Path(program).name.upper(), self._commands.environment()
                env |= {f"{prefix}_DOCKER_{name.upper()}": value for name, value in (auth or {}).items()}
                env |= {f"{prefix}_NOHTTPS": "true"} if is_local(image.server) else {}
                command = ["nice", program, "--nocolor", "pull", "--disable-cache", str(new), f"docker://{image.name}"]
                _pull(spec, command, env, progress)
                move(new, file)
            os.utime(file)
        except OSError as error:
            raise LaunchError.of(error) from error
        finally:
            new.unlink(missing_ok=True)
            lock.release()
        return file

    def prune(self, *, everything: bool, dry_run: bool) -> list[UnusedImage]:
        """See `ImageBackend.prune_images`."""
        used, images = set(), []
        for file in self._attempts.glob(f"*/{IMAGE_FILE}"):
            with suppress(FileNotFoundError):
                used.add(file.read_text().strip())
        for file in self.folder.glob("**/*.sif"):
            with suppress(FileNotFoundError):
                name, status = str(file.relative_to(self.folder).with_suffix("")), file.stat()
                images.append(UnusedImage(name, status.st_size, status.st_mtime, built=False))
        total, removed = sum(image.bytes for image in images), []
        for image in sorted(images, key=lambda image: image.used_at):
            if not everything and total <= self._max_bytes:
                break
            if image.reference not in used and time.time() - image.used_at >= _UNUSED_SECONDS:
                if not dry_run:
                    (self.folder / f"{image.reference}.sif").unlink(missing_ok=True)
                total -= image.bytes
                removed.append(image)
        return removed


def _pull(spec: LaunchSpec, command: list[str], env: dict[str, str], progress: Progress) -> None:
    def report(line: str) -> None:
        progress("pulling", f"{spec.container}: {_LEVEL.sub('', line)}")

    try:
        code, output = run_here(command, env, _SECONDS, spec.check, report)
    except TooLong as error:
        raise LaunchError("image_pull", f"{spec.container}: {error}") from error
    if code:
        reason = "disk_full" if "no space left on device" in output.lower() else "image_pull"
        why = "; ".join(_LEVEL.sub("", output).split("\n")[-4:]).strip("; ")
        raise LaunchError(reason, f"{spec.container}: {why or f'{command[1]} ended with code {code}'}")
