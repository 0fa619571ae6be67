"""`jobs run`: submit a script or a notebook with its arguments, and follow it."""

from __future__ import annotations

import argparse
import os
import shlex

from gradient_cli import terminal
from gradient_cli.commands.jobs import create
from gradient_cli.errors import UsageError
from gradient_cli.workspace import job_spec as specs

_PROGRAMS = {".py": ["python"], ".sh": ["bash"]}
_NOTEBOOK = ".ipynb"
_PROCESSES = ("auto", "cpu", "gpu")
# uv is quicker, and keeps its downloads for the project's next job; an image may have pip alone, or the packages.
_INSTALL = """\
have() {{ python3 -c 'import importlib.util as u, sys; sys.exit(None in map(u.find_spec, sys.argv[1:]))' {packages}; }}
quick() {{ UV_CACHE_DIR="$GRADIENT_STORAGE_DIR/cache/uv" UV_LINK_MODE=symlink uv pip install {packages}; }}
have || {{ command -v uv >/dev/null && quick 2>&1 | grep -v '^ + '; have; }} ||
    python3 -m pip install -q {packages} || {{
    echo 'Neither uv nor pip could install {packages}. Name an image that has it by --container.'
    exit 1
}} >&2
"""
# Another kernel than the job's own Python is one of the computer that the notebook was written on.
_RUN_NOTEBOOK = """\
folder={folder}
exec python3 -m papermill -k python3 --log-output --no-progress-bar --cwd "$folder" {file} \
    "$GRADIENT_ARTIFACTS_DIR"/{name} {arguments}
"""
_OF_MOST_PROGRAMS = {"-h", "--help"}


def add_run(parser: argparse.ArgumentParser) -> None:
    create.add_create(parser)
    specs.describe(parser, "command", "TEXT", argparse.SUPPRESS)  # `run` makes the command
    parser.add_argument(
        "--nproc",
        metavar="N",
        help="for a .py file: processes that torchrun starts, a number or one per gpu or cpu",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="script to run: .py with python, .sh with bash, .ipynb with papermill (the executed notebook becomes "
        "an artifact)",
    )
    arguments = parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs=argparse.REMAINDER,
        help="arguments for the script: everything after FILE",
    )
    arguments.required = False  # argparse demands at least one otherwise
    parser.usage = f"{parser.usage} FILE [ARGUMENT...]"
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.command is not None:
        raise UsageError("command: `jobs run` builds it from FILE", hint="Use `gradient-cli jobs create --command`.")
    kind = os.path.splitext(args.file)[1]
    if kind not in {*_PROGRAMS, _NOTEBOOK}:
        raise UsageError(
            f"{args.file}: only .py, .sh and .ipynb files can be run",
            hint="Use `gradient-cli jobs create -- PROGRAM ARGUMENT...` for other programs.",
        )
    launcher = _launcher(args.nproc, kind)
    path = _path_in(specs.resolve_workspace(args), args.file)
    if kind == _NOTEBOOK:
        args.command = _notebook_command(path, args.arguments)
    else:
        args.command = shlex.join([*_PROGRAMS[kind], *launcher, path, *args.arguments])
        _report_own_options(args)
    return create.create(args)


def install(*packages: str) -> str:
    """Return the lines of a command that install packages, which have the names of their modules, where they lack."""
    return _INSTALL.format(packages=" ".join(packages))


def _launcher(processes: str | None, kind: str) -> list[str]:
    if processes is None:
        return []
    if kind != ".py":
        raise UsageError("nproc: only .py files can run in several processes", hint="Leave --nproc out.")
    if not (processes in _PROCESSES or (processes.isdecimal() and int(processes) > 0)):
        raise UsageError(
            f"nproc: {processes!r} is not a number of processes", hint="For example --nproc 2, or --nproc gpu."
        )
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def _notebook_command(path: str, arguments: list[str]) -> str:
    return install("papermill", "ipykernel") + _RUN_NOTEBOOK.format(
        folder=shlex.quote(os.path.dirname(path) or "."),
        file=shlex.quote(path),
        name=shlex.quote(os.path.basename(path)),
        arguments=shlex.join(arguments),
    )


def _report_own_options(args: argparse.Namespace) -> None:
    """Tell which arguments of the script are options of this command, which end at FILE."""
    ours = args.menu._option_string_actions  # noqa: SLF001  argparse offers no public list
    flags = [word.partition("=")[0] for word in args.arguments if word.startswith("-")]
    mistaken = list(dict.fromkeys(flag for flag in flags if flag in ours and flag not in _OF_MOST_PROGRAMS))
    if mistaken:
        terminal.print_message(
            f"note: {', '.join(mistaken)} after {args.file} "
            f"{'is an argument' if len(mistaken) == 1 else 'are arguments'} of the script; "
            "options of `jobs run` come before it"
        )


def _path_in(workspace: str, file: str) -> str:
    """Return the path of a local file in the workspace; of a file in an archive or a repository, as it was given."""
    if not os.path.isdir(workspace):
        return file
    if not os.path.isfile(file):
        raise UsageError(f"{file}: no such file", hint="Give the path of a script, from the current folder.")
    path = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace))
    if path.split(os.sep)[0] == os.pardir:
        raise UsageError(
            f"{file}: not in the workspace {workspace}", hint="Change to its folder, or give --workspace PATH."
        )
    return path
