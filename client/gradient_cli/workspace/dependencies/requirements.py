"""Finds what a folder, and the options of a job, declare as its requirements; uv reads them, where the job runs.

The metadata of the scripts that the command runs (PEP 723) count first. Then the first of these that is there, in the
folder that the first program starts in, then in those above it up to the workspace: requirements.txt, pyproject.toml
(with its lock file), setup.py, Pipfile; then environment.yml. An option names another file in their place, or adds
packages.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

from gradient_cli.text import decode
from gradient_cli.workspace.dependencies.declared import Declared, RequirementOptions
from gradient_cli.workspace.dependencies.imports import ProgramImports, distributions_of, names_of
from gradient_cli.workspace.dependencies.index_variables import unused_names, used_names
from gradient_cli.workspace.dependencies.inline_metadata import invalid, read_metadata
from gradient_cli.workspace.dependencies.projects import FROM_OUTSIDE, ProjectReader, may_be_local
from gradient_cli.workspace.dependencies.requirement_tables import split_conda
from gradient_cli.workspace.dependencies.workspace_files import TooLarge, is_outside, read_text

AUTO = "auto"  # among packages: those of the modules that the program imports
_CONDA_FILES = ("environment.yml", "environment.yaml")
_MAX_FILES = 100
_MAX_PATHS = 100
_PROJECT_FILES = {"pyproject.toml", "uv.lock", "setup.py", "setup.cfg", "Pipfile"}
_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S.*)\Z")
_OUTSIDE = re.compile(r"(?:^|[\s=@])(?:file:)?((?:\./)*\.\./[^\s;#\[\"']*)")
_MAX_VERSION_BYTES = 64 * 1024
_PYTHON_VERSION = re.compile(r"(?m)^\s*(?:cpython[-@]?|python)?(3\.\d+)(?:\.\d+)?\s*$")


def find_declared(programs: ProgramImports, requested: RequirementOptions | None = None) -> Declared | None:
    """Find the requirements of a job, given its command's programs; return None if nothing is declared."""
    try:
        return _Finder(requested or RequirementOptions(), programs).find()
    except (OSError, RuntimeError, ValueError) as error:  # a link that leads to itself, values nested too deeply, …
        raise invalid("requirements", f"these files cannot be read: {error}.") from error


def pinned_python(workspace: Path, folder: Path) -> str | None:
    """Return the first two numbers of the version in a `.python-version`, of the folder or one above it."""
    for above in (folder, *folder.parents):
        if not above.is_relative_to(workspace):
            break
        file = above / ".python-version"
        with suppress(OSError, RuntimeError, TooLarge):
            if (text := read_text(workspace, file, _MAX_VERSION_BYTES)) is not None:
                match = _PYTHON_VERSION.search(text)
                return match[1] if match else None
    return None


def read_lines(path: str) -> list[str]:
    """Return the lines of a requirements file and of those that it includes, for a job that does not have the file."""
    lines: list[str] = []
    try:
        with open(path, "rb") as file:
            requirement_lines = _lines(decode(file.read()))
        for line in requirement_lines:
            included = _INCLUDE.match(line)
            if included and line.startswith("-r"):
                lines += read_lines(os.path.join(os.path.dirname(path), included[1].strip("\"'")))
            elif included or may_be_local(line):
                raise invalid(path, f"{line!r} names something outside the workspace. Copy it into the folder.")
            else:
                lines.append(line)
    except (OSError, UnicodeDecodeError, RecursionError) as error:  # the last for files that include one another
        raise invalid(path, f"cannot be read: {error}.") from error
    return lines


class _Finder:
    def __init__(self, requested: RequirementOptions, programs: ProgramImports) -> None:
        self._required_project = bool(requested.extras or requested.groups)
        if not requested.file:
            extras, groups = (*requested.extras, *programs.uv.extras), (*requested.groups, *programs.uv.groups)
            requested = requested._replace(extras=extras, groups=groups)
        self._workspace = programs.workspace
        self._programs = programs
        self._requested = requested
        self._projects = ProjectReader(programs.workspace, requested, for_uv=programs.uv.used)

    def find(self) -> Declared | None:
        folder, start = self._programs.folder, self._programs.start_folder
        declared = self._read_named(self._requested.file) if self._requested.file else self._search(start)
        if declared is None and self._required_project:
            raise invalid("pyproject.toml", "extras or groups were requested, but there is no pyproject.toml.")
        packages = self._added(declared, folder)
        if packages:
            declared = self._with_packages(declared, folder, packages)
        return self._with_variables(self._with_notes(declared)) if declared else None

    def _with_packages(self, declared: Declared | None, folder: Path, packages: tuple[str, ...]) -> Declared:
        local = any(_INCLUDE.match(package) or self._projects.may_be_local(package) for package in packages)
        if declared is None:
            return Declared("--with", folder, packages, (), given=packages, local=local)
        return replace(
            declared,
            source=f"{declared.source} and --with",
            lines=(*declared.lines, *packages),
            given=(*declared.given, *packages),
            local=declared.local or local,
        )

    def _with_variables(self, declared: Declared) -> Declared:
        offered = self._requested.variables
        used = used_names((*declared.contents, *declared.given), offered)
        notes = list(declared.notes)
        if declared.commands and (unused := unused_names(used, offered)):
            notes.append(
                f"{', '.join(unused)}: only the command itself sees these variables; its requirements were installed "
                "before it, without them."
            )
        values = tuple(f"{name}={offered[name]}" for name in used)
        local = declared.local or any("LINKS" in name and "//" not in offered[name] for name in used)
        contents = (*declared.contents, *values)
        return replace(declared, contents=contents, variables=tuple(used), notes=tuple(notes), local=local)

    def _with_notes(self, declared: Declared) -> Declared:
        notes, named = list(declared.notes), names_of(declared.given)
        left_out = [spec for spec in declared.left_out if not named.intersection(names_of([spec.rpartition("::")[2]]))]
        if left_out:
            notes.append(
                f"{declared.source}: conda is not used here, so these were not installed: {', '.join(left_out)[:500]}. "
                "Add those that the job needs to the pip part, or use --with."
            )
        paths = dict.fromkeys(path for line in declared.lines for path in _OUTSIDE.findall(line))
        outside = (path for path in islice(paths, _MAX_PATHS) if is_outside(self._workspace, declared.folder / path))
        notes += (f"{declared.source}: {path} is not in the uploaded folder: {FROM_OUTSIDE}" for path in outside)
        return replace(declared, notes=tuple(notes))

    def _added(self, declared: Declared | None, folder: Path) -> tuple[str, ...]:
        named = tuple(package for package in self._requested.packages if package != AUTO)
        everything = AUTO in self._requested.packages
        if not everything and (declared is not None or not named):
            return named
        added = Declared("", folder, named, ())
        new: set[str] = set()
        for module in self._programs.imports:
            names = distributions_of(module)
            offered = (package for package in names if package in self._requested.offered)
            usual = next(offered, names[0] if names and everything else None)
            if usual and not added.names_module(module) and not (declared and declared.names_module(module)):
                new.add(usual)
        return (*named, *sorted(new))

    def _search(self, folder: Path) -> Declared | None:
        """Find what the scripts declare; if one of several declares nothing, with what its folder declares."""
        scripts = [] if self._projects.of_project else list(dict.fromkeys(self._programs.scripts))
        blocks = [declared for file in scripts if (declared := _read_script(file, self._projects.read(file) or ""))]
        if not blocks:
            return self._search_folders(folder)
        of_folder = self._search_folders(folder) if len(blocks) < len(scripts) else None
        first, *others = [*([of_folder] if of_folder else []), *blocks]
        for declared in others:
            path = os.path.relpath(declared.folder / declared.source, first.folder)
            first = replace(
                first,
                source=f"{first.source} and {declared.source}",
                lines=(*first.lines, *declared.lines),
                contents=(*first.contents, *declared.contents),
                words=(*first.words, "--requirements", path),
                local=first.local or declared.local,
                python=",".join(filter(None, (first.python, declared.python))) or None,
            )
        return first

    def _search_folders(self, folder: Path) -> Declared | None:
        above = list(takewhile(lambda parent: parent.is_relative_to(self._workspace), (folder, *folder.parents)))
        for parent in above:
            declared = None if self._projects.of_project else self._read_requirements(parent / "requirements.txt")
            declared = declared or self._projects.read_project(parent)
            if declared is not None:
                return declared
        paths = (parent / name for parent in above for name in _CONDA_FILES)
        conda = next((path for path in paths if self._projects.read(path) is not None), None)
        return None if conda is None else self._read_conda(conda)

    def _read_named(self, name: str) -> Declared | None:
        path = Path(os.path.normpath(self._workspace / name))
        text = self._projects.read(path)
        if text is None:
            raise invalid(
                name, "there is no such file in the workspace. Name a file in the workspace; see also --include."
            )
        if path.suffix in {".yml", ".yaml"}:
            return self._read_conda(path)
        if path.name in _PROJECT_FILES:
            return self._projects.read_project(path.parent)
        if path.suffix == ".py" and (declared := _read_script(path, text)):
            return declared
        if self._projects.of_project:
            raise invalid(name, "it has no extras or groups; only a pyproject.toml has them.")
        return self._read_requirements(path)

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
            included_file = waiting.pop()
            if included_file in seen or (text := self._projects.read(included_file)) is None:
                local = local or (included_file not in seen and included_file != file)
                continue
            seen.add(included_file)
            texts.append(text)
            for line in _lines(text):
                if included := _INCLUDE.match(line):
                    waiting.append(included_file.parent / included[1].strip("\"'"))
                else:
                    local = local or self._projects.may_be_local(line)
        return texts, local or bool(waiting)

    def _read_conda(self, path: Path) -> Declared | None:
        text = self._projects.read(path) or ""
        lines, others = split_conda(text)
        versions = (re.match(r"python\s*=+\s*([0-9]+\.[0-9]+)", item) for item in others)
        python = next((f"=={match[1]}.*" for match in versions if match), None)
        left_out = tuple(item for item in others if not re.match(r"(python|pip)\b", item))
        if lines and (declared := self._projects.given(path.name, path.parent, lines, text, python)):
            return replace(declared, left_out=left_out)
        if self._requested.packages:
            return None
        raise invalid(
            path.name,
            "this file is for conda, which is not used here; only packages under `pip:` are installed, and it has "
            "none. List the packages that the job needs in requirements.txt, or use --with: "
            f"{', '.join(left_out)[:200]}",
        )


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


def _lines(text: str) -> list[str]:
    """Return the lines of a requirements file: without comments, continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for joined_line in joined.splitlines() if (line := re.sub(r"(^|\s)#.*$", "", joined_line).strip())]
