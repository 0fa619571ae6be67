from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.exec import CHUNK, Session
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import ClientError, UsageError
from gradient_cli.options import add_common, add_for_job, add_job_id

_SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"]


def add_exec(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    parser.usage = f"{parser.usage} [--] PROGRAM [ARGUMENTS]"
    parser.add_argument("-t", "--tty", action="store_true", help="run it in a terminal, for programs that require one")
    add_common(parser, run_command, json="")


def run_command(args: argparse.Namespace) -> int:
    if not args.program:
        raise UsageError("no command", hint="Give it after the id: gradient-cli jobs exec ID nvidia-smi")
    if args.tty and not terminal.is_tty(sys.stdin):
        raise UsageError("-t needs a terminal, but standard input is not a terminal", hint="Leave -t out.")
    return _run(args, args.program, tty=args.tty)


def open_shell(args: argparse.Namespace) -> int:
    return _run(args, _SHELL, tty=terminal.is_tty(sys.stdin) and terminal.is_tty(sys.stdout))


def _run(args: argparse.Namespace, command: list[str], *, tty: bool) -> int:
    api = connect(args)
    with api.run_in_job(resolve_job_id(args.id, api)) as connection:
        session = Session(connection, {"command": command, "terminal": _describe_terminal() if tty else None})
        with _forwarded_signals(session, tty=tty), _raw_terminal(tty=tty):
            _start_thread(session.send_input, partial(os.read, 0, CHUNK))
            for stream, data in session.outputs():
                output = sys.stderr.buffer if stream == 2 else sys.stdout.buffer  # noqa: PLR2004  as everywhere
                output.write(data)
                output.flush()
    if "exit" not in session.result:
        raise ClientError(terminal.sanitize(session.result.get("ended")))
    code: int = session.result["exit"]
    return code


def _start_thread(target: Any, *arguments: object) -> None:  # noqa: ANN401  any function
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _describe_terminal() -> dict[str, Any]:
    columns, rows = os.get_terminal_size(0)
    return {"rows": rows or 24, "columns": columns or 80, "term": os.environ.get("TERM") or "xterm"}


@contextmanager
def _forwarded_signals(session: Session, *, tty: bool) -> Iterator[None]:
    """Pass Ctrl-C on to the command, a second one to this program; in a terminal, pass on changes of its size."""
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()  # a signal handler may not wait for the connection's lock
    _start_thread(_send_messages, session, messages)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        messages.put({"signal": "INT"})

    def resize(*_: object) -> None:
        size = _describe_terminal()
        messages.put({"resize": [size["rows"], size["columns"]]})

    number, handler = (signal.SIGWINCH, resize) if tty else (signal.SIGINT, interrupt)
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _send_messages(session: Session, messages: SimpleQueue[dict[str, Any]]) -> None:
    while session.send(messages.get()):
        pass


@contextmanager
def _raw_terminal(*, tty: bool) -> Iterator[None]:
    """Pass every key on as it is typed, Ctrl-C too."""
    if not tty:
        yield
        return
    import termios
    import tty as modes

    before = termios.tcgetattr(0)
    try:
        modes.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


add_ssh = partial(add_for_job, run=open_shell, json="")
