"""`secrets` and `registries`: write-only credentials of jobs, read from a file, a pipe or a prompt, never a flag."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.commands.projects import find_project
from gradient_cli.errors import UsageError
from gradient_cli.formatting import format_past, print_list, print_result
from gradient_cli.options import add_common, add_positional

_STDIN = "-"


def add_set_secret(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "name",
        needed=True,
        metavar="NAME",
        help="name of the secret; jobs refer to it with --envVars VARIABLE=secret:NAME",
    )
    parser.add_argument(
        "--from-file", metavar="FILE", help="read the value from a file, unchanged (default: prompt or standard input)"
    )
    _add_common(parser, set_secret)


def add_delete_secret(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the secret")
    _add_common(parser, delete, kind="secrets")


def add_set_registry(parser: argparse.ArgumentParser) -> None:
    _add_host(parser)
    parser.add_argument("--username", metavar="NAME", help="username to log in with (required)")
    parser.add_argument("--push", action="store_true", help="also let jobs push images they build to this registry")
    _add_common(parser, set_registry)


def add_delete_registry(parser: argparse.ArgumentParser) -> None:
    _add_host(parser)
    _add_common(parser, delete, kind="registries")


def _add_host(parser: argparse.ArgumentParser) -> None:
    text = "host as in image names, such as ghcr.io or localhost:5000; docker.io for Docker Hub"
    add_positional(parser, "name", needed=True, metavar="HOST", help=text)


def _add_common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], **defaults: str) -> None:
    parser.add_argument("--project", metavar="NAME", help="only for jobs of this project (default: all projects)")
    add_common(parser, run, **defaults)


def set_secret(args: argparse.Namespace) -> int:
    api = connect(args)
    project_id = _project_id(api, args.project)
    # A file is sent unchanged: the newline at the end of a private key belongs to it.
    value = _read_file(args.from_file) if args.from_file else read_hidden("value", f"Value of {args.name}: ")
    secret = api.set_credential("secrets", args.name, {"value": value}, project_id)
    return print_result(args, secret, f"stored; jobs get it with --envVars {args.name}=secret:{args.name}")


def list_secrets(args: argparse.Namespace) -> int:
    api = connect(args)
    answer = api.credentials("secrets", _project_id(api, args.project))
    rows = [
        [secret["name"], format_past(secret["createdAt"]), format_past(secret["updatedAt"])]
        for secret in answer["secrets"]
    ]
    empty = "no secrets yet; `gradient-cli secrets set NAME` stores one"
    return print_list(args, answer, ("NAME", "CREATED", "CHANGED"), rows, empty)


def set_registry(args: argparse.Namespace) -> int:
    if not args.username:
        raise UsageError("username: required", hint="For example --username alice.")
    api = connect(args)
    project_id = _project_id(api, args.project)
    password = read_hidden("password", f"Password of {args.username} at {args.name}: ")
    login = {"username": args.username, "password": password, "push": args.push}
    registry = api.set_credential("registries", args.name, login, project_id)
    also = ", also to push" if args.push else ""
    return print_result(args, registry, f"stored; workers log in to {registry['host']} as {args.username}{also}")


def list_registries(args: argparse.Namespace) -> int:
    api = connect(args)
    answer = api.credentials("registries", _project_id(api, args.project))
    rows = [
        [
            registry["host"],
            registry["username"],
            "yes" if registry.get("push") else "no",
            format_past(registry["updatedAt"]),
        ]
        for registry in answer["registries"]
    ]
    empty = "no registries yet; `gradient-cli registries set HOST --username NAME` stores one"
    return print_list(args, answer, ("HOST", "USERNAME", "PUSH", "CHANGED"), rows, empty)


def delete(args: argparse.Namespace) -> int:
    api = connect(args)
    api.delete_credential(args.kind, args.name, _project_id(api, args.project))
    return print_result(args, {"name": args.name, "deleted": True}, f"deleted {terminal.sanitize(args.name)}")


def _project_id(api: Api, name: str | None) -> str | None:
    if name is None:
        return None
    return str(find_project(api, name)["id"])


def add_registry_password(spec: dict[str, Any], given: str | None, *, may_prompt: bool) -> None:
    """Read the registry password: the value of a flag would be visible to every user of this machine."""
    if given not in {None, "-"}:
        raise UsageError(
            "registryPassword: cannot be given as an option, because other users can read command lines",
            hint="Use --registryPassword - and pipe it in, or leave it out for a prompt.",
        )
    if "registryUsername" in spec:
        if not may_prompt:
            raise UsageError(
                "registryUsername: jobs in a file cannot have passwords",
                hint="Store the login once, with `gradient-cli registries set`.",
            )
        spec["registryPassword"] = read_hidden("registryPassword", f"Registry password of {spec['registryUsername']}: ")
    elif given is not None:
        raise UsageError(
            "registryUsername: required with registryPassword", hint="For example --registryUsername alice."
        )


def read_hidden(field: str, prompt: str) -> str:
    """Read a value that is never shown: from a prompt on a terminal, else all of stdin without its final newline."""
    if terminal.is_tty(sys.stdin):
        import getpass

        value = getpass.getpass(prompt, stream=sys.stderr)
    else:
        value = _read_file(_STDIN).removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError(f"{field}: empty", hint="Enter it at the prompt, or pipe it in.")
    return value


def _read_file(path: str) -> str:
    try:
        if path == _STDIN:
            return sys.stdin.buffer.read().decode()
        with open(path, "rb") as file:
            return file.read().decode()
    except UnicodeDecodeError:
        where = "standard input" if path == _STDIN else path
        raise UsageError(f"{where}: not UTF-8 text", hint="Encode it, for example with base64.") from None


add_list_secrets, add_list_registries = (partial(_add_common, run=run) for run in (list_secrets, list_registries))
