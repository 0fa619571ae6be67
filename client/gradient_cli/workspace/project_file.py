"""The project file `.gradient.toml`: the options of `jobs create` that belong to a folder."""

from __future__ import annotations

import json
import os
from typing import Any

from gradient_cli.errors import UsageError
from gradient_cli.text import decode, parse_toml

FILE_NAME = ".gradient.toml"


def find() -> str | None:
    """Find the project file in the current folder or its nearest parent that has one.

    The search ends at the root of a git repository and at the home folder: a file above those does not belong to
    this project.
    """
    folder = os.path.realpath(os.getcwd())
    home = os.path.realpath(os.path.expanduser("~"))
    while True:
        path = os.path.join(folder, FILE_NAME)
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if folder in {home, parent} or os.path.exists(os.path.join(folder, ".git")):
            return None
        folder = parent


def read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return parse_toml(decode(file.read()))
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text", hint="Save it as UTF-8.") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint='Text values need quotes: command = "python main.py"') from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="Fix its permissions.") from None


def write_ignore_file(folder: str) -> str | None:
    path = os.path.join(folder, ".gradientignore")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(_IGNORE_TEMPLATE)
    except FileExistsError:
        return None
    return path


def template(values: dict[str, str]) -> str:
    """Render a new project file: known values filled in, the other options as comments."""
    lines = ["# Options of `gradient-cli jobs create` in this folder; flags on the command line take precedence.", ""]
    for name, example, text in _LINES:
        value = values.get(name)
        assignment = f"{name} = {_quote(value or example)}"
        lines.append(f"{assignment if value else f'# {assignment}'}  # {text}")
    lines += [
        '# include = ["conf/ca.pem"]  # excluded files to upload anyway',
        '# timeLimit = "2h"  # maximum running time; default: no limit',
        "# maxAttempts = 1  # more than 1: retry after failures",
        '# outputs = ["outputs/**"]  # workspace files to keep as artifacts',
        "",
        "# [envVars]",
        '# EPOCHS = "2"',
        "",
    ]
    return "\n".join(lines)


_LINES = (
    ("project", "default", "the project of the jobs"),
    ("machineType", "CPU", "`gradient-cli machine-types` lists them"),
    ("container", "tensorflow/tensorflow:latest", "the image that the command runs in"),
    ("command", "python main.py", "the command to run, in the workspace"),
    ("workspace", ".", "a folder, an archive, a git URL or none"),
)


_IGNORE_TEMPLATE = """\
# Files that `gradient-cli jobs create` does not upload, in .gitignore syntax; .gitignore files are read as well.
# data/
# *.ckpt
#
# Left out by default: .git, __pycache__, virtual environments, node_modules, wandb, mlruns, .ipynb_checkpoints,
# downloaded artifacts (artifacts-ID), and credentials (.env, .env.*, *.pem, .netrc, .pypirc, .git-credentials,
# id_rsa and other SSH keys, .ssh, .aws). A line with ! uploads such files nevertheless:
# !.env
"""


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
