"""Finds what a workspace declares as its requirements; uv reads them, where the job runs.

The first of these that is there counts, in the folder that the command starts in, then in those above it up to the
workspace: the metadata of the script that the command runs (PEP 723), requirements.txt, pyproject.toml (with uv.lock),
setup.py, Pipfile.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradient_cli.text import decode
from worker.environments.inline_metadata import invalid, read_metadata, script_of

_CONDA_FILES = ("environment.yml", "environment.yaml")
_MAX_BYTES = 16 * 1024**2
"""A large uv.lock has a few."""
_MAX_FILES = 100
INSTALL = ("pip", "install", "--strict", "--index-strategy", "unsafe-best-match")
"""With pip's own rule for several indexes, which requirements files are written for."""
_EDITABLE = (*INSTALL, "--editable", ".")
_SYNC = ("sync", "--frozen", "--no-default-groups")
_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S.*)\Z")
_REMOTE = re.compile(r"-|[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[|[<>=!~;,(@\s]|\Z)")
"""A line that names a package or an option."""
_LOCAL = re.compile(r"-e\b|--editable|(^|[\s=@])(file:|\.{0,2}/|\.($|\[|\s))|\$\{", re.MULTILINE)
"""Something in a line that names a folder, a file or a variable."""
_LOCKED_FOLDER = re.compile(r"source = \{ (editable|directory|path) = ")
_SOURCE_FOLDER = re.compile(r"\b(path|workspace)\s*=")


@dataclass(frozen=True, slots=True)
class Declared:
    """Requirements that a workspace declares.

    Attributes:
        commands: Words of uv, one command after the other.
        local: Whether something of the workspace itself is installed, so that no other job can share it.
        python: The declared versions of Python, as a version specifier; None: any.
    """

    source: str
    folder: Path
    commands: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]
    contents: tuple[str, ...]
    local: bool = False
    python: str | None = None


def find_declared(workspace: Path, folder: Path, command: str) -> Declared | None:
    """Find the requirements of a job.

    Returns:
        None if nothing is declared.

    Raises:
        LaunchError: What is declared cannot be used.
    """
    try:
        return _Finder(workspace.resolve()).find(folder.resolve(), command)
    except (OSError, RuntimeError, ValueError) as error:  # a link that leads to itself, values nested too deeply, …
        raise invalid("requirements", f"these files cannot be read: {error}.") from error


class _Finder:
    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    def find(self, folder: Path, command: str) -> Declared | None:
        script = script_of(command)
        if script is not None and (text := self._read(folder / script)) is not None:
            found = _read_script(folder / script, text)
            if found is not None:
                return found
        above = [one for one in (folder, *folder.parents) if one.is_relative_to(self._workspace)]
        for one in above:
            found = self._read_requirements(one) or self._read_project(one)
            if found is not None:
                return found
        for name in _CONDA_FILES:
            if any((one / name).is_file() for one in above):
                raise invalid(
                    name,
                    "this file is for conda, which is not used here. List the job's packages in requirements.txt, or "
                    "run the job in a container that has them, on a server with containers.",
                )
        return None

    def _read(self, path: Path) -> str | None:
        """Return the text of a file of the workspace; None if there is none."""
        found = path.resolve()
        if not found.is_relative_to(self._workspace) or not found.is_file():
            return None
        with found.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise invalid(path.name, f"this file has more than {_MAX_BYTES:,} bytes.")
        return decode(data, "backslashreplace")

    def _read_requirements(self, folder: Path) -> Declared | None:
        file = folder / "requirements.txt"
        texts, local = self._follow(file)
        if not any(_lines(text) for text in texts):
            return None
        command = (*INSTALL, "--requirements", file.name)
        return Declared(file.name, folder, (command,), tuple(_lines(texts[0])), tuple(texts), local)

    def _follow(self, file: Path) -> tuple[list[str], bool]:
        """Return the texts of a file and of those that it includes, and whether a line may name something local."""
        waiting, seen, texts, local = [file], set[Path](), list[str](), False
        while waiting and len(seen) < _MAX_FILES:
            one = waiting.pop()
            if one in seen or (text := self._read(one)) is None:
                local = local or (one not in seen and one != file)
                continue
            seen.add(one)
            texts.append(text)
            for line in _lines(text):
                if included := _INCLUDE.match(line):
                    waiting.append(one.parent / included[1].strip("\"'"))
                else:
                    local = local or not _REMOTE.match(line) or _LOCAL.search(line) is not None
        return texts, local or bool(waiting)

    def _read_project(self, folder: Path) -> Declared | None:
        text, setup = self._read(folder / "pyproject.toml"), self._read(folder / "setup.py")
        content = _parse(text, "pyproject.toml") if text is not None else {}
        project, tools = _table(content, "project"), _table(content, "tool")
        python = project.get("requires-python")
        if not (python is None or isinstance(python, str)):
            raise invalid("pyproject.toml", "requires-python is not a string.")
        listed = project.get("dependencies")
        lines = tuple(map(str, listed)) if isinstance(listed, list) else (".",)
        lock = self._read(folder / "uv.lock")
        if text is not None and project and lock is not None:
            local = _LOCKED_FOLDER.search(lock) is not None
            return Declared("uv.lock", folder, (_SYNC,), lines, (text, lock), local, python)
        if text is not None and ((project and "build-system" in content) or "poetry" in tools):
            return Declared("pyproject.toml", folder, (_EDITABLE,), lines, (text,), local=True, python=python)
        if text is not None and (listed or python):
            command = (*INSTALL, "--requirements", "pyproject.toml")
            local = _SOURCE_FOLDER.search(text) is not None
            return Declared("pyproject.toml", folder, (command,), lines, (text,), local, python)
        if setup is not None:
            return Declared("setup.py", folder, (_EDITABLE,), (".",), (setup,), local=True)
        return self._read_pipfile(folder)

    def _read_pipfile(self, folder: Path) -> Declared | None:
        text = self._read(folder / "Pipfile")
        packages = _table(_parse(text, "Pipfile"), "packages") if text is not None else {}
        if not packages or text is None:
            return None
        lines = tuple(_requirement(name, wanted) for name, wanted in packages.items())
        local = any(isinstance(wanted, dict) and "path" in wanted for wanted in packages.values())
        return Declared("Pipfile", folder, ((*INSTALL, "--", *lines),), lines, (text,), local)


def _read_script(path: Path, text: str) -> Declared | None:
    metadata = read_metadata(text, path.name)
    if metadata is None:
        return None
    python = metadata.get("requires-python")
    if not (python is None or isinstance(python, str)):
        raise invalid(path.name, "requires-python is not a string.")
    table = str(metadata)
    command = (*INSTALL, "--requirements", path.name)
    listed = metadata.get("dependencies")
    lines = tuple(map(str, listed)) if isinstance(listed, list) else ()
    return Declared(path.name, path.parent, (command,), lines, (table,), "path'" in table or "file:" in table, python)


def _requirement(name: str, wanted: object) -> str:
    if not isinstance(wanted, dict):
        return name if wanted == "*" else f"{name}{wanted}"
    extras = f"[{','.join(map(str, wanted['extras']))}]" if wanted.get("extras") else ""
    if "git" in wanted:
        return f"{name}{extras} @ git+{wanted['git']}" + (f"@{wanted['ref']}" if "ref" in wanted else "")
    if "path" in wanted:
        return f"{name}{extras} @ {wanted['path']}"
    version = wanted.get("version", "*")
    markers = f" ; {wanted['markers']}" if "markers" in wanted else ""
    return f"{name}{extras}{'' if version == '*' else version}{markers}"


def _lines(text: str) -> list[str]:
    """Return the lines of a requirements file: without comments, continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for one in joined.splitlines() if (line := re.sub(r"(^|\s)#.*$", "", one).strip())]


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for nested values
        raise invalid(source, f"not valid TOML: {error}.") from error


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name, {})
    return value if isinstance(value, dict) else {}
