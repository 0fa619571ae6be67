"""Finds the requirements that a workspace declares.

The first of these that names a requirement counts, in the folder that the command starts in, then in the workspace: the
metadata of the script that the command runs (PEP 723), requirements.txt, uv.lock, pyproject.toml.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.environments.inline_metadata import read_metadata, script_of
from worker.environments.requirements_file import RequirementsReader, invalid, resolve

_CONDA_FILES = ("environment.yml", "environment.yaml")
_PYPI = "https://pypi.org/simple"
"""The default index, which the worker's environment may replace by a mirror."""
_PROJECT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class LockedProject:
    """A project with a uv.lock.

    Attributes:
        name: Its name, checked.
        lock: Text of its uv.lock.
    """

    name: str
    lock: str


@dataclass(frozen=True, slots=True)
class Declared:
    """The place of declared requirements; the reader has the requirements themselves.

    Attributes:
        source: Name of the file.
        python: The declared versions of Python, as a version specifier; None: any.
        locked: The project whose uv.lock has the requirements; None: the reader has them.
    """

    source: str
    python: str | None = None
    locked: LockedProject | None = None


def find_declared(reader: RequirementsReader, workspace: Path, folder: Path, command: str) -> Declared | None:
    """Find the requirements of a job, and read them.

    Args:
        reader: Takes the requirements.
        workspace: The job's workspace.
        folder: The folder that the command starts in.
        command: The job's command.

    Returns:
        None if nothing is declared.

    Raises:
        LaunchError: The declared requirements cannot be used.
    """
    try:
        return _find(reader, workspace, folder, command)
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, values nested too deeply, …
        raise invalid("requirements", f"these files cannot be read: {error}.") from error


def _find(reader: RequirementsReader, workspace: Path, folder: Path, command: str) -> Declared | None:
    script = script_of(command)
    path = resolve(folder / script) if script is not None else workspace
    # A script elsewhere, such as among the data sets, is the job's own affair.
    if path.is_relative_to(workspace.resolve()) and path.is_file():
        found = _read_script(reader, path)
        if found is not None:
            return found
    folders = dict.fromkeys((folder.resolve(), workspace.resolve()))
    for one in folders:
        found = _read_folder(reader, one)
        if found is not None:
            return found
    for name in _CONDA_FILES:
        if any((one / name).is_file() for one in folders):
            raise invalid(
                name,
                "this file is for conda, which is not used here. List the job's packages in requirements.txt, or run "
                "the job in a container that has them, on a server with containers.",
            )
    return None


def _read_script(reader: RequirementsReader, script: Path) -> Declared | None:
    metadata = read_metadata(reader.read_text(script), script.name)
    if metadata is None:
        return None
    reader.add_lines(_strings(metadata.get("dependencies"), "dependencies", script.name), script.name)
    return Declared(script.name, _specifier(metadata, script.name))


def _read_folder(reader: RequirementsReader, folder: Path) -> Declared | None:
    file, project = folder / "requirements.txt", folder / "pyproject.toml"
    if file.is_file():
        reader.add_file(file)
        if reader.lines:
            return Declared(file.name)
    return _read_project(reader, project) if project.is_file() else None


def _read_project(reader: RequirementsReader, path: Path) -> Declared | None:
    content = _parse(reader.read_text(path), path.name)
    project = content.get("project")
    if not isinstance(project, dict):
        return None
    python = _specifier(project, path.name)
    lock = path.with_name("uv.lock")
    if lock.is_file():
        text = reader.read_text(lock)
        _add_indexes(reader, _parse(text, lock.name), lock.name)
        return Declared(lock.name, python, LockedProject(_project_name(project, path.name), text))
    if "dependencies" in _strings(project.get("dynamic"), "dynamic", path.name):
        raise invalid(path.name, "its dependencies are computed by a build. List them in requirements.txt.")
    dependencies = _strings(project.get("dependencies"), "dependencies", path.name)
    if dependencies and _table(_table(content, "tool", path.name), "uv", path.name).get("sources"):
        raise invalid(path.name, "tool.uv.sources needs a uv.lock: run `uv lock`, or write requirements.txt.")
    reader.add_lines(dependencies, path.name)
    return Declared(path.name, python) if dependencies or python else None


def _add_indexes(reader: RequirementsReader, lock: dict[str, Any], source: str) -> None:
    """Add the indexes that a lock file names: the list that uv exports leaves them out."""
    packages = lock.get("package", [])
    if not (isinstance(packages, list) and all(isinstance(one, dict) for one in packages)):
        raise invalid(source, "package is not a list of tables. Write the file again: uv lock.")
    urls = [_table(one, "source", source).get("registry") for one in packages]
    for url in sorted({url for url in urls if isinstance(url, str) and url != _PYPI}):
        reader.add_index(url, source)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for nested values
        raise invalid(source, f"not valid TOML: {error}.") from error


def _project_name(project: dict[str, Any], source: str) -> str:
    name = project.get("name")
    if isinstance(name, str) and _PROJECT_NAME.match(name):
        return name
    raise invalid(source, "project.name is missing, or not a name such as my-project.")


def _table(content: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    value = content.get(name, {})
    if isinstance(value, dict):
        return value
    raise invalid(source, f"{name} is not a table.")


def _strings(value: object, name: str, source: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise invalid(source, f"{name} is not a list of strings.")


def _specifier(table: dict[str, Any], source: str) -> str | None:
    value = table.get("requires-python")
    if value is None or isinstance(value, str):
        return value
    raise invalid(source, "requires-python is not a string.")
