"""Finds what a folder, and the options of a job, declare as its requirements; uv reads them, where the job runs.

The first of these that is there counts, in the folder that the command starts in, then in those above it up to the
workspace: the metadata of the script that the command runs (PEP 723), requirements.txt, pyproject.toml (with uv.lock),
setup.py, Pipfile; then environment.yml. An option names another file in their place, or adds packages.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from gradient_cli import TYPE_CHECKING
from gradient_cli.text import decode, parse_toml
from gradient_cli.workspace.dependencies.imports import ProgramImports, distributions_of
from gradient_cli.workspace.dependencies.inline_metadata import invalid, read_metadata, script_of
from gradient_cli.workspace.dependencies.requirement_tables import lines_of, python_of, split_conda

if TYPE_CHECKING:
    from typing import Any

AUTO = "auto"  # among packages: those of the modules that the program imports
_CONDA_FILES = ("environment.yml", "environment.yaml")
_MAX_BYTES = 16 * 1024**2  # a large uv.lock has a few
_MAX_FILES = 100
_PROJECT_FILES = {"pyproject.toml", "uv.lock", "setup.py", "setup.cfg", "Pipfile"}
INSTALL = ("pip", "install", "--strict", "--index-strategy", "unsafe-best-match")
"""With pip's own rule for several indexes, which requirements files are written for."""
_SYNC = ("sync", "--frozen", "--no-default-groups")
_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S.*)\Z")
_REMOTE = re.compile(r"-|[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[|[<>=!~;,(@\s]|\Z)")
"""A line that names a package or an option."""
_LOCAL = re.compile(r"-e\b|--editable|(^|[\s=@])(file:|\.{0,2}/|\.($|\[|\s))|\$\{", re.MULTILINE)
"""Something in a line that names a folder, a file or a variable."""
_LOCKED_FOLDER = re.compile(r"source = \{ (editable|directory|path) = ")
_LOCKED = re.compile(r'(?m)^name = "(.+)"')
_SOURCE_FOLDER = re.compile(r"\b(path|workspace)\s*=")


class RequirementOptions(NamedTuple):
    # lines of a requirements.txt that are added; `auto` stands for what the program imports
    packages: tuple[str, ...] = ()
    # path of the file in the workspace that declares the others, in place of those that are found
    file: str | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # names of distributions that are added if the program imports them, where only packages are asked for
    offered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    source: str
    folder: Path
    lines: tuple[str, ...]
    contents: tuple[str, ...]
    words: tuple[str, ...] = ()  # words of `uv pip install` that name the requirements
    given: tuple[str, ...] = ()  # lines of a requirements.txt that are installed with them
    sync: tuple[str, ...] = ()  # words of another command of uv that comes first
    local: bool = False  # whether something of the workspace itself is installed, so that no other job can share it
    python: str | None = None  # the declared versions of Python, as a version specifier; None: any
    left_out: tuple[str, ...] = ()  # requirements that are not installed

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Words of uv, one command after the other, of which the last has the given lines as its input."""
        words = (*self.words, *(("--requirements", "-") if self.given else ()))
        return tuple(filter(None, (self.sync, (*INSTALL, *words) if words else ())))

    def names_module(self, module: str) -> bool:
        named = {*_names(self.lines), *(one for text in self.contents for one in _LOCKED.findall(text))}
        return not set(map(_normal, distributions_of(module) or (module,))).isdisjoint(map(_normal, named))

    @property
    def digest(self) -> str:
        """Digest of all that decides what is installed, but for the machine."""
        return sha256(json.dumps([self.commands, self.contents, self.given]).encode()).hexdigest()


def find_declared(
    workspace: Path,
    folder: Path,
    command: str,
    requested: RequirementOptions | None = None,
    programs: ProgramImports | None = None,
) -> Declared | None:
    """Find the requirements of a job.

    `programs`: the command's, if they were read already. Returns none if nothing is declared.
    """
    try:
        finder = _Finder(workspace.resolve(), requested or RequirementOptions(), programs)
        return finder.find(folder.resolve(), command)
    except (OSError, RuntimeError, ValueError) as error:  # a link that leads to itself, values nested too deeply, …
        raise invalid("requirements", f"these files cannot be read: {error}.") from error


def read_lines(path: str) -> list[str]:
    """Return the lines of a requirements file and of those that it includes, for a job that does not have the file."""
    lines: list[str] = []
    try:
        with open(path, "rb") as file:
            found = _lines(decode(file.read()))
        for line in found:
            included = _INCLUDE.match(line)
            if included and line.startswith("-r"):
                lines += read_lines(os.path.join(os.path.dirname(path), included[1].strip("\"'")))
            elif included or _may_be_local(line):
                raise invalid(path, f"{line!r} names something outside of the workspace. Copy it into the folder.")
            else:
                lines.append(line)
    except (OSError, UnicodeDecodeError, RecursionError) as error:  # the last for files that include one another
        raise invalid(path, f"cannot be read: {error}.") from error
    return lines


class _Finder:
    def __init__(self, workspace: Path, requested: RequirementOptions, programs: ProgramImports | None) -> None:
        self._workspace = workspace
        self._programs = programs
        self._requested = requested
        self._of_project = bool(requested.extras or requested.groups)

    def find(self, folder: Path, command: str) -> Declared | None:
        found = self._read_named(self._requested.file) if self._requested.file else self._search(folder, command)
        if found is None and self._of_project:
            raise invalid("pyproject.toml", "extras and groups were asked for, but no pyproject.toml was found.")
        packages = self._added(found, folder, command)
        if not packages:
            return found
        local = any(_INCLUDE.match(one) or _may_be_local(one) for one in packages)
        if found is None:
            return Declared("--with", folder, packages, (), given=packages, local=local)
        return replace(
            found,
            source=f"{found.source} and --with",
            lines=(*found.lines, *packages),
            given=(*found.given, *packages),
            local=found.local or local,
        )

    def _added(self, found: Declared | None, folder: Path, command: str) -> tuple[str, ...]:
        named = tuple(one for one in self._requested.packages if one != AUTO)
        everything = AUTO in self._requested.packages
        if not everything and (found is not None or not named):
            return named
        added = Declared("", folder, named, ())
        new: set[str] = set()
        for module in (self._programs or ProgramImports(self._workspace, folder, command)).imports:
            names = distributions_of(module)
            offered = (one for one in names if one in self._requested.offered)
            usual = next(offered, names[0] if names and everything else None)
            if usual and not added.names_module(module) and not (found and found.names_module(module)):
                new.add(usual)
        return (*named, *sorted(new))

    def _search(self, folder: Path, command: str) -> Declared | None:
        script = script_of(command)
        if script is not None and not self._of_project and (text := self._read(folder / script)) is not None:
            found = _read_script(folder / script, text)
            if found is not None:
                return found
        above = list(takewhile(lambda one: one.is_relative_to(self._workspace), (folder, *folder.parents)))
        for one in above:
            found = None if self._of_project else self._read_requirements(one / "requirements.txt")
            found = found or self._read_project(one)
            if found is not None:
                return found
        conda = next((one / name for one in above for name in _CONDA_FILES if (one / name).is_file()), None)
        return None if conda is None else self._read_conda(conda)

    def _read_named(self, name: str) -> Declared | None:
        path = Path(os.path.normpath(self._workspace / name))
        text = self._read(path)
        if text is None:
            raise invalid(name, "there is no such file in the workspace. Name one of it; see --include, too.")
        if path.suffix in {".yml", ".yaml"}:
            return self._read_conda(path)
        if path.name in _PROJECT_FILES:
            return self._read_project(path.parent)
        if path.suffix == ".py" and (found := _read_script(path, text)):
            return found
        if self._of_project:
            raise invalid(name, "it has no extras and no groups, which are those of a pyproject.toml.")
        return self._read_requirements(path)

    def _read(self, path: Path) -> str | None:
        try:
            os.lstat(path)  # most are not there, and to resolve a path takes much longer
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = path.resolve()
        if not found.is_relative_to(self._workspace) or not found.is_file():
            return None
        with found.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise invalid(path.name, f"this file has more than {_MAX_BYTES:,} bytes.")
        return decode(data, "backslashreplace")

    def _read_requirements(self, file: Path) -> Declared | None:
        texts, local = self._follow(file)
        lines = tuple(line for text in texts for line in _lines(text) if not _INCLUDE.match(line))
        if not any(_lines(text) for text in texts):
            return None
        return Declared(file.name, file.parent, lines, tuple(texts), ("--requirements", file.name), local=local)

    def _follow(self, file: Path) -> tuple[list[str], bool]:
        """Return the texts of a file and of those that it includes, and whether a line may name something local."""
        waiting, local = [file], False
        texts: list[str] = []
        seen: set[Path] = set()
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
                    local = local or _may_be_local(line)
        return texts, local or bool(waiting)

    def _read_project(self, folder: Path) -> Declared | None:
        text = self._read(folder / "pyproject.toml")
        content = _parse(text, "pyproject.toml") if text is not None else {}
        project, poetry = _table(content, "project"), _table(content, "tool", "poetry")
        setups = {name: found for name in ("setup.py", "setup.cfg") if (found := self._read(folder / name)) is not None}
        built = "build-system" in content and bool(project or poetry or setups)
        unbuilt = poetry.get("package-mode") is False or not built
        python = project.get("requires-python") or python_of(_table(poetry, "dependencies"))
        if not (python is None or isinstance(python, str)):
            raise invalid("pyproject.toml", "requires-python is not a string.")
        listed = project.get("dependencies")
        lines = tuple(map(str, listed)) if isinstance(listed, list) else ()
        lock = self._read(folder / "uv.lock")
        if text is not None and project and lock is not None:
            local = _LOCKED_FOLDER.search(lock) is not None
            sync = (*_SYNC, *self._options())
            return Declared("uv.lock", folder, lines or (".",), (text, lock), sync=sync, local=local, python=python)
        if text is not None and poetry and unbuilt and not project:
            return self._read_poetry(folder, text, poetry, python)
        if text is not None and built and not (poetry and unbuilt):
            self._check_extras(content)
            return self._editable("pyproject.toml", folder, lines or (".",), (text,), python)
        if text is not None and (listed or python or self._of_project):
            words = ("--requirements", "pyproject.toml", *self._options())
            local = _SOURCE_FOLDER.search(text) is not None
            return Declared("pyproject.toml", folder, lines, (text,), words, local=local, python=python)
        if setups:
            return self._editable(next(iter(setups)), folder, (".",), tuple(setups.values()), None)
        return self._read_pipfile(folder)

    def _options(self) -> list[str]:
        extras = [word for extra in self._requested.extras for word in ("--extra", extra)]
        return [*extras, *(word for group in self._requested.groups for word in ("--group", group))]

    def _editable(
        self, source: str, folder: Path, lines: tuple[str, ...], contents: tuple[str, ...], python: str | None
    ) -> Declared:
        given = _poetry_groups(_table(_parse(contents[0], source), "tool", "poetry"), self._requested.groups)
        groups = [] if given else [word for group in self._requested.groups for word in ("--group", group)]
        extras = f"[{','.join(self._requested.extras)}]" if self._requested.extras else ""
        words = ("--editable", f".{extras}", *groups)
        return Declared(source, folder, lines, contents, words, tuple(given), local=True, python=python)

    def _check_extras(self, content: dict[str, Any]) -> None:
        """Refuse an extra that the project does not have: of one that is built uv only warns."""
        project, poetry = _table(content, "project"), _table(content, "tool", "poetry")
        offered = {_normal(one) for one in (*_table(project, "optional-dependencies"), *_table(poetry, "extras"))}
        unknown = next((one for one in self._requested.extras if _normal(one) not in offered), None)
        if unknown is not None and "optional-dependencies" not in (project.get("dynamic") or ()):
            raise invalid(
                "pyproject.toml", f"it has no extra {unknown!r}, but: {', '.join(sorted(offered)) or 'none'}."
            )

    def _read_poetry(self, folder: Path, text: str, poetry: dict[str, Any], python: str | None) -> Declared | None:
        self._check_extras({"tool": {"poetry": poetry}})
        lines = lines_of(_table(poetry, "dependencies"), self._requested.extras, _table(poetry, "extras"))
        return _given("pyproject.toml", folder, [*lines, *_poetry_groups(poetry, self._requested.groups)], text, python)

    def _read_pipfile(self, folder: Path) -> Declared | None:
        text = self._read(folder / "Pipfile")
        if text is None:
            return None
        content = _parse(text, "Pipfile")
        tables = ["packages", *("dev-packages" if group == "dev" else group for group in self._requested.groups)]
        absent = next((one for one in tables[1:] if one not in content), None)
        if absent is not None:
            raise invalid("Pipfile", f"it has no group {absent!r}.")
        lines = [line for name in tables for line in lines_of(_table(content, name))]
        version = _table(content, "requires").get("python_version")
        return _given("Pipfile", folder, lines, text, f"=={version}.*" if isinstance(version, str) else None)

    def _read_conda(self, path: Path) -> Declared | None:
        text = self._read(path) or ""
        lines, others = split_conda(text)
        versions = (re.match(r"python\s*=+\s*([0-9]+\.[0-9]+)", one) for one in others)
        python = next((f"=={found[1]}.*" for found in versions if found), None)
        left_out = tuple(one for one in others if not re.match(r"(python|pip)\b", one))
        if lines and (found := _given(path.name, path.parent, lines, text, python)):
            return replace(found, left_out=left_out)
        if self._requested.packages:
            return None
        raise invalid(
            path.name,
            "this file is for conda, which is not used here; only the packages below its `pip:` are installed, and it "
            f"has none. List what the job needs in requirements.txt, or use --with: {', '.join(left_out)[:200]}",
        )


def _given(source: str, folder: Path, lines: list[str], text: str, python: str | None) -> Declared | None:
    local = any(map(_may_be_local, lines))
    found = Declared(source, folder, tuple(lines), (text,), given=tuple(lines), local=local, python=python)
    return found if lines or python else None


def _poetry_groups(poetry: dict[str, Any], groups: tuple[str, ...]) -> list[str]:
    offered = {name: _table(one, "dependencies") for name, one in _table(poetry, "group").items()}
    if "dev-dependencies" in poetry:
        offered.setdefault("dev", _table(poetry, "dev-dependencies"))
    absent = next((one for one in groups if one not in offered), None)
    if absent is not None and poetry:
        raise invalid(
            "pyproject.toml", f"Poetry's tables have no group {absent!r}, but: {', '.join(offered) or 'none'}."
        )
    return [line for group in groups if group in offered for line in lines_of(offered[group])]


def _read_script(path: Path, text: str) -> Declared | None:
    metadata = read_metadata(text, path.name)
    if metadata is None:
        return None
    python = metadata.get("requires-python")
    if not (python is None or isinstance(python, str)):
        raise invalid(path.name, "requires-python is not a string.")
    table = str(metadata)
    listed = metadata.get("dependencies")
    lines = tuple(map(str, listed)) if isinstance(listed, list) else ()
    local = "path'" in table or "file:" in table
    return Declared(path.name, path.parent, lines, (table,), ("--requirements", path.name), local=local, python=python)


def _may_be_local(line: str) -> bool:
    return not _REMOTE.match(line) or _LOCAL.search(line) is not None


def _names(lines: tuple[str, ...]) -> list[str]:
    return [found[0] for line in lines if (found := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _lines(text: str) -> list[str]:
    """Return the lines of a requirements file: without comments, continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for one in joined.splitlines() if (line := re.sub(r"(^|\s)#.*$", "", one).strip())]


def _parse(text: str, source: str) -> dict[str, Any]:
    if not source.endswith(".toml") and source != "Pipfile":
        return {}
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:  # the latter for nested values
        raise invalid(source, f"not valid TOML: {error}.") from error


def _table(content: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401  whatever TOML has
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}
