"""`notifications`: receivers that are told when jobs end. Their URLs are read from a pipe or a prompt, never a flag."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.commands.account.credentials import read_hidden
from gradient_cli.errors import FAILED, OK, ClientError
from gradient_cli.formatting import (
    format_past,
    parse_duration,
    print_fields,
    print_json,
    print_list,
    print_result,
    print_table,
)
from gradient_cli.options import add_common, add_positional

_WAIT_SECONDS = 60.0


def _add(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the receiver; jobs name it with --notify")
    add_common(parser, run)


def add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--events", metavar="EVENTS", help="what it is told of, comma separated: job.failed,array.ended (default: ends)"
    )
    parser.add_argument(
        "--jobs",
        metavar="WHOSE",
        action="append",
        default=[],
        help="tell it of all your jobs (mine), of a project's (project:NAME) or of everybody's (all), not only of "
        "those that name it; repeatable",
    )
    parser.add_argument(
        "--quiet", metavar="TIME", help="after a message, collect further ones for this time: 10m, 1h (default: no)"
    )
    _add(parser, create)


def add_replay(parser: argparse.ArgumentParser) -> None:
    _add(parser, replay)
    add_positional(parser, "message", needed=True, metavar="ID", help="id of the message, msg_…")


def create(args: argparse.Namespace) -> int:
    settings: dict[str, Any] = {"jobs": args.jobs}
    if args.events:
        settings["events"] = [event.strip() for event in args.events.split(",")]
    if args.quiet:
        settings["quietSeconds"] = parse_duration("quiet", args.quiet)
    api = connect(args)
    settings["url"] = read_hidden("url", f"URL of {args.name}: ").strip()
    receiver = api.notifications("PUT", args.name, body=settings)
    text = f"saved; jobs tell it with --notify {args.name}"
    if receiver["secret"]:
        text += f"\n  messages are signed with  {receiver['secret']}"
    return print_result(args, receiver, text)


def list_receivers(args: argparse.Namespace) -> int:
    answer = connect(args).notifications("GET")
    rows = [list(_describe_receiver(receiver).values())[:5] for receiver in answer["receivers"]]
    empty = "no receivers yet; `gradient-cli notifications create NAME` saves one"
    return print_list(args, answer, ("NAME", "ADDRESS", "JOBS", "EVENTS", "STATE"), rows, empty)


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    receiver = api.notifications("GET", args.name)
    messages = api.notifications("GET", args.name, "deliveries")["deliveries"]
    if args.json:
        return print_json({**receiver, "deliveries": messages})
    print_fields(_describe_receiver(receiver))
    if messages:
        print()
        rows = [_describe_message(message) for message in messages]
        print_table(("ID", "EVENT", "STATE", "CREATED", "TRIES", "LAST ANSWER"), rows)
    return OK


def _describe_receiver(receiver: dict[str, Any]) -> dict[str, str]:
    return {
        "name": receiver["name"],
        "address": receiver["address"],
        "jobs": ", ".join(receiver["jobs"]) or "those that name it",
        "events": ", ".join(receiver["events"]),
        "state": receiver["disabled"] or "enabled",
        "quiet": f"{receiver['quietSeconds']} s after a message" if receiver["quietSeconds"] else "",
        "owner": receiver["ownerKey"],
    }


def _describe_message(message: dict[str, Any]) -> list[str]:
    tries, created = message["tries"], format_past(message["createdAt"])
    answer = _describe_answer(tries[-1]) if tries else ""
    return [message["id"], message["event"], message["state"], created, str(len(tries)), answer]


def _describe_answer(tried: dict[str, Any]) -> str:
    status = "" if tried["status"] is None else f"HTTP {tried['status']} "
    return f"{status}{tried['answer']}".strip() + f" ({tried['seconds']:.2g} s)"


def test(args: argparse.Namespace) -> int:
    api = connect(args)
    return _follow(args, api, api.notifications("POST", args.name, "test"))


def replay(args: argparse.Namespace) -> int:
    api = connect(args)
    return _follow(args, api, api.notifications("POST", args.name, "deliveries", args.message, "replay"))


def _follow(args: argparse.Namespace, api: Api, sent: dict[str, Any]) -> int:
    """Wait for the next try of a message, and print what came back."""
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        for message in api.notifications("GET", args.name, "deliveries")["deliveries"]:
            if message["id"] == sent["id"] and len(message["tries"]) > len(sent["tries"]):
                answer = _describe_answer(message["tries"][-1])
                if message["state"] != "delivered" and not args.json:
                    raise ClientError(f"{args.name} did not take message {sent['id']}: {answer}")
                print_result(args, message, f"delivered as {sent['id']}: {answer}")
                return OK if message["state"] == "delivered" else FAILED
        time.sleep(0.3)
    raise ClientError(
        f"Message {sent['id']} was not sent within {_WAIT_SECONDS:.0f} s",
        hint=f"`gradient-cli notifications show {args.name}` shows when it is.",
    )


def delete(args: argparse.Namespace) -> int:
    connect(args).notifications("DELETE", args.name)
    return print_result(args, {"name": args.name, "deleted": True}, f"deleted {terminal.sanitize(args.name)}")


add_show, add_test, add_delete = (partial(_add, run=run) for run in (show, test, delete))
