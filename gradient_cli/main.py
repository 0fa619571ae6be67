"""Entry point of `gradient-cli`: the table of commands, and the handler of all errors.

Exit codes: that of the job (`jobs create`, `logs --follow`, `wait`); 1 if a job failed without one or the client
failed; 2 wrong usage; 3 server unreachable or key refused; 4 refused by the server; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS
from importlib import import_module

from gradient_cli import terminal
from gradient_cli.errors import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE, ClientError, UsageError
from gradient_cli.options import KEY_HELP, SERVER_HELP, Parser, add_option

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence
    from typing import Any

# Every command: the function that sets up its parser (none for a group), and its line in the list. A module is
# imported only if the command line names its command.
_COMMANDS = {
    "jobs": ("", "submit and manage jobs"),
    "jobs create": ("jobs_create:add_create", "submit a job and follow it"),
    "jobs list": ("jobs:add_list", "list jobs, newest first"),
    "jobs show": ("jobs:add_show", "show a job: its state, the reason, and what to do next"),
    "jobs logs": ("jobs_logs:add_logs", "print a job's log, or follow it"),
    "jobs wait": ("jobs:add_wait", "wait until a job has ended, and exit with its exit code"),
    "jobs stop": ("jobs:add_stop", "stop a job: SIGTERM, then SIGKILL after its grace period"),
    "jobs clone": ("jobs_create:add_clone", "submit the same job again"),
    "jobs delete": ("jobs:add_delete", "delete a job, stopping it if it runs"),
    "jobs artifacts": ("", "list and download a job's artifacts"),
    "jobs artifacts list": ("artifacts:add_list", "list a job's artifacts"),
    "jobs artifacts get": ("artifacts:add_get", "download a job's artifacts, verified by SHA-256"),
    "projects": ("", "manage projects, which group jobs"),
    "projects init": ("projects:add_init", "write a project file into the current folder"),
    "projects create": ("projects:add_create", "create a project and print its id"),
    "projects list": ("projects:add_list", "list projects"),
    "projects show": ("projects:add_show", "show a project: its jobs, limit and retention"),
    "projects update": ("projects:add_update", "change a project's limit and retention"),
    "images": ("", "list the short names for --container"),
    "images list": ("images:add_list", "list the short names for --container, with their images"),
    "secrets": ("", "manage secrets, which jobs refer to by name"),
    "secrets set": ("credentials:add_set_secret", "store a secret from a file, a pipe or a prompt"),
    "secrets list": ("credentials:add_list_secrets", "list secrets, without their values"),
    "secrets delete": ("credentials:add_delete_secret", "delete a secret"),
    "registries": ("", "manage logins for image registries"),
    "registries set": (
        "credentials:add_set_registry",
        "store the login for a registry, with a password from a pipe or a prompt",
    ),
    "registries list": ("credentials:add_list_registries", "list the registries with a stored login"),
    "registries delete": ("credentials:add_delete_registry", "delete the login for a registry"),
    "machine-types": ("machine_types:add_machine_types", "list machine types, with prices and availability"),
    "tpus": ("", "list the TPUs that are billed"),
    "tpus list": ("tpus:add_list", "list the TPUs that are billed or requested: state, health, job, cost so far"),
    "login": ("login:add_login", "save the address of a server and an API key for it"),
    "version": ("version:add_version", "show the versions of client and server"),
}

_EXIT_CODES = """\
exit codes:
  the job's own, if the command follows it or waits for it; else
  0 success            1 failed          2 wrong usage
  3 server unreachable, or key refused   4 refused by the server
  130 interrupted      141 output closed (broken pipe)
"""


def command_paths() -> list[str]:
    """Return every command and group, in the order of the help texts."""
    return list(_COMMANDS)


def build_parser(argv: Sequence[str]) -> ArgumentParser:
    """Build the parser; only the commands that the command line names get their arguments."""
    root = Parser(
        prog="gradient-cli",
        usage="gradient-cli COMMAND [options]",
        description="Submit machine-learning jobs to a Gradient Jobs server.",
        epilog=f"{_format_commands('')}\n{_EXIT_CODES}",
    )
    add_option(root, "--url", metavar="URL", help=SERVER_HELP)
    add_option(root, "--apiKey", metavar="KEY", help=KEY_HELP)
    root.add_argument("--version", action="store_true", help="show the client's version")
    root.set_defaults(run=None, menu=root)
    parsers: dict[str, ArgumentParser] = {"": root}
    menus: dict[str, Any] = {}
    for path, (place, summary) in _COMMANDS.items():
        group, _, name = path.rpartition(" ")
        if not set(group.split()) <= set(argv):
            continue
        if group not in menus:
            menus[group] = parsers[group].add_subparsers(
                metavar="COMMAND", dest="command", parser_class=Parser, help=SUPPRESS
            )
        parsers[path] = menus[group].add_parser(
            name,
            prog=f"gradient-cli {path}",
            usage=f"gradient-cli {path} [options]" if place else f"gradient-cli {path} COMMAND [options]",
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=None if place else _format_commands(path),
        )
        if place and name in argv:
            module, _, function = place.partition(":")
            getattr(import_module(f"gradient_cli.commands.{module}"), function)(parsers[path])
        parsers[path].set_defaults(menu=parsers[path], **({} if place else {"run": None}))
    return root


def _format_commands(group: str) -> str:
    shown = {path: text for path, (place, text) in _COMMANDS.items() if place and path.startswith(group)}
    room = max(map(len, shown))
    return "\n".join(["commands:", *(f"  {path:<{room}}  {text}" for path, text in shown.items()), ""])


def main() -> int:
    """Run the command line of this process and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except ClientError as error:
        _print_error(str(error), error.hint)
        return error.code
    except KeyboardInterrupt:
        terminal.print_message("\ninterrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except UnicodeError as error:
        _print_error(f"text that cannot be sent: {error}", "Encode it as UTF-8.")
        return USAGE
    except OSError as error:
        _silence_stdout()
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}", "Check disk space and permissions, then try again.")
        return FAILED
    return code


def _run(argv: list[str]) -> int:
    parser = build_parser(argv)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise _unknown_command(unknown[0], args.menu.prog)
    if args.version is True:
        from gradient_cli.commands.version import client_version

        print(client_version())
        return OK
    if args.run is None:
        args.menu.print_help(sys.stderr)
        return USAGE
    code: int = args.run(args)
    return code


def _unknown_command(word: str, command: str) -> UsageError:
    lists = f"`{command} --help` lists the options."
    if word.startswith("-"):
        return UsageError(f"unknown option {word}", hint=lists)
    return UsageError(f"unexpected argument {word!r}", hint=f"A value with spaces needs quotes; {lists}")


def _print_error(message: str, hint: str) -> None:
    label = terminal.style("error:", "red", sys.stderr)
    terminal.print_message(f"{label} {terminal.sanitize(message)}" + (f"\n{terminal.sanitize(hint)}" if hint else ""))


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null: the interpreter's final flush would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
