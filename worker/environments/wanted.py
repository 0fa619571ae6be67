"""Contents of environments, and who may share them."""

import hashlib
import json
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FORMAT = 4
"""Part of every digest: raise it when environments are made differently."""
_DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Contents of an environment.

    Attributes:
        project_id: The project whose jobs share it; None: jobs of all projects do.
        commands: Words of uv that install its packages, one command after the other.
        workspace: The workspace that the commands read; None: they read none.
        attempt: The only attempt that uses it, because it has something of its workspace; None: others share it.
        declared: Digest of what the workspace and the job's options declare; None: nothing.
    """

    python: Path
    project_id: str | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    contents: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    given: str = ""
    workspace: Path | None = None
    folder: Path | None = None
    attempt: str | None = None
    copied: tuple[Path, ...] = ()
    declared: str | None = None

    @property
    def place(self) -> str:
        """Name of the folder that it is in."""
        return self.project_id or _DEFAULT

    @property
    def digest(self) -> str:
        machine = [platform.machine(), *platform.libc_ver()]
        copied = [_digest_of_folder(folder) for folder in self.copied]
        contents = [_FORMAT, str(self.python), machine, self.commands, self.contents, self.given, self.attempt, copied]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]


@cache
def _digest_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
