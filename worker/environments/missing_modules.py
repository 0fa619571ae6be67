"""Advice about a module that a job's program has not found: it may lie in the job's own workspace."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from core.system.untrusted_folders import opened_beneath, opened_folder, walk
from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.imports import is_of, names_of, remedy_for
from gradient_cli.workspace.dependencies.inline_metadata import has_metadata, read_metadata

_MAX_FOLDERS = 2_000
_MAX_BYTES = 256 * 1024
_CHANGES_FOLDER = re.compile(r"\b(cd|pushd)\s")


def remedy_in(workspace: Path, start: str, command: str, module: str) -> str:
    """Return the advice about a module that is missing in a job.

    `start`: the folder that the command starts in, relative to the workspace. The job's processes may still run, and
    change the workspace meanwhile.
    """
    top, _, rest = module.partition(".")
    scripts: list[str] = []
    for folder, folders, files, handle in _walk(workspace):
        if f"{top}.py" in files or (top in folders and _has_modules(handle, top)):
            return _remedy_for_own(folder, start, command, top, rest)
        scripts += (
            str(folder / name)
            for name in files
            if name.endswith(".py") and is_of(module, names_of(_declared_by(handle, name)))
        )
    if scripts:
        name = os.path.relpath(scripts[0], start)
        return f"{scripts[0]} declares it in its metadata (# /// script): submit with --requirements {name}"
    return f"{remedy_for(module)}, or use a --container that has it"


def _remedy_for_own(folder: PurePosixPath, start: str, command: str, top: str, rest: str) -> str:
    if rest:
        return f"{folder / top} is in the uploaded folder but lacks {rest.partition('.')[0]}: see --include"
    if _CHANGES_FOLDER.search(command):
        path = "$GRADIENT_WORKSPACE_DIR" if str(folder) == "." else f"$GRADIENT_WORKSPACE_DIR/{folder}"
        how = f"begin the program's command with PYTHONPATH={path}"
    else:
        how = f"submit with -e PYTHONPATH={os.path.relpath(folder, start)}"
    return f"{folder / top} is in the uploaded folder, but not on this program's search path for modules: {how}"


def _walk(workspace: Path) -> Iterator[tuple[PurePosixPath, list[str], list[str], int]]:
    """Yield the workspace's folders, those above first, as long as they are few; links are not followed."""
    waiting = [PurePosixPath()]
    with opened_folder(workspace) as top:
        for _ in range(_MAX_FOLDERS):
            if not waiting:
                return
            folder = waiting.pop(0)
            with suppress(OSError), opened_beneath(top, folder.parts) as handle:
                with os.scandir(handle) as entries:
                    kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
                folders = sorted(name for name, is_folder in kinds.items() if is_folder and not name.startswith("."))
                yield folder, folders, sorted(name for name, is_folder in kinds.items() if not is_folder), handle
                waiting += (folder / name for name in folders)


def _has_modules(parent: int, name: str) -> bool:
    with suppress(OSError), opened_beneath(parent, [name]) as folder:
        return any(entry.name.endswith((".py", ".so")) for entry in islice(walk(folder), _MAX_FOLDERS))
    return False


def _declared_by(parent: int, name: str) -> list[str]:
    """Return the requirements in the comments of a script; none of what is no regular file."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        text = file.read(_MAX_BYTES).decode(errors="replace")
    try:
        metadata = read_metadata(text, name) if has_metadata(text) else None
    except UsageError:
        return []
    listed = (metadata or {}).get("dependencies")
    return [str(line) for line in listed] if isinstance(listed, list) else []
