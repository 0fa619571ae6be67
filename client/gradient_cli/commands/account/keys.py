from __future__ import annotations

import argparse
import sys

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_moment, format_past, print_json, print_result, print_table
from gradient_cli.options import add_common, add_positional


def add_create(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the key: who or what it is for")
    parser.add_argument("--days", metavar="N", help="days until the key expires (default: never)")
    add_common(parser, create_key)


def add_list(parser: argparse.ArgumentParser) -> None:
    add_common(parser, list_keys)


def add_revoke(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the key, as `gradient-cli keys list` shows it")
    add_common(parser, revoke_key)


def create_key(args: argparse.Namespace) -> int:
    if args.days is not None and not args.days.isdecimal():
        raise UsageError(f"days: {args.days!r} is not a whole number", hint="For example --days 90.")
    created = connect(args).create_key(args.name, None if args.days is None else int(args.days))
    if args.json:
        return print_json(created)
    sys.stdout.write(f"{created['apiKey']}\n")
    expires = created.get("expiresAt")
    until = f"it expires at {format_moment(expires)}" if expires else "it never expires (use --days N for an expiry)"
    terminal.print_message(f"created key {created['id']}; it is shown only once, for `gradient-cli login`; {until}")
    return OK


def list_keys(args: argparse.Namespace) -> int:
    answer = connect(args).keys()
    if args.json:
        return print_json(answer)
    rows = [
        [
            str(key["id"]),
            str(key["name"]),
            str(key.get("state") or ""),
            format_past(key.get("lastUsedAt")) or "never",
            format_past(key.get("createdAt")),
            str(key.get("expiresAt") or "never")[:10],
        ]
        for key in answer["keys"]
    ]
    print_table(("ID", "NAME", "STATE", "LAST USED", "CREATED", "EXPIRES"), rows, whole=("ID",))
    return OK


def revoke_key(args: argparse.Namespace) -> int:
    connect(args).revoke_key(args.id)
    return print_result(args, {"id": args.id, "revoked": True}, f"revoked {terminal.sanitize(args.id)}")
