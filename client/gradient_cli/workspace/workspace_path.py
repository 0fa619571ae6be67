"""Choice of the workspace that a job is submitted with: a folder, an archive, a git URL or none."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from gradient_cli import terminal
from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.requirements import read_lines


def choose(
    args: argparse.Namespace, filed: object, path: str | None, *, checked: bool = True, may_prompt: bool = True
) -> str:
    """Return the workspace of the command line, otherwise that of a project file or of a file of jobs.

    `checked`: whether it comes from the project file, so has to lie in its folder.
    """
    if args.workspace is not None:
        return str(args.workspace)
    folder = os.path.dirname(path) if path else os.getcwd()
    if filed is None:
        if os.path.realpath(folder) in {"/", os.path.realpath(os.path.expanduser("~"))}:
            raise UsageError(
                f"workspace: all of {folder} would be uploaded",
                hint="Change to the folder of your code, or give --workspace PATH or --workspace none.",
            )
        return folder
    if not isinstance(filed, str):
        raise UsageError(f"workspace: must be text, not {filed!r}", hint="Put quotes around it.")
    if filed == "none" or is_url(filed):
        return filed
    workspace = os.path.join(folder, os.path.expanduser(filed))
    if path and checked and not _lies_in(workspace, folder):
        _allow_outside(workspace, path, may_prompt=may_prompt)
        args.workspace = workspace
    return workspace


def _lies_in(path: str, folder: str) -> bool:
    """Return whether a path leads to a folder or into it, links followed."""
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(folder), ""))


def _allow_outside(workspace: str, path: str, *, may_prompt: bool) -> None:
    """Ask whether a workspace may be uploaded that a project file names outside of its folder: it may be another's."""
    real = terminal.sanitize(os.path.realpath(workspace))
    question = f"{terminal.sanitize(path)} uploads {real}, which is outside its folder. Allow this?"
    if may_prompt and terminal.is_tty(sys.stdin) and terminal.confirm(question):
        return
    raise UsageError(
        f"{path}: workspace: {real} is outside the file's folder",
        hint=f"To upload it anyway, use --workspace {real}",
    )


def is_url(text: str) -> bool:
    return "://" in text or text.startswith("git@")


def place_requirements(spec: dict[str, Any], workspace: str, project_file: str | None) -> None:
    """Name the requirements file of a job as the job finds it; one that it does not have is sent as its lines.

    `project_file`: the one that names the requirements file, in whose folder that has to be; None: the user does.
    """
    given = str(spec["requirementsFile"])
    near = Path(os.path.dirname(project_file) if project_file else os.getcwd(), os.path.expanduser(given))
    path = near if near.exists() or not os.path.isdir(workspace) else Path(workspace, given)
    if os.path.isdir(workspace) and _lies_in(str(path), workspace):
        spec["requirementsFile"] = os.path.relpath(os.path.realpath(path), os.path.realpath(workspace))
    elif project_file and not _lies_in(str(path), os.path.dirname(project_file)):
        raise UsageError(
            f"{project_file}: requirements: {path} is outside the file's folder",
            hint=f"To use it anyway, pass --requirements {path}",
        )
    elif path.is_file() or workspace == "none":
        del spec["requirementsFile"]
        spec["packages"] = [*read_lines(str(path)), *spec.get("packages", ())]
