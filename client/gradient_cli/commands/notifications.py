"""`notifications`: receivers that are told when jobs end. Their URLs are read from a pipe or a prompt, never a flag."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.commands.account.credentials import read_hidden
from gradient_cli.errors import FAILED, OK, ClientError
from gradient_cli.formatting import format_past, parse_duration, print_fields, print_json, print_result, print_table
from gradient_cli.options import add_common, add_positional

_SHOWN = 5  # last messages of a receiver
_WAIT_SECONDS = 60.0
_HEADS = ("ID", "EVENT", "STATE", "CREATED", "TRIES", "LAST ANSWER")


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


def add_list(parser: argparse.ArgumentParser) -> None:
    add_common(parser, list_receivers)


def add_show(parser: argparse.ArgumentParser) -> None:
    _add(parser, show)


def add_test(parser: argparse.ArgumentParser) -> None:
    _add(parser, test)


def add_deliveries(parser: argparse.ArgumentParser) -> None:
    _add(parser, deliveries)


def add_replay(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the receiver")
    add_positional(parser, "message", needed=True, metavar="ID", help="id of the message, msg_…")
    add_common(parser, replay)


def add_delete(parser: argparse.ArgumentParser) -> None:
    _add(parser, delete)


def create(args: argparse.Namespace) -> int:
    settings: dict[str, Any] = {"jobs": args.jobs}
    if args.events:
        settings["events"] = [event.strip() for event in args.events.split(",")]
    if args.quiet:
        settings["quietSeconds"] = parse_duration("quiet", args.quiet)
    api = connect(args)
    settings["url"] = read_hidden("url", f"URL of {args.name}: ").strip()
    receiver = api.save_receiver(args.name, settings)
    text = f"saved; jobs tell it with --notify {args.name}"
    if receiver["secret"]:
        text += f"\n  messages are signed with  {receiver['secret']}"
    return print_result(args, receiver, text)


def list_receivers(args: argparse.Namespace) -> int:
    answer = connect(args).receivers()
    if args.json:
        print_json(answer)
    elif not answer["receivers"]:
        terminal.print_message("no receivers yet; `gradient-cli notifications create NAME` saves one")
    else:
        rows = [
            [
                receiver["name"],
                receiver["address"],
                ", ".join(receiver["jobs"]) or "those that name it",
                ", ".join(receiver["events"]),
                "disabled" if receiver["disabled"] else "enabled",
            ]
            for receiver in answer["receivers"]
        ]
        print_table(("NAME", "ADDRESS", "JOBS", "EVENTS", "STATE"), rows)
    return OK


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    receiver = api.receiver(args.name)
    if args.json:
        return print_json(receiver)
    print_fields(
        {
            "name": receiver["name"],
            "address": receiver["address"],
            "jobs": ", ".join(receiver["jobs"]) or f"those with --notify {receiver['name']}",
            "events": ", ".join(receiver["events"]),
            "quiet": f"{receiver['quietSeconds']} s after a message" if receiver["quietSeconds"] else "",
            "state": receiver["disabled"] or "enabled",
            "owner": receiver["ownerKey"],
        }
    )
    last = api.deliveries(args.name, limit=_SHOWN)["deliveries"]
    if last:
        print()
        _print_deliveries(last)
    return OK


def test(args: argparse.Namespace) -> int:
    api = connect(args)
    return _follow(args, api, api.test_receiver(args.name)["id"], before=0)


def replay(args: argparse.Namespace) -> int:
    api = connect(args)
    message = api.replay_delivery(args.name, args.message)
    return _follow(args, api, message["id"], before=len(message["tries"]))


def _follow(args: argparse.Namespace, api: Api, message_id: str, *, before: int) -> int:
    """Wait for the next try of a message, and print what came back."""
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        for message in api.deliveries(args.name, limit=200)["deliveries"]:
            if message["id"] == message_id and len(message["tries"]) > before:
                answer = _describe(message["tries"][-1])
                if message["state"] != "delivered" and not args.json:
                    raise ClientError(f"{args.name} did not take message {message_id}: {answer}")
                print_result(args, message, f"delivered as {message_id}: {answer}")
                return OK if message["state"] == "delivered" else FAILED
        time.sleep(0.3)
    raise ClientError(
        f"Message {message_id} was not sent within {_WAIT_SECONDS:.0f} s",
        hint=f"`gradient-cli notifications deliveries {args.name}` shows when it is.",
    )


def deliveries(args: argparse.Namespace) -> int:
    answer = connect(args).deliveries(args.name, limit=200)
    if args.json:
        print_json(answer)
    elif not answer["deliveries"]:
        terminal.print_message("no messages yet; `gradient-cli notifications test NAME` sends one")
    else:
        _print_deliveries(answer["deliveries"])
    return OK


def _print_deliveries(messages: list[dict[str, Any]]) -> None:
    rows = [
        [
            message["id"],
            message["event"],
            message["state"],
            format_past(message["createdAt"]),
            str(len(message["tries"])),
            _describe(message["tries"][-1]) if message["tries"] else "",
        ]
        for message in messages
    ]
    print_table(_HEADS, rows)


def _describe(tried: dict[str, Any]) -> str:
    status = "" if tried["status"] is None else f"HTTP {tried['status']} "
    return f"{status}{tried['answer']}".strip() + f" ({tried['seconds']:.2g} s)"


def delete(args: argparse.Namespace) -> int:
    connect(args).delete_receiver(args.name)
    return print_result(args, {"name": args.name, "deleted": True}, f"deleted {terminal.sanitize(args.name)}")
