import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from worker.backends.process.isolated_programs import Limits

_FORMAT = 4  # part of every digest: raise it when environments are made differently
_DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    python: Path
    project_id: str | None = None  # the project whose jobs share it; None: jobs of all projects do
    commands: tuple[tuple[str, ...], ...] = ()  # words of uv that install its packages, one command after the other
    contents: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    given: str = ""
    workspace: Path | None = None  # the workspace that the commands read; None: they read none
    folder: Path | None = None
    # the only attempt that uses it, because it has something of its workspace; None: others share it
    attempt: str | None = None
    copied: tuple[Path, ...] = ()
    # the job's own variables that uv gets: those that decide what is installed are in `contents`, without secrets
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    limits: Limits | None = None  # what making it may take; None: what it needs
    declared: str | None = None  # digest of what the workspace and the job's options declare; None: nothing

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
