"""Images of registries as files for Apptainer, each converted once: in a folder named by its digest."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from core.formatting import MIB
from core.settings import Settings
from core.system.untrusted_folders import move, remove_tree
from worker.backends.base import LaunchError, LaunchSpec, Progress, UnusedImage
from worker.backends.slurm.registry import RegistryImage

IMAGE_FILE = "image"  # beside a job's control folder: the name of the image that it uses
_SIF, _NAME = "image.sif", "name"
_NEW = ".new-"
_SECONDS = 3600.0  # for pull and conversion
_WAIT_SECONDS = 2.0
_UNUSED_SECONDS = 600.0
_LINE_BYTES = 2000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_SPACE = "no space left on device"


class ConvertedImages:
    """They are on the file system that the compute nodes share."""

    def __init__(self, settings: Settings, *, seconds: float = _SECONDS) -> None:
        self.folder = settings.root / "images" / "slurm"
        self._attempts = settings.root / "attempts"
        self._max_bytes = settings.slurm.images_mb * MIB
        self._seconds = seconds
        self._converting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def ensure(
        self, spec: LaunchSpec, program: str, image: RegistryImage, auth: dict[str, str] | None, progress: Progress
    ) -> Path:
        """Return the file of an image, converted now if there is none. Raises `LaunchError`."""
        file, lock = self.folder / image.digest.rpartition(":")[2] / _SIF, self._converting[image.digest]
        while not lock.acquire(timeout=_WAIT_SECONDS):
            progress("pulling", f"{spec.container}: another job is pulling it")
        try:
            if not file.exists():
                if spec.job_spec.image_pull_policy == "Never":
                    raise LaunchError(
                        "image_pull", f"{spec.container}: it is not here, and its imagePullPolicy is Never"
                    )
                self._convert(spec.container or "", program, image, auth, file, progress)
            os.utime(file)
        except OSError as error:
            raise LaunchError.of(error) from error
        finally:
            lock.release()
        return file

    def _convert(
        self,
        reference: str,
        program: str,
        image: RegistryImage,
        auth: dict[str, str] | None,
        file: Path,
        progress: Progress,
    ) -> None:
        """Pull an image into a folder that then gets its name, unless another worker was faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.folder))
        prefix = Path(program).name.upper()
        env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
        env |= {f"{prefix}_DOCKER_{name.upper()}": value for name, value in (auth or {}).items()}
        env |= {f"{prefix}_NOHTTPS": "true"} if image.in_clear else {}
        try:
            command = ["nice", program, "pull", "--disable-cache", str(new / _SIF), f"docker://{image.name}"]
            self._run(reference, command, env, progress)
            (new / _NAME).write_text(f"{image.name}\n")
            try:
                move(new, file.parent)
            except OSError:
                if not file.exists():
                    raise
        finally:
            remove_tree(new)

    def _run(self, reference: str, command: list[str], env: dict[str, str], progress: Progress) -> None:
        until, done = time.monotonic() + self._seconds, None
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(  # noqa: S603 - the cluster's own program
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )
            try:
                while done is None:
                    lines = _last_lines(output.fileno())
                    progress("pulling", f"{reference}: {lines[-1]}" if lines else reference)
                    if time.monotonic() > until:
                        raise LaunchError(
                            "image_pull", f"{reference}: the pull took more than {self._seconds:.0f} seconds"
                        )
                    with suppress(subprocess.TimeoutExpired):
                        done = process.wait(_WAIT_SECONDS)
            finally:
                with suppress(ProcessLookupError):  # also what it left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            text = "; ".join(_last_lines(output.fileno())[-3:])
        if done:
            reason = "disk_full" if _NO_SPACE in text.lower() else "image_pull"
            raise LaunchError(reason, f"{reference}: {text or f'{command[1]} ended with code {done}'}")

    def prune(self, *, everything: bool, dry_run: bool) -> list[UnusedImage]:
        """See `ImageBackend.prune_images`."""
        folders = {folder: _describe(folder) for folder in self._folders()}
        total = sum(image.bytes for image in folders.values())
        used = {_read(file).rpartition(":")[2] for file in self._attempts.glob(f"*/{IMAGE_FILE}")}
        removed = []
        for folder, image in sorted(folders.items(), key=lambda item: item[1].used_at):
            if not everything and total <= self._max_bytes:
                break
            if folder.name not in used and time.time() - image.used_at >= _UNUSED_SECONDS:
                if not dry_run:
                    with suppress(OSError):
                        remove_tree(folder)
                total -= image.bytes
                removed.append(image)
        return removed

    def _folders(self) -> Iterator[Path]:
        """Yield the folders of images, and delete what a worker left that died while it pulled one."""
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if not folder.name.startswith("."):
                yield folder
                continue
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > 2 * self._seconds:
                    remove_tree(folder)


def _describe(folder: Path) -> UnusedImage:
    try:
        status = (folder / _SIF).stat()
    except OSError:  # another worker has removed it
        return UnusedImage(folder.name, 0, 0.0, built=False)
    return UnusedImage(_read(folder / _NAME), status.st_size, status.st_mtime, built=False)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _last_lines(descriptor: int) -> list[str]:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _LINE_BYTES, max(0, size - _LINE_BYTES)).decode(errors="replace")
    lines = (_COLOUR.sub("", line).partition(":") for line in text.splitlines())
    return [(text or level).strip() for level, _, text in lines if level.strip()]
