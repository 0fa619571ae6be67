from __future__ import annotations

import argparse
import sys
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.commands.projects import add_budgets, describe_budgets
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_moment, format_past, print_fields, print_json, print_list, print_result
from gradient_cli.options import add_common, add_positional


def add_create(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the key: who or what it is for")
    parser.add_argument("--days", metavar="N", help="days until the key expires (default: never)")
    parser.add_argument(
        "--scope",
        choices=("read", "submit", "admin"),
        default="submit",
        help="read: see everything; submit: also submit, and change what is its own (default); admin: all",
    )
    parser.add_argument(
        "--projects", metavar="NAMES", help="only projects it may see and submit to, separated by commas"
    )
    parser.add_argument("--machineTypes", metavar="NAMES", help="only machine types it may use, separated by commas")
    parser.add_argument("--maxJobs", metavar="N", help="most unfinished jobs that it may have at once")
    parser.add_argument("--agent", action="store_true", help="the key is used by a program, not by a person")
    add_budgets(parser)
    add_common(parser, create_key)


def add_revoke(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the key, as `gradient-cli keys list` shows it")
    add_common(parser, revoke_key)


def create_key(args: argparse.Namespace) -> int:
    key: dict[str, Any] = {"name": args.name, "scope": args.scope, "agent": args.agent}
    if args.budgets:
        key["budgets"] = args.budgets
    for option in ("days", "maxJobs", "projects", "machineTypes"):
        text = getattr(args, option)
        if text is None:
            continue
        if option in {"projects", "machineTypes"}:
            key[option] = [name.strip() for name in text.split(",") if name.strip()]
        elif text.isdecimal():
            key[option] = int(text)
        else:
            raise UsageError(f"{option}: {text!r} is not a whole number", hint=f"For example --{option} 90.")
    created = connect(args).create_key(key)
    if args.json:
        return print_json(created)
    sys.stdout.write(f"{created['apiKey']}\n")
    expires = created.get("expiresAt")
    until = f"it expires at {format_moment(expires)}" if expires else "it never expires (use --days N for an expiry)"
    terminal.print_message(f"created key {created['id']}; it is shown only once, for `gradient-cli login`; {until}")
    return OK


def show_own_key(args: argparse.Namespace) -> int:
    api = connect(args)
    key = api.own_key()
    if args.json:
        return print_json({"server": api.url, **key})
    print_fields(
        {
            "Server": api.url,
            "Key": f"{key['name']} ({key['id']}){', of a program' if key.get('agent') else ''}",
            "Rights": describe_rights(key),
            "Roles": ", ".join(f"{role} of {name}" for name, role in sorted((key.get("roles") or {}).items())),
            "Expires": format_moment(key["expiresAt"]) if key.get("expiresAt") else "never",
        }
    )
    return OK


def describe_rights(key: dict[str, Any]) -> str:
    rights = ["admin" if key.get("administrator") else str(key.get("scope") or "submit")]
    for field, noun in (("projects", "projects"), ("machineTypes", "machine types")):
        if key.get(field) is not None:
            rights.append(f"only {noun} {', '.join(key[field])}")
    if key.get("maxJobs") is not None:
        rights.append(f"at most {key['maxJobs']:,} unfinished jobs")
    if key.get("budgets"):
        rights.append(describe_budgets(key["budgets"]))
    return "; ".join(rights)


def list_keys(args: argparse.Namespace) -> int:
    answer = connect(args).keys()
    rows = [
        [
            str(key["id"]),
            str(key["name"]),
            str(key.get("state") or ""),
            format_past(key.get("lastUsedAt")) or "never",
            format_past(key.get("createdAt")),
            str(key.get("expiresAt") or "never")[:10],
            describe_rights(key),
        ]
        for key in answer["keys"]
    ]
    heads = ("ID", "NAME", "STATE", "LAST USED", "CREATED", "EXPIRES", "RIGHTS")
    return print_list(args, answer, heads, rows, whole=("ID",))


def revoke_key(args: argparse.Namespace) -> int:
    connect(args).revoke_key(args.id)
    return print_result(args, {"id": args.id, "revoked": True}, f"revoked {terminal.sanitize(args.id)}")
