"""Jobs in containers: by Apptainer or Singularity where the cluster has it, otherwise by Pyxis."""

import shlex
import shutil
from pathlib import Path
from threading import Lock

from cachetools import TTLCache, cached

from core.settings import Settings
from core.system.filesystem import write_atomically
from worker.backends import base
from worker.backends.base import LOGIN_PATH, WRAPPER, LaunchError, LaunchSpec, Progress
from worker.backends.registry_logins import pull_auth
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.images import IMAGE_FILE, ConvertedImages, find_image
from worker.backends.slurm.submission import ENVIRONMENT_FILE

START_FILE = "container"  # beside the control folder: how a job starts in its container
_SCRIPT = Path(__file__).with_name("container.sh")
_PROGRAMS = ("apptainer", "singularity")
_PYXIS = "pyxis"
_CHECK_SECONDS = 300.0


class Containers:
    def __init__(self, settings: Settings, commands: Commands) -> None:
        self._settings, self._commands = settings.slurm, commands
        self.images = ConvertedImages(settings, commands)

    def find_program(self) -> str | None:
        """Return the program that starts containers: Apptainer, Singularity, or srun with Pyxis; None: none does.

        Raises `LaunchError`: srun does not answer.
        """
        wanted = self._settings.container_program
        names = _PROGRAMS if wanted is None else () if wanted == _PYXIS else (wanted,)
        program = next(filter(None, map(shutil.which, names)), None)
        if program is None and wanted in {None, _PYXIS} and _has_pyxis(self._commands):
            program = self._commands.path("srun")
        return program

    def prepare(self, spec: LaunchSpec, progress: Progress) -> None:
        """Provide a job's image, and write how it starts there. Raises `LaunchError`."""
        program, reference = self.find_program(), spec.container or ""
        if program is None:
            raise LaunchError("option_refused", "this cluster has neither Apptainer nor Singularity nor Pyxis")
        mounts = self._mounts(spec)
        with pull_auth(spec.login, reference) as auth:
            image = find_image(reference, auth)
            if Path(program).name == "srun":
                # Pyxis has the nodes import it; they look the user's password up in enroot's own file.
                user, version = f"{auth['username']}@" if auth else "", image.name.partition("@")[2]
                source = f"docker://{user}{image.server}#{image.repository}@{version}"
            else:
                source = str(self.images.ensure(spec, program, image, auth, progress))
        program_of_start = shlex.join([program, source, str(len(mounts) + 2)])
        # Of several nodes, each sets its own folders.
        lines = [f"{name}=${{{name}:-{shlex.quote(str(getattr(spec, name)))}}}" for name in ("control", "artifacts")]
        folders = f'"$control":{base.CONTROL} "$artifacts":{base.ARTIFACTS}'
        lines.append(
            f'exec {shlex.quote(str(_SCRIPT))} "$control" {program_of_start} {folders} {shlex.join(mounts)} "$@"\n'
        )
        folder = spec.control.parent
        try:
            write_atomically(folder / IMAGE_FILE, f"{image.name}\n".encode(), durable=False)
            write_atomically(folder / START_FILE, "\n".join(lines).encode(), durable=False)
        except OSError as error:
            raise LaunchError.of(error) from error

    def _mounts(self, spec: LaunchSpec) -> list[str]:
        """Return the folders that a container has, each with its path inside."""
        pairs = [
            (spec.workspace, base.WORKSPACE),
            (spec.storage, base.STORAGE),
            (spec.datasets, "/datasets:ro"),  # a link in the storage leads there
            (spec.control.parent / ENVIRONMENT_FILE, "/.gradient/environment:ro"),
            (WRAPPER, "/.gradient/run.sh:ro"),
            (LOGIN_PATH, "/etc/profile.d/00-gradient.sh:ro"),
            *((Path(folder), folder) for folder in self._settings.container_mounts),
        ]
        for source, _ in pairs:
            if set(str(source)) & set(",:"):
                raise LaunchError("launch_failed", f"{source}: a path with a comma or colon cannot be in a container")
        return [f"{source}:{target}" for source, target in pairs]


@cached(TTLCache(8, _CHECK_SECONDS), lock=Lock())
def _has_pyxis(commands: Commands) -> bool:
    try:
        return "--container-image" in commands.run("srun", "--help")
    except SlurmError as error:
        if error.unanswered:
            raise LaunchError("launch_failed", f"It is not known whether srun has Pyxis: {error}") from error
        return False


def image_digest(control: Path) -> dict[str, str]:
    """Return what a job's handle has of its image; nothing if it has none."""
    try:
        return {"image": (control.parent / IMAGE_FILE).read_text().strip()}
    except OSError:
        return {}
