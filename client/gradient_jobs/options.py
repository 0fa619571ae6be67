"""Options of a job, by the names that Python gives them, and the job's spec that they make."""

from __future__ import annotations

import difflib
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Union

from gradient_cli.api.client import Api
from gradient_cli.arguments import parse_moment
from gradient_cli.errors import UsageError
from gradient_cli.workspace import job_spec
from gradient_cli.workspace.array_members import parse_array

_LISTS = {
    *("tags", "outputs", "include", "ports", "data_disks", "packages", "extras", "groups", "metric_patterns"),
    *("after", "inputs", "notify", "slurm_options"),
}
_Path = Union[str, "os.PathLike[str]"]  # not `|`: Python 3.9 evaluates it


class JobOptions(TypedDict, total=False):
    """The options of `gradient-cli jobs create`: `machine_type` is `--machineType`."""

    command: str
    machine_type: str
    container: str
    name: str
    project: str
    project_id: str
    workspace: _Path
    include: Sequence[str]
    outputs: Sequence[str]
    metric_patterns: Sequence[str]
    after: Sequence[str]
    inputs: Sequence[str]
    notify: Sequence[str]
    array: str
    array_reuse: str
    nodes: int
    env_vars: Mapping[str, str | int | float | bool]
    env_file: _Path
    params: Mapping[str, str | int | float | bool]
    tags: Sequence[str]
    ports: Sequence[str | int]
    python: str
    packages: Sequence[str]
    requirements_file: _Path
    extras: Sequence[str]
    groups: Sequence[str]
    time_limit: str | int
    max_cost: float
    max_gpu_hours: float
    stop_grace: str | int
    stop_signal: str
    warn_before: str | int
    keep_on_fail: str | int
    on_idle: str
    on_stall: str
    on_diverge: str
    on_disk: str
    max_attempts: int
    priority: int
    capacity: str
    data_disks: Sequence[str]
    slurm_options: Sequence[str]
    cpus: float
    memory_mb: int
    shared_mem_mb: int
    working_directory: str
    user: str | int
    network: str
    image_pull_policy: str
    use_dockerfile: bool
    build_only: bool
    ignore_entrypoint: bool
    wait_anyway: bool
    rel_dockerfile_path: str
    registry_target: str
    registry_username: str
    registry_password: str


class JobFilters(TypedDict, total=False):
    """The filters of `gradient-cli jobs list`; states and tags are separated by commas."""

    state: str
    project: str
    project_id: str
    machine_type: str
    name: str
    query: str
    sort: str
    tag: str
    since: str
    mine: bool


def build_filters(filters: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """Return filters by their API names.

    Raises:
        UsageError: There is no such filter, or `since` is not a time.
    """
    names = JobFilters.__annotations__
    unknown = next((name for name in filters if name not in names), None)
    if unknown:
        raise _unknown(unknown, names)
    sent = {re.sub("_([a-z])", lambda match: match[1].upper(), name): value for name, value in filters.items()}
    sent["q"] = sent.pop("query", None)
    if sent.get("since"):
        sent["since"] = parse_moment("since", sent["since"], api).isoformat()
    return {**sent, "mine": "true" if sent.get("mine") else None}


def build_spec(options: Mapping[str, Any], *, filed: bool = True) -> tuple[dict[str, Any], str, list[str]]:
    """Merge options over the project file into the job's fields and its workspace, as the client does.

    Args:
        options: The options, as JobOptions has them; those that are None are as if not given.
        filed: Read the project file.

    Returns:
        The fields by their API names, the workspace, and the patterns of excluded files to upload.

    Raises:
        UsageError: A value has the wrong form, an option is unknown, or a required one is missing.
    """
    flags = {_python_name(name): name for name in job_spec.option_names()}
    given: dict[str, Any] = dict.fromkeys(flags.values())
    for name, value in options.items():
        if name not in flags:
            raise _unknown(name, flags)
        given[flags[name]] = _flag_value(name, value)
    # The client prompts for the password; a program has it.
    login = {name: given[name] for name in ("registryUsername", "registryPassword") if given[name] is not None}
    spec, workspace, include = job_spec.resolve(Namespace(**{**given, **dict.fromkeys(login)}), filed=filed)
    return {**spec, **login}, workspace, include


def build_remote_spec(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's fields from options of another machine: neither files nor variables of this one are read."""
    flags = {_python_name(name): name for name in job_spec.option_names() if name not in {"envFile", "include"}}
    api_names = {flag: name for name, flag in job_spec.FLAG_OF.items()} | job_spec.SENT_AS
    spec: dict[str, Any] = {}
    for name, value in options.items():
        if name not in flags:
            raise _unknown(name, flags)
        flag = flags[name]
        sent_as = api_names.get(flag, flag)
        if flag == "array":
            spec[sent_as] = parse_array(flag, value, reads_files=False)
        else:
            spec[sent_as] = job_spec.FIELDS[flag][0](flag, value) if flag in job_spec.FIELDS else value
    return spec


def _unknown(name: str, names: Iterable[str]) -> UsageError:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known options: {', '.join(names)}."
    return UsageError(f"unknown option {name!r}", hint=hint)


def _python_name(flag: str) -> str:
    name = {flag: name for name, flag in job_spec.FLAG_OF.items()}.get(flag, flag)
    return "requirements_file" if name == "requirements" else re.sub("([A-Z])", r"_\1", name).lower()


def _flag_value(name: str, value: object) -> object:
    """Return a value as the client's parser would."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name == "env_file" and isinstance(value, str):
        return [value]
    if name in _LISTS and value is not None:
        if isinstance(value, str):
            raise UsageError(f"{name}: must be a list of strings", hint=f"For example {name}=[{value!r}].")
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else value
    return value
