"""Workspaces whose files are made to occupy who reads them, such as a worker: in time, in memory, or for ever."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import nullcontext, suppress

import pytest

from gradient_cli.errors import UsageError
from gradient_cli.text import parse_toml
from gradient_cli.workspace.dependencies.imports import ProgramImports
from gradient_cli.workspace.dependencies.requirements import find_declared, pinned_python

pytestmark = pytest.mark.unit

MB = 1_000_000
PROGRAM = """
import json, sys
from pathlib import Path
from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.imports import ProgramImports
from gradient_cli.workspace.dependencies.requirements import find_declared, pinned_python
workspace, command = Path(sys.argv[1]), sys.argv[2]
programs = ProgramImports(workspace, workspace, command)
try:
    declared = find_declared(programs)
    if declared is not None:
        declared.lacks("absent"), declared.digest
except UsageError as error:
    print(error)
"""


def filled(text, size=MB):
    return text * (size // len(text))


def read_it(workspace, command):
    """Read a workspace as a start does, in a process that may take 8 s of CPU and 1 GB of memory; return its words."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
        resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))

    words = [sys.executable, "-c", PROGRAM, str(workspace), command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


FILES = {
    "metadata-starts": ("main.py", filled("# /// script\n") + "print(1)\n"),
    "metadata-lines": ("main.py", "# /// script\n" + filled("# a\n")),
    "metadata-blocks": ("main.py", filled("# /// script\n# a = 1\n# ///\n\n")),
    "imports": ("main.py", "".join(f"import a{number}\n" for number in range(70_000))),
    "import-parts": ("main.py", f"import a{filled('.a')}\n"),
    "import-names": ("main.py", f"from {filled('a.', 500_000)}a import {filled('b,', 500_000)}c\n"),
    "import-dots": ("main.py", f"from {filled('.', 500_000)} import {filled('b,', 500_000)}c\n"),
    "elif": ("main.py", "if a:\n  b\n" + "elif a:\n  import numpy\n" * 2000),
    "condition": ("main.py", f"if a{'.a' * 900}:\n  b\n"),
    "statements": ("main.py", filled("a\n")),
    "script-newlines": ("run.sh", "cat << X\n" + filled("\n", 60_000)),
    "script-word": ("run.sh", filled("a")),
    "script-words": ("run.sh", filled("a ", 60_000)),
    "script-files": ("run.sh", filled("python main.py main.py;", 60_000)),
    "script-itself": ("run.sh", "".join(f"cd .; sh ./run.sh {number};" for number in range(3000))),
    "notebook-newlines": ("main.ipynb", '{"cells":[{"cell_type":"code","source":"' + filled("\\n") + '"}]}'),
    "notebook-nested": ("main.ipynb", filled("[")),
    "requirement-name": ("requirements.txt", filled("a")),
    "requirement-extras": ("requirements.txt", filled("torch[a]\n")),
    "requirement-extra": ("requirements.txt", "a[" + filled("b")),
    "requirement-brackets": ("requirements.txt", filled("a[")),
    "requirement-spaces": ("requirements.txt", "a" + filled(" ") + "b"),
    "requirement-outside": ("requirements.txt", "a @ " + filled("../")),
    "requirement-folders": ("requirements.txt", "".join(f"../{number}\n" for number in range(120_000))),
    "requirement-comments": ("requirements.txt", filled(" #")),
    "requirement-options": ("requirements.txt", "-r " + filled("=")),
    "requirement-password": ("requirements.txt", filled("a://a:")),
    "conda-spaces": ("environment.yml", "dependencies:\n- a" + filled(" ") + "b\n"),
    "conda-quotes": ("environment.yml", 'dependencies:\n- "' + filled(" #") + "b\n"),
    "conda-newlines": ("environment.yml", filled("dependencies:" + "\n" * 1000)),
    "poetry-digits": ("pyproject.toml", f'[tool.poetry.dependencies]\na = "^{filled("1", 900_000)} x"\n'),
    "poetry-signs": (
        "pyproject.toml",
        f'[tool.poetry.dependencies]\na = {{version="1", python="{filled("<", 900_000)}"}}\n',
    ),
    "toml-key": ("pyproject.toml", f"{filled('a.')}a = 1\n"),
    "toml-quoted": ("pyproject.toml", filled(' "a" .') + "a = 1\n"),
    "toml-header": ("pyproject.toml", f"[{filled('a.')}a]\n"),
    "toml-inline": ("pyproject.toml", f'x = ["""\n"""", {{b = """""", {filled("a.")}a = 1}}]\n'),
    "toml-keys": ("pyproject.toml", "".join(f"a{line}{'.a' * 90} = 1\n" for line in range(5000))),
    "toml-arrays": ("pyproject.toml", f"x = {filled('[')}"),
    "toml-tables": ("pyproject.toml", f"x = {filled('{a=')}"),
    "toml-string": ("pyproject.toml", 'x = """' + filled('\\"""')),
    "toml-sources": (
        "pyproject.toml",
        "[project]\ndependencies = ['a']\n[tool.uv.sources]\n"
        + "".join(f"a{number} = {{path='../{number}'}}\n" for number in range(30_000)),
    ),
    "setup": ("setup.py", filled("a\n")),
}


@pytest.mark.parametrize(("name", "text"), FILES.values(), ids=FILES)
def test_a_file_made_to_occupy_its_reader_is_read_in_linear_time(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    command = {"run.sh": "bash run.sh", "main.ipynb": "papermill main.ipynb"}.get(name, "python main.py")
    read_it(tmp_path, command)


def fifo(path, _outside):
    os.mkfifo(path)


def bound_socket(path, _outside):
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


def link_to_fifo(path, _outside):
    os.mkfifo(path.parent / "fifo")
    path.symlink_to("fifo")


def link_out(path, outside):
    path.symlink_to(outside)


def link_to_fifo_outside(path, outside):
    outside.unlink()
    os.mkfifo(outside)
    path.symlink_to(outside)


def link_to_itself(path, _outside):
    path.symlink_to(path.name)


def folder(path, _outside):
    path.mkdir()


@pytest.mark.parametrize(
    "make", [fifo, bound_socket, link_to_fifo, link_out, link_to_fifo_outside, link_to_itself, folder]
)
@pytest.mark.parametrize(
    "name",
    [
        "pyproject.toml",
        "requirements.txt",
        "uv.lock",
        "setup.py",
        "Pipfile",
        "environment.yml",
        ".python-version",
        "main.py",
        "run.sh",
    ],
)
def test_only_regular_files_of_the_workspace_are_read(tmp_path, monkeypatch, name, make):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    outside = tmp_path / "outside"
    outside.write_text("torch\n[build-system]\n3.12\nimport numpy\n")
    make(workspace / name, outside)
    programs = ProgramImports(workspace, workspace, "python main.py; sh run.sh")
    with suppress(UsageError) if make is link_to_itself else nullcontext():  # a link to itself may be said
        assert find_declared(programs) is None
    assert pinned_python(workspace, workspace) is None
    assert programs.imports == {}


@pytest.mark.parametrize(
    "text",
    [
        f"x = [{', '.join(['0.1'] * 500)}]\n",
        f"x = ['{'a.' * 500}', \"{'b.' * 500}\"]  # {'.' * 500}\n",
        f'x = """\n{"a." * 500}\n"quoted" {"." * 500}\\""""\n' + "y.a = 1\n",
        f"x = '''{'.' * 500}'''''\n",
        "\n".join(f"a{line}.b.c = 1" for line in range(2000)),
    ],
)
def test_dots_that_are_no_parts_of_a_key_are_no_fault(text):
    assert parse_toml(text)


@pytest.mark.parametrize(
    "text", [f"{'a.' * 101}a = 1", f"['a'{'.a' * 101}]", f'x = {{"""""" = 1, {"a . " * 101}a = 1}}', "x = " + "[" * 101]
)
def test_a_key_of_too_many_parts_is_a_fault(text):
    with pytest.raises(ValueError, match=r"too many dots|too deeply"):
        parse_toml(text)
