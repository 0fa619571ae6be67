"""Translates the parameters of `createJob` to the spec of a job, by one table."""

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from starlette.exceptions import HTTPException

from core.errors import SpecInvalid
from core.jobs.spec.container_options import WORKSPACE
from service.original.params import Params
from service.original.presenters import CLUSTER, CLUSTER_ID
from service.schemas.base import parse_request
from service.schemas.jobs import SubmitJob

DEFAULT_MACHINE_TYPE = "K80"  # the machine type of jobs that name none, as in the original service

_BASE64_CLIENT = "paperspace-node"
"""The client that sends commands as base64. Guessing would fail: `date` and `true` are valid base64, too."""
_URL_PREFIXES = ("https://", "http://", "git+", "git:", "ssh://", "s3://")

Reader = Callable[[Params, str], object]


def _read_text(given: Params, name: str) -> object:
    return given.text(name)


def _read_flag(given: Params, name: str) -> object:
    return given.flag(name) or None


def _read_number(given: Params, name: str) -> object:
    text = given.text(name)
    if text is not None and not re.fullmatch(r"[0-9]{1,9}", text):
        raise SpecInvalid(f"{text[:80]!r} is not a whole number.", field=name)
    return None if text is None else int(text)


def _read_env(given: Params, name: str) -> object:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.object(name).items()}


def _read_folder(given: Params, name: str) -> object:
    folder = given.text(name)
    return None if folder is None or folder.rstrip("/") == WORKSPACE else folder


FIELDS: dict[str, tuple[str | None, Reader]] = {
    "name": ("name", _read_text),
    "machineType": ("machineType", _read_text),
    "container": ("container", _read_text),
    "project": ("project", _read_text),
    "projectId": ("projectId", _read_text),
    "envVars": ("envVars", _read_env),
    "codeCommit": ("codeCommit", _read_text),
    "workingDirectory": ("workingDir", _read_folder),
    "ports": ("ports", _read_text),
    "sharedMemMBytes": ("sharedMemMb", _read_number),
    "isPreemptible": (None, _read_flag),
    "nodeAttrs": (None, _read_text),
    "targetNodeAttrs": (None, _read_text),
    "dataset": (None, _read_text),
    "datasets": (None, _read_text),
    "registryUsername": ("registryUsername", _read_text),
    "registryPassword": ("registryPassword", _read_text),
    "useDockerfile": ("useDockerfile", _read_flag),
    "relDockerfilePath": ("relDockerfilePath", _read_text),
    "buildOnly": ("buildOnly", _read_flag),
    "registryTarget": ("registryTarget", _read_text),
    "registryTargetUsername": (None, _read_text),
    "registryTargetPassword": (None, _read_text),
}
"""By original name: the field of `SubmitJob` (None: refused if given) and the function that reads it."""


def to_submit_job(given: Params, client: str | None, *, uploaded: bool) -> SubmitJob:
    """Build the same job as a request of the main API."""
    if given.text("project") and given.text("projectId"):
        raise HTTPException(422, "Incompatible parameters: project and projectId cannot both be specified")
    _check_cluster(given)
    spec: dict[str, Any] = {"machineType": DEFAULT_MACHINE_TYPE, "command": _decode_command(given, client)}
    spec["waitAnyway"] = True  # as the original service did
    for name, (field, read) in FIELDS.items():
        value = read(given, name)
        if value in (None, {}):
            continue
        if field is None:
            raise SpecInvalid(f"`{name}` is not supported by this service. Leave it out.", field=name)
        spec[field] = value
    if "useDockerfile" in spec:
        spec.pop("container", None)  # two of the clients send their default with every job
    workspace = _workspace_url(given, uploaded=uploaded)
    return parse_request(SubmitJob, spec if workspace is None else spec | {"workspace": workspace})


def _check_cluster(given: Params) -> None:
    for name, ours in (("clusterId", CLUSTER_ID), ("cluster", CLUSTER)):
        requested = given.text(name)
        if requested is not None and requested.casefold() not in {ours.casefold(), CLUSTER_ID}:
            raise SpecInvalid(
                f"No such cluster: {requested[:80]!r}. The only cluster is {ours!r}; leave the option out.", field=name
            )


def _decode_command(given: Params, client: str | None) -> str:
    command = given.text("command") or ""
    if client != _BASE64_CLIENT:
        return command
    try:
        return base64.b64decode(command, validate=True).decode()
    except (binascii.Error, ValueError) as error:  # not ASCII, or not UTF-8
        raise SpecInvalid("command: not the base64 of UTF-8 text, which this client sends.", field="command") from error


def _workspace_url(given: Params, *, uploaded: bool) -> str | None:
    name = given.text("workspaceFileName")
    if uploaded or name is None or name == "none":
        return None
    if not name.startswith(_URL_PREFIXES):
        raise SpecInvalid(
            "The upload is missing: send the file as the part `file` of a form, or a git URL as workspaceFileName.",
            field="workspaceFileName",
        )
    user, password = given.text("workspaceUsername"), given.text("workspacePassword")
    return name if user is None and password is None else _with_credentials(name, user or "", password)


def _with_credentials(url: str, user: str, password: str | None) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets without an IPv6 address
        raise SpecInvalid(
            "workspaceFileName: not an address that can be fetched.", field="workspaceFileName"
        ) from error
    secret = "" if password is None else f":{quote(password, safe='')}"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}{secret}@{host}"))
