"""Requirements of projects: pyproject.toml with its lock file, setup.py and Pipfile."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from gradient_cli.text import parse_toml
from gradient_cli.workspace.dependencies.declared import Declared, RequirementOptions
from gradient_cli.workspace.dependencies.imports import normal_name
from gradient_cli.workspace.dependencies.index_variables import fill_in
from gradient_cli.workspace.dependencies.inline_metadata import invalid
from gradient_cli.workspace.dependencies.locks import changed_since, locks_folder, read_pins, read_pipfile_pins
from gradient_cli.workspace.dependencies.requirement_tables import lines_of, python_of
from gradient_cli.workspace.dependencies.workspace_files import TooLarge, is_outside, read_text

_MAX_BYTES = 1024**2
_MAX_SOURCES = 100
_MAX_LOCK_BYTES = 16 * 1024**2  # a large uv.lock has a few
_SYNC = ("sync", "--frozen")
_REMOTE = re.compile(r"-|[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[|[<>=!~;,(@\s]|\Z)")
"""A line that names a package or an option."""
_LOCAL = re.compile(r"-e\b|--editable|(^|[\s=@])(file:|\.{0,2}/|\.($|\[|\s))|\$\{", re.MULTILINE)
"""Something in a line that names a folder, a file or a variable."""
_LOCKED_FOLDER = re.compile(r"source = \{ (editable|directory|path) = ")
_SOURCE_FOLDER = re.compile(r"\b(path|workspace)\s*=")
_POETRY_LOCKS = ("poetry.lock", "pdm.lock")
_NO_MODULE = (
    "pyproject.toml: its dependencies are installed, but not the project itself, which has no module {}. To "
    "declare this, set `package-mode = false` in [tool.poetry]."
)
FROM_OUTSIDE = "submit a folder that contains both, with --workspace and --workingDirectory."


class ProjectReader:
    """Reads projects. `for_uv`: with the groups that `uv run` installs without being asked."""

    def __init__(self, workspace: Path, requested: RequirementOptions, *, for_uv: bool) -> None:
        self._workspace = workspace
        self._for_uv = for_uv
        self._requested = requested
        self.of_project = bool(requested.extras or requested.groups)

    def read(self, path: Path) -> str | None:
        limit = _MAX_LOCK_BYTES if path.name.endswith(".lock") else _MAX_BYTES
        try:
            return read_text(self._workspace, path, limit, "backslashreplace")
        except TooLarge as error:
            raise invalid(path.name, f"this file has {error}.") from None

    def read_project(self, folder: Path) -> Declared | None:
        text = self.read(folder / "pyproject.toml")
        content = _parse(text, "pyproject.toml") if text is not None else {}
        project, poetry = _table(content, "project"), _table(content, "tool", "poetry")
        setups = {name: code for name in ("setup.py", "setup.cfg") if (code := self.read(folder / name)) is not None}
        built = "build-system" in content and bool(project or poetry or setups)
        absent = self._absent_module(folder, content) if built else None
        unbuilt = poetry.get("package-mode") is False or not built or absent is not None
        python = project.get("requires-python") or python_of(_table(poetry, "dependencies"))
        if not (python is None or isinstance(python, str)):
            raise invalid("pyproject.toml", "requires-python is not a string.")
        listed = project.get("dependencies")
        lines = tuple(map(str, listed)) if isinstance(listed, list) else ()
        declared: Declared | None = None
        if text is not None and project and (locked := self._read_lock(folder, text, content, lines, python)):
            return locked
        if text is not None and poetry and unbuilt and not project:
            declared = self._read_poetry(folder, text, poetry, python)
        elif text is not None and built and not unbuilt:
            self._check_extras(content)
            named = lines or tuple(lines_of(_table(poetry, "dependencies"))) or (".",)
            declared = self._editable("pyproject.toml", folder, named, (text,), python)
            declared = replace(declared, words=(*declared.words, *self._default_groups(content)))
        elif text is not None and (listed or python or self.of_project):
            arguments = ("--requirements", "pyproject.toml", *self._options(), *self._default_groups(content))
            local = _SOURCE_FOLDER.search(text) is not None
            declared = Declared("pyproject.toml", folder, lines, (text,), arguments, local=local, python=python)
        if declared is not None:
            notes = [*self._source_notes(folder, content), *([_NO_MODULE.format(absent)] if absent else [])]
            return self._pinned(replace(declared, notes=tuple(notes)), _POETRY_LOCKS)
        if setups:
            return self._editable(next(iter(setups)), folder, (".",), tuple(setups.values()), None)
        return self._read_pipfile(folder)

    def _absent_module(self, folder: Path, content: dict[str, Any]) -> str | None:
        """Return the module that Poetry would build a project from; None if it is there."""
        poetry = _table(content, "tool", "poetry")
        name = _table(content, "project").get("name") or poetry.get("name")
        if "poetry" not in str(content["build-system"]) or not isinstance(name, str) or "packages" in poetry:
            return None
        module = normal_name(name).replace("-", "_")
        paths = (folder / f"{start}{module}{end}" for start in ("", "src/") for end in ("", ".py"))
        return None if any(map(os.path.exists, paths)) else module

    def _read_lock(
        self, folder: Path, text: str, content: dict[str, Any], lines: tuple[str, ...], python: str | None
    ) -> Declared | None:
        """Read the uv.lock of a project, or that of the workspace which it is a member of."""
        above = takewhile(lambda parent: parent.is_relative_to(self._workspace), (folder, *folder.parents))
        for root in above:
            lock = self.read(root / "uv.lock")
            path = os.path.relpath(folder, root)
            if lock is None or not (root == folder or locks_folder(lock, path)):
                continue
            notes = self._source_notes(folder, content)
            if changed := changed_since(lock, path, lines):
                notes.append(
                    "uv.lock is older than pyproject.toml, but its packages were installed: it lacks "
                    f"{', '.join(changed)[:300]}. `uv lock` updates it."
                )
            contents = (text, lock) if root == folder else (text, lock, path, self.read(root / "pyproject.toml") or "")
            return Declared(
                "uv.lock",
                folder,
                lines or (".",),
                contents,
                sync=(*_SYNC, *(() if self._for_uv else ("--no-default-groups",)), *self._options()),
                local=_LOCKED_FOLDER.search(lock) is not None,
                python=python,
                notes=tuple(notes),
            )
        return None

    def _source_notes(self, folder: Path, content: dict[str, Any]) -> list[str]:
        """Name the sources of a pyproject.toml that are not in the workspace."""
        notes = []
        for name, table in islice(_table(content, "tool", "uv", "sources").items(), _MAX_SOURCES):
            for source in table if isinstance(table, list) else [table]:
                path = source.get("path") if isinstance(source, dict) else None
                if isinstance(path, str) and is_outside(self._workspace, folder / path):
                    notes.append(f"pyproject.toml: {name} is in {path}, not in the uploaded folder: {FROM_OUTSIDE}")
        return notes

    def _pinned(self, declared: Declared, names: tuple[str, ...]) -> Declared:
        """Add the versions of a lock file."""
        for name in names:
            text = self.read(declared.folder / name)
            if text is None:
                continue
            pins = read_pipfile_pins(text) if name == "Pipfile.lock" else read_pins(text)
            source = f"{declared.source} and {name}"
            return (
                replace(declared, source=source, pins=pins, contents=(*declared.contents, text)) if pins else declared
            )
        return declared

    def _default_groups(self, content: dict[str, Any]) -> list[str]:
        default = _table(content, "tool", "uv").get("default-groups", ["dev"])
        offered = _table(content, "dependency-groups") if self._for_uv else {}
        chosen = set(map(str, default)) if isinstance(default, list) else set()
        named = [name for name in offered if default == "all" or name in chosen]
        requested = set(self._requested.groups)
        return [word for name in named if name not in requested for word in ("--group", name)]

    def _options(self) -> list[str]:
        extras = [word for extra in self._requested.extras for word in ("--extra", extra)]
        return [*extras, *(word for group in self._requested.groups for word in ("--group", group))]

    def _editable(
        self, source: str, folder: Path, lines: tuple[str, ...], contents: tuple[str, ...], python: str | None
    ) -> Declared:
        given = _poetry_groups(_table(_parse(contents[0], source), "tool", "poetry"), self._requested.groups)
        groups = [] if given else [word for group in self._requested.groups for word in ("--group", group)]
        extras = f"[{','.join(self._requested.extras)}]" if self._requested.extras else ""
        arguments = ("--editable", f".{extras}", *groups)
        return Declared(source, folder, lines, contents, arguments, tuple(given), local=True, python=python)

    def _check_extras(self, content: dict[str, Any]) -> None:
        """Refuse an extra that the project does not have: of one that is built uv only warns."""
        project, poetry = _table(content, "project"), _table(content, "tool", "poetry")
        offered = {
            normal_name(extra) for extra in (*_table(project, "optional-dependencies"), *_table(poetry, "extras"))
        }
        unknown = next((extra for extra in self._requested.extras if normal_name(extra) not in offered), None)
        if unknown is not None and "optional-dependencies" not in (project.get("dynamic") or ()):
            raise invalid(
                "pyproject.toml", f"it has no extra {unknown!r}; extras: {', '.join(sorted(offered)) or 'none'}."
            )

    def _read_poetry(self, folder: Path, text: str, poetry: dict[str, Any], python: str | None) -> Declared | None:
        self._check_extras({"tool": {"poetry": poetry}})
        lines = lines_of(_table(poetry, "dependencies"), self._requested.extras, _table(poetry, "extras"))
        lines = [*_index_lines(poetry.get("source")), *lines, *_poetry_groups(poetry, self._requested.groups)]
        return self.given("pyproject.toml", folder, lines, text, python)

    def _read_pipfile(self, folder: Path) -> Declared | None:
        text = self.read(folder / "Pipfile")
        if text is None:
            return None
        content = _parse(text, "Pipfile")
        tables = ["packages", *("dev-packages" if group == "dev" else group for group in self._requested.groups)]
        absent = next((table for table in tables[1:] if table not in content), None)
        if absent is not None:
            raise invalid("Pipfile", f"it has no group {absent!r}.")
        lines = [line for name in tables for line in lines_of(_table(content, name))]
        version = _table(content, "requires").get("python_version")
        lines = [*_index_lines(content.get("source")), *lines]
        declared = self.given("Pipfile", folder, lines, text, f"=={version}.*" if isinstance(version, str) else None)
        return declared and self._pinned(declared, ("Pipfile.lock",))

    def given(self, source: str, folder: Path, lines: list[str], text: str, python: str | None) -> Declared | None:
        local = any(map(self.may_be_local, lines))
        declared = Declared(source, folder, tuple(lines), (text,), given=tuple(lines), local=local, python=python)
        return declared if lines or python else None

    def may_be_local(self, line: str) -> bool:
        return may_be_local(fill_in(line, self._requested.variables))


def _index_lines(sources: Any) -> list[str]:  # noqa: ANN401  whatever TOML has
    """Return the indexes of Poetry's and Pipenv's tables as lines of a requirements.txt."""
    tables = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    urls = [str(source["url"]).rstrip("/") for source in tables if "url" in source]
    return [f"--extra-index-url {url}" for url in urls if url != "https://pypi.org/simple"]


def _poetry_groups(poetry: dict[str, Any], groups: tuple[str, ...]) -> list[str]:
    offered = {name: _table(group, "dependencies") for name, group in _table(poetry, "group").items()}
    if "dev-dependencies" in poetry:
        offered.setdefault("dev", _table(poetry, "dev-dependencies"))
    absent = next((group for group in groups if group not in offered), None)
    if absent is not None and poetry:
        raise invalid(
            "pyproject.toml", f"Poetry's tables have no group {absent!r}; groups: {', '.join(offered) or 'none'}."
        )
    return [line for group in groups if group in offered for line in lines_of(offered[group])]


def may_be_local(line: str) -> bool:
    return not _REMOTE.match(line) or _LOCAL.search(line) is not None


def _parse(text: str, source: str) -> dict[str, Any]:
    if not source.endswith(".toml") and source != "Pipfile":
        return {}
    try:
        return parse_toml(text)
    except ValueError as error:
        raise invalid(source, f"not valid TOML: {error}.") from error


def _table(content: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401  whatever TOML has
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}
