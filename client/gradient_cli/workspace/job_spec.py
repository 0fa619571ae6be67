from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import Any

from gradient_cli.commands.account.credentials import add_registry_password
from gradient_cli.errors import UsageError
from gradient_cli.formatting import parse_duration
from gradient_cli.options import HIDDEN, add_option, group_options
from gradient_cli.workspace import array_members, memory_size, project_file, variables, workspace_path

_NEXT_PACKAGE = re.compile(r",\s*(?=[A-Za-z])(?![^\[]*\])")  # a comma, but not between versions or in brackets


def add_options(parser: argparse.ArgumentParser, *, without: str = "", title: str = "", options: str = "") -> None:
    """Add the options of a job, in groups; the first has the title and the options of the command."""
    for name, (_, metavar, text) in FIELDS.items():
        add_option(parser, f"--{name}", _SHORT.get(name, ""), metavar=metavar, help=text)
    for name, text in FLAGS.items():
        add_option(parser, f"--{name}", action="store_true", default=None, help=text)
    add_option(
        parser,
        "--workspace",
        metavar="PATH|URL|none",
        help=(
            "folder, archive (.zip, .tar.gz) or git URL with the job's files, or none (default: the folder of the "
            "project file, otherwise the current folder)"
        ),
    )
    _add_list_options(parser, [name for name in _LISTS if name != without])
    add_option(
        parser,
        "--registryPassword",
        metavar="-",
        help="password for --registryUsername; - reads it from standard input (default: prompt)",
    )
    group_options(parser, title, options)


def describe(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    """Give an option of a job another placeholder and help text."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to find an option
        if action.dest == name and action.help != HIDDEN:
            action.metavar, action.help = metavar, text


def add_change_options(parser: argparse.ArgumentParser) -> None:
    for name, (_, metavar, text) in FIELDS.items():
        if name not in _NOT_CHANGED:
            shown = re.sub(r" \((required|default: [^)]*)\)", "", text)
            add_option(parser, f"--{name}", _SHORT.get(name, ""), metavar=metavar, help=shown)
    _add_list_options(parser, [name for name in _LISTS if name not in _NOT_CHANGED])


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of a clone by their API names, without a project file's."""
    changed: dict[str, Any] = {}
    for name, (convert, _, _) in FIELDS.items():
        value = getattr(args, name, None)
        if value is not None:
            changed[SENT_AS.get(name, name)] = convert(name, value)
    return changed | _given_lists(args)


def _add_list_options(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    for name in names:
        metavar, text = _LISTS[name]
        add_option(parser, f"--{name}", _SHORT.get(name, ""), metavar=metavar, action="append", help=text)
    parser.add_argument(
        "--env-file",
        dest="envFile",
        metavar="FILE",
        action="append",
        help="file of environment variables, one NAME=VALUE per line; --envVars takes precedence; repeatable",
    )


def option_names() -> list[str]:
    return [*FIELDS, *FLAGS, *_LISTS, "workspace", "envFile", "registryPassword"]


def resolve(
    args: argparse.Namespace, *, filed: bool = True, line: dict[str, Any] | None = None
) -> tuple[dict[str, Any], str, list[str]]:
    """Merge flags over the project file into the job's fields and its workspace.

    `line`: options of a job in a file, by the names and with the values of a project file, which they override.
    Returns the fields by their API names, without the workspace; the workspace: a path, a URL or `none`; and the
    patterns of excluded files to upload.
    """
    path = project_file.find() if filed else None
    options = project_file.read(path) if path else {}
    _refuse_unknown(options, path)
    if line:
        options = _override(options, line, path)
    files = {name: path for name in options if name not in (line or {})}
    spec: dict[str, Any] = {}
    for name, (convert, _, _) in FIELDS.items():
        given = getattr(args, name)
        value = options.get(name) if given is None else given
        if value is not None:
            spec[SENT_AS.get(name, name)] = _convert(convert, name, value, files.get(name) if given is None else None)
    for name in FLAGS:
        given = getattr(args, name)
        if _boolean(name, options.get(name), files.get(name)) if given is None else given:
            spec[name] = True
    _resolve_project(spec, args, path)
    spec |= _resolve_lists(args, options, files.get("envVars"))
    add_registry_password(spec, args.registryPassword, may_prompt=line is None)
    if spec.get("buildOnly"):
        spec.setdefault("command", "")
    elif not spec.get("command"):
        where = path or ".gradient.toml (`gradient-cli projects init`)"
        raise UsageError("command: required", hint=f"For example --command 'python main.py'; or set it in {where}.")
    filed_workspace, from_file = options.get("workspace"), "workspace" in files
    workspace = workspace_path.choose(args, filed_workspace, path, checked=from_file, may_prompt=line is None)
    if "requirementsFile" in spec:
        workspace_path.place_requirements(spec, workspace, path if args.requirements is None else None)
    return spec, workspace, args.include or _text_list("include", options.get("include"))


def _resolve_lists(args: argparse.Namespace, options: dict[str, Any], path: str | None) -> dict[str, Any]:
    """Return the options that may have several values, without empty ones; `path` is that of their variables."""
    lists: dict[str, Any] = {name: _text_list(name, options.get(name)) for name in _TEXT_LISTS}
    lists["params"] = variables.parse_params(options.get("params"))
    lists["ports"] = _filed_ports(options.get("ports"))
    given = _given_lists(args)
    environment = {**variables.parse_filed(options.get("envVars"), path), **given.pop("envVars", {})}
    given["params"] = {**lists["params"], **given.get("params", {})}
    return {name: value for name, value in {"envVars": environment, **lists, **given}.items() if value}


def _override(options: dict[str, Any], line: dict[str, Any], path: str | None) -> dict[str, Any]:
    """Return the options of a project file with those of a line in their place; variables and parameters are added."""
    _refuse_unknown(line, None)
    for name, other in (("project", "projectId"), ("projectId", "project")):
        if name in line:
            options = {key: value for key, value in options.items() if key != other}
    filed, line_variables = (
        variables.parse_filed(options.get("envVars"), path),
        variables.parse_filed(line.get("envVars"), None),
    )
    params = {**variables.parse_params(options.get("params")), **variables.parse_params(line.get("params"))}
    return {**options, **line, "envVars": {**filed, **line_variables}, "params": params}


def resolve_workspace(args: argparse.Namespace) -> str:
    path = project_file.find()
    return workspace_path.choose(args, project_file.read(path).get("workspace") if path else None, path)


def _given_lists(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that may be given several times, without empty ones."""
    environment: dict[str, str] = {}
    for path in args.envFile or []:
        environment |= variables.read_file(path)
    environment |= variables.parse(args.envVars)
    lists = {
        "envVars": environment,
        "params": variables.parse_params(args.param),
        "ports": args.ports,
        **{name: getattr(args, FLAG_OF.get(name, name), None) for name in _TEXT_LISTS},
    }
    if lists["packages"]:
        lists["packages"] = [item.strip() for line in lists["packages"] for item in _NEXT_PACKAGE.split(line)]
    return {name: value for name, value in lists.items() if value}


def _filed_ports(filed: object) -> list[str]:
    return [filed] if isinstance(filed, str) else _text_list("ports", filed)


def _convert(convert: Callable[[str, object], object], name: str, value: object, path: str | None) -> object:
    """Convert the value of a field; an error in a project file names the file."""
    try:
        return convert(name, value)
    except UsageError as error:
        raise UsageError(_in_file(path, str(error)), hint=error.hint) from None


def _in_file(path: str | None, message: str) -> str:
    return f"{path}: {message}" if path else message


def _refuse_unknown(filed: dict[str, Any], path: str | None) -> None:
    options = [*FIELDS, *FLAGS, *_TEXT_LISTS, "workspace", "include", "envVars", "params", "ports"]
    for name in filed:
        if name in options:
            continue
        if name == "registryPassword":
            raise UsageError(
                _in_file(path, "registryPassword must not be in a file"), hint="Remove it; you will be prompted for it."
            )
        if name in {"url", "apiKey"}:
            hint = "The server and the key are never read from a project file: use `gradient-cli login`."
        else:
            from gradient_cli.suggestions import nearest_option

            flags = {flag: option for option, flag in FLAG_OF.items()}
            near = flags.get(name) or nearest_option(name, options)
            hint = f"Did you mean {near}?" if near else f"Known options: {', '.join(options)}."
        raise UsageError(_in_file(path, f"unknown option {name!r}"), hint=hint)


def _resolve_project(spec: dict[str, Any], args: argparse.Namespace, path: str | None) -> None:
    if "project" not in spec or "projectId" not in spec:
        return
    if args.project is not None and args.projectId is None:
        del spec["projectId"]
    elif args.projectId is not None and args.project is None:
        del spec["project"]
    else:
        where = f" in {path}" if path and args.project is None else ""
        raise UsageError(f"project: given as both project and projectId{where}", hint="Give one of them.")


def _text_list(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise UsageError(f"{name}: must be a list of strings", hint=f'For example {name} = ["first", "second"].')


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(f"{name}: must be text, not {value!r}", hint="Put quotes around it.")


def _boolean(name: str, value: object, path: str | None) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise UsageError(_in_file(path, f"{name}: must be true or false, not {value!r}"), hint="Write it without quotes.")


def _integer(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value))
    except ValueError:
        raise UsageError(f"{name}: {value!r} is not a whole number", hint=f"For example --{name} 2.") from None


def _text_or_number(name: str, value: object) -> str:
    """Convert a text that a project file may give as a number: a lone UID, or seconds."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(name, value)


def _float(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise UsageError(f"{name}: {value!r} is not a number", hint=f"For example --{name} 2.") from None


# Every option that may be repeated, with its placeholder and help text.
_LISTS = {
    "include": (
        "PATTERN",
        "pattern (as in .gitignore) of excluded workspace files to upload anyway; repeatable",
    ),
    "envVars": (
        "NAME=VALUE",
        (
            "environment variable, or a JSON object of several; NAME alone copies the local value, "
            "NAME=secret:SECRET passes a stored secret; repeatable"
        ),
    ),
    "param": (
        "NAME=VALUE",
        "hyperparameter for finding, sorting and comparing jobs; the job gets it in $GRADIENT_PARAMS; repeatable",
    ),
    "ports": (
        "EXTERNAL:INTERNAL",
        (
            "port to publish: EXTERNAL on the host, INTERNAL in the job; INTERNAL only: any free port of the host; "
            "append :https for an https link; comma separated or repeatable"
        ),
    ),
    "outputs": (
        "GLOB",
        (
            "workspace files to keep as artifacts when the job ends: 'outputs/**', '*.pt'; a folder "
            "includes everything in it; repeatable"
        ),
    ),
    "after": (
        "ID[:ended]",
        "start after this job has succeeded, or with :ended after it has ended in any way; repeatable",
    ),
    "inputs": (
        "ID:FOLDER",
        "start after this job has succeeded, with its artifacts in a new folder of the workspace; repeatable",
    ),
    "notify": (
        "NAME[:EVENTS]",
        "tell this saved receiver of the job's end, or of events such as slack:job.running,job.failed; repeatable",
    ),
    "slurmOptions": ("OPTION", "option of sbatch on a Slurm cluster, such as --slurmOptions=--account=lab; repeatable"),
    "dataDisks": (
        "NAME[:rw]",
        "persistent disk for a job on a TPU VM, mounted at /disks/NAME; append :rw to write to it; repeatable",
    ),
    "metricPatterns": (
        "NAME=REGEX",
        "metric to read from the log with a regular expression that has one group: 'loss=loss ([0-9.]+)'; repeatable",
    ),
    "tag": ("TAG", "label of the job; repeatable"),
    "with": (
        "PACKAGE",
        (
            "packages to install in addition to the folder's requirements, as lines of a requirements.txt; auto: "
            "packages for the modules that the program imports; comma separated or repeatable"
        ),
    ),
    "extra": ("NAME", "extra of the folder's pyproject.toml to install; repeatable"),
    "group": ("NAME", "dependency group of the folder's pyproject.toml to install; repeatable"),
}

# Every boolean option of a job, with its help text.
FLAGS = {
    "useDockerfile": "build the image from the workspace's Dockerfile and run the job in it",
    "buildOnly": "with --useDockerfile: build and push the image without running a command",
    "ignoreEntrypoint": "run the command without the image's ENTRYPOINT",
    "waitAnyway": "submit the job even if no worker is large enough for it now",
}

# Every option of a job with one value: its converter, and its placeholder and help text.
FIELDS = {
    "machineType": (
        _text,
        "NAME",
        "machine type to run on; `gradient-cli machine-types` lists them (default: the server's)",
    ),
    "container": (
        _text,
        "IMAGE",
        "image to run in: a reference, or a short name from `gradient-cli images list` (default: the worker's setting)",
    ),
    "imagePullPolicy": (
        _text,
        "WHEN",
        "when to pull the image: Always, IfNotPresent or Never (default: the worker's setting)",
    ),
    "relDockerfilePath": (
        _text,
        "PATH",
        "with --useDockerfile: path of the Dockerfile in the workspace (default: Dockerfile)",
    ),
    "registryTarget": (_text, "IMAGE", "with --useDockerfile: image reference to push the built image to"),
    "command": (_text, "TEXT", "command to run (required); quote it so that your shell does not expand $VARIABLES"),
    "array": array_members.OPTION,
    "arrayReuse": (_text, "on|off", "reuse one sandbox for consecutive members (default: only for jobs under 1 s)"),
    "nodes": (_integer, *array_members.NODES),
    "name": (_text, "NAME", "name of the job (default: job N)"),
    "project": (_text, "NAME", "name of the project, created if missing (default: default)"),
    "projectId": (_text, "ID", "id of an existing project, instead of --project"),
    "timeLimit": (
        parse_duration,
        "TIME",
        "stop the job after this running time: 90m, 2h, or seconds (default: no limit)",
    ),
    "maxCost": (
        _float,
        "DOLLARS",
        "stop the job at this cost, of all attempts; the jobs of an array, a sweep or a comparison share it",
    ),
    "maxGpuHours": (
        _float,
        "HOURS",
        "stop the job at these GPU hours, which machines without a price use, too",
    ),
    "stopGrace": (parse_duration, "TIME", "time between the signal of a stop and SIGKILL (default: 60s)"),
    "stopSignal": (
        _text,
        "SIGNAL",
        "signal in place of SIGTERM: TERM, INT, HUP, QUIT, USR1, USR2 (default: the image's STOPSIGNAL, or TERM)",
    ),
    "warnBefore": (
        _text_or_number,
        "TIME[:SIGNAL]",
        "warn the main program before its time is up: 300s, 5m:USR1 (default signal: TERM)",
    ),
    "keepOnFail": (parse_duration, "TIME", "keep a failed job's machine for a look, such as 30m (default: no time)"),
    "onIdle": (_text, "notify:TIME,stop:TIME", "act when nothing works in the job and nobody uses it for this time"),
    "onStall": (
        _text,
        "notify:K,stop:K|retry:K",
        "act when no step or output comes for K (default: 10) times the longest pause between steps",
    ),
    "onDiverge": (_text, "notify,stop", "act when a loss is NaN or explodes"),
    "onDisk": (_text, "notify:P,stop:P|retry:P", "act when P (default: 90) percent of the disk space is used"),
    "maxAttempts": (_integer, "N", "maximum attempts; above 1, failures that might not recur are retried (default: 1)"),
    "capacity": (_text, "KIND", "TPU capacity: standard, spot, flex-start, reserved (default: the server's settings)"),
    "priority": (_integer, "0-100", "jobs with higher priority start first (default: 50)"),
    "registryUsername": (_text, "NAME", "username for the registry of --container, for this job only"),
    "cpus": (_float, "N", "limit on CPU cores, if the machine type leaves a choice"),
    "memoryMb": (memory_size.parse, "MB", "limit on memory in MiB, if the machine type leaves a choice"),
    "sharedMemMb": (memory_size.parse, "MB", "size of /dev/shm in MiB, which counts towards the job's memory"),
    "workingDirectory": (
        _text,
        "PATH",
        "folder to start the command in: in the workspace, or absolute in the container (default: the workspace)",
    ),
    "user": (_text_or_number, "UID[:GID]", "user to run as: numeric ids, or root (default: the host's setting)"),
    "network": (_text, "none", "none: no network but localhost (default: the host's setting)"),
    "requirements": (
        _text,
        "FILE",
        "file that declares the packages: requirements.txt, pyproject.toml, ... (default: the first one found)",
    ),
    "python": (
        _text,
        "VERSION",
        "Python version for jobs that run without containers, such as 3.12 (default: the service's version)",
    ),
}
_TEXT_LISTS = (
    "tags",
    "outputs",
    "dataDisks",
    "slurmOptions",
    "packages",
    "extras",
    "groups",
    "metricPatterns",
    "after",
    "inputs",
    "notify",
)
"""Options that are lists in a project file, too."""
FLAG_OF = {"tags": "tag", "packages": "with", "extras": "extra", "groups": "group", "params": "param"}
_SHORT = {
    "metricPatterns": "--metric",
    "inputs": "--input",
    "machineType": "-m",
    "container": "-c",
    "name": "-n",
    "project": "-p",
    "envVars": "-e",
    "tag": "-t",
}
_NOT_CHANGED = {"array", "nodes", "project", "projectId", "registryUsername", "include"}
SENT_AS = {"workingDirectory": "workingDir", "requirements": "requirementsFile"}
