"""Entry point of `gradient-cli`: the table of commands, and the handler of all errors."""

from __future__ import annotations

import atexit
import gc
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gradient_cli import next_steps, streams, terminal
from gradient_cli.errors import BROKEN_PIPE, INTERRUPTED, OK, USAGE, ClientError, UsageError
from gradient_cli.options import KEY_HELP, SERVER_HELP, Parser, add_common, add_option

# Every command: the function that sets up its parser (none for a group), or the one that runs it if it has no options
# of its own; and its line in the list. A module is imported only if the command line names its command.
COMMANDS = {
    "jobs": ("", "submit and manage jobs"),
    "jobs create": ("jobs.create:add_create", "submit a job and follow it"),
    "jobs check": ("jobs.create:add_check", "tell what would go wrong with a job, without submitting it"),
    "jobs run": (
        "jobs.run:add_run",
        "submit a script with its arguments and follow it (`run`: jobs from a TOML file)",
    ),
    "jobs list": ("jobs.manage:add_list", "list and search jobs"),
    "jobs show": ("jobs.manage:add_show", "show a job: its state, the reason and what to do next"),
    "jobs logs": ("jobs.logs:add_logs", "print a job's log, or follow it"),
    "jobs metrics": ("jobs.metrics:add_metrics", "show a job's metrics: last, lowest and highest values, and a curve"),
    "jobs top": ("jobs.top:add_top", "show usage, last metric and cost of running jobs, updated until Ctrl-C"),
    "jobs open": ("jobs.open:add_open", "print the link to a job's page and open it in a browser"),
    "jobs tensorboard": ("jobs.open:add_tensorboard", "open TensorBoard for jobs and print the link to it"),
    "jobs exec": ("jobs.exec:add_exec", "run a command in a running job and exit with its exit code"),
    "jobs ssh": ("jobs.exec:add_ssh", "open a shell in a running job"),
    "jobs port-forward": ("jobs.port_forward:add_port_forward", "forward a port of a running job to this computer"),
    "jobs wait": ("jobs.manage:add_wait", "wait until jobs have ended, then exit with the highest of their exit codes"),
    "jobs why": ("jobs.failures:add_why", "tell why a job failed: evidence, place in the code, remedy"),
    "jobs release": ("jobs.failures:add_release", "end the time that a failed job's machine is kept (--keepOnFail)"),
    "jobs stop": ("jobs.manage:add_stop", "stop jobs: SIGTERM, then SIGKILL after the grace period"),
    "jobs clone": ("jobs.create:add_clone", "submit the same job again, with changes given as options"),
    "jobs diff": ("jobs.diff:add_diff", "show the options and files in which two jobs differ"),
    "jobs tags": ("", "change a job's tags, name and note"),
    "jobs tags add": ("jobs.tags:add_add", "add tags to a job; name it, or write a note on it"),
    "jobs tags remove": ("jobs.tags:add_remove", "remove tags from a job"),
    "jobs delete": ("jobs.manage:add_delete", "delete jobs, stopping those that run"),
    "jobs artifacts": ("", "list and download a job's artifacts"),
    "jobs artifacts list": ("jobs.artifacts:add_list", "list a job's artifacts"),
    "jobs artifacts get": ("jobs.artifacts:add_get", "download a job's artifacts, verified by SHA-256"),
    "run": (
        "pipeline:add_run",
        "submit jobs from a TOML file that wait for each other (`jobs run`: one script)",
    ),
    "compare": ("", "run one program on several machine types and compare them"),
    "compare create": ("compare.create:add_create", "run one program on several machine types to compare them"),
    "compare race": ("compare.race:add_race", "repeat a comparison until the cheapest machine type is known"),
    "compare jobs": ("compare.create:add_jobs", "compare existing jobs"),
    "compare list": ("compare.show:add_list", "list comparisons, newest first"),
    "compare show": ("compare.show:add_show", "show a comparison: pace, time, accuracy and cost by machine type"),
    "compare export": ("compare.show:add_export", "print a comparison as CSV, JSON or Markdown, or write it to a file"),
    "compare import": ("compare.show:add_import", "import a comparison that another installation exported"),
    "compare rename": ("compare.show:add_rename", "name a comparison"),
    "compare delete": ("compare.show:add_delete", "delete a comparison but not its jobs"),
    "schedules": ("", "create jobs repeatedly, at the times of a cron expression"),
    "schedules create": ("schedules:add_create", "create a schedule for a job and print its id"),
    "schedules list": ("schedules:add_list", "list schedules, newest first: next time, last job and how it ended"),
    "schedules show": ("schedules:add_show", "show a schedule: its next five times, its last job, and its policies"),
    "schedules suspend": ("schedules:add_suspend", "stop a schedule from creating jobs"),
    "schedules resume": ("schedules:add_resume", "resume a suspended schedule at its next time"),
    "schedules trigger": ("schedules:add_trigger", "create a job of a schedule now and print its id"),
    "schedules delete": ("schedules:add_delete", "delete a schedule but not its jobs"),
    "sweeps": ("", "search for the parameters with the best value of a metric"),
    "sweeps create": ("sweeps:add_create", "create a sweep and print its id"),
    "sweeps list": ("sweeps:add_list", "list sweeps, newest first: state, trials and best trial"),
    "sweeps show": ("sweeps:add_show", "show a sweep and its trials"),
    "sweeps wait": ("sweeps:add_wait", "wait until a sweep has ended, then print its best trial"),
    "sweeps pause": ("sweeps:add_pause", "stop a sweep from starting trials; running trials continue"),
    "sweeps resume": ("sweeps:add_resume", "resume a paused or stopped sweep"),
    "sweeps stop": ("sweeps:add_stop", "end a sweep and stop its running trials"),
    "sweeps delete": ("sweeps:add_delete", "delete a sweep but not its jobs"),
    "experiments": ("", "repeat published experiments on the server's machines"),
    "experiments list": ("experiments:add_list", "list the experiments that this client can repeat"),
    "experiments show": ("experiments:add_show", "show an experiment: its source, published figures and members"),
    "experiments run": ("experiments:add_run", "run an experiment and report its results next to the published ones"),
    "predict": ("compare.predict:add_predict", "estimate time, cost and memory of a job on other machine types"),
    "notebooks": ("", "run notebooks in jobs"),
    "notebooks run": ("notebooks:add_run", "run JupyterLab in a job and print the link to it"),
    "projects": ("", "manage projects, which group jobs"),
    "projects init": ("projects:add_init", "write a project file into the current folder"),
    "projects create": ("projects:add_create", "create a project and print its id"),
    "projects list": ("projects:list_projects", "list projects"),
    "projects show": ("projects:add_show", "show a project: its jobs, limit and retention"),
    "projects update": ("projects:add_update", "change a project's limit and retention, close or open it"),
    "projects members": ("projects:add_members", "list or change the members of a project and their roles"),
    "projects delete": ("projects:add_delete", "delete a project with its jobs, if none is waiting or running"),
    "storage": ("", "list, upload, download and delete files that jobs find in /storage"),
    "storage ls": ("storage:add_ls", "list files in a project's storage"),
    "storage put": ("storage:add_put", "upload files and folders, skipping unchanged ones"),
    "storage get": ("storage:add_get", "download a file or a folder"),
    "storage rm": ("storage:add_rm", "delete a file or a folder"),
    "images": ("", "list the short names for --container"),
    "images list": ("images:list_images", "list the short names for --container, with their images"),
    "secrets": ("", "manage secrets, which jobs refer to by name"),
    "secrets set": ("account.credentials:add_set_secret", "store a secret from a file, a pipe or a prompt"),
    "secrets list": ("account.credentials:add_list_secrets", "list secrets, without their values"),
    "secrets delete": ("account.credentials:add_delete_secret", "delete a secret"),
    "registries": ("", "manage logins for image registries"),
    "registries set": (
        "account.credentials:add_set_registry",
        "store the login for a registry, with a password from a pipe or a prompt",
    ),
    "registries list": ("account.credentials:add_list_registries", "list the registries with a stored login"),
    "registries delete": ("account.credentials:add_delete_registry", "delete the login for a registry"),
    "notifications": ("", "manage who is told when jobs end"),
    "notifications create": ("notifications:add_create", "save a receiver, with its URL from a pipe or a prompt"),
    "notifications list": (
        "notifications:list_receivers",
        "list receivers: where, of what, and whether they are enabled",
    ),
    "notifications show": ("notifications:add_show", "show a receiver and its last messages, with what came back"),
    "notifications test": ("notifications:add_test", "send a test message and show what came back"),
    "notifications replay": ("notifications:add_replay", "send a message again, with the same id"),
    "notifications delete": ("notifications:add_delete", "delete a receiver"),
    "keys": ("", "manage API keys"),
    "keys create": ("account.keys:add_create", "create an API key (administrators only)"),
    "keys list": ("account.keys:list_keys", "list API keys: all for administrators, otherwise your own"),
    "keys revoke": ("account.keys:add_revoke", "revoke an API key: your own, or any as an administrator"),
    "machine-types": ("machines.machine_types:add_machine_types", "list machine types, with prices and availability"),
    "workers": ("", "list workers, and stop or resume claiming jobs"),
    "workers list": ("machines.workers:list_workers", "list workers: state, jobs, GPUs and machine types"),
    "workers drain": ("machines.workers:add_drain", "stop a worker from claiming jobs; running jobs continue"),
    "workers resume": ("machines.workers:add_resume", "let a drained worker claim jobs again"),
    "tpus": ("", "list billed TPUs"),
    "tpus list": (
        "machines.tpus:list_tpus",
        "list billed or requested TPUs: state, health, job, cost so far",
    ),
    "leaks": ("machines.tpus:list_leaks", "list what Google bills for no living job"),
    "costs": ("costs:add_show", "show what jobs have cost, by project, user, key, machine type or day"),
    "completion": ("completion:add_completion", "print the completion script of bash, zsh or fish"),
    "login": ("account.login:add_login", "save the address of a server and an API key for it"),
    "whoami": ("account.keys:show_own_key", "show which server and API key is used, and what the key may do"),
    "ssh-config": (
        "account.ssh_config:add_ssh_config",
        "let ssh, sftp and VS Code on this computer enter running jobs",
    ),
    "mcp": ("mcp:add_mcp", "serve tools for agents, by the Model Context Protocol, on standard input and output"),
    "skill": ("", "tell agents how to use this client"),
    "skill install": ("skill:add_install", "write a skill for agents into this folder's .agents/skills"),
    "version": ("version:show_version", "show the versions of client and server"),
}

_EXIT_CODES = """\
exit codes: the job's exit code if the command follows it or waits for it; otherwise
  0 success            1 failed          2 wrong usage
  3 server unreachable, or key refused   4 refused by the server
  124 timeout of wait  130 interrupted   141 output closed (broken pipe)
"""

_ROOT_OPTIONS = {"--url", "--apiKey", "--api-key"}
_PROGRAM_COMMANDS = {f"jobs {verb}" for verb in ("create", "check", "clone", "exec")}
_PROGRAM_COMMANDS |= {f"{noun} create" for noun in ("compare", "schedules", "sweeps")}


def build_parser(path: str | None = None) -> ArgumentParser:
    """Build the parser of one command and its groups, importing only its module; without a path, of all commands."""
    root = Parser(
        prog="gradient-cli",
        usage="gradient-cli COMMAND [options]",
        description="Submit machine-learning jobs to a Gradient Jobs server.",
        epilog=f"{_format_commands('')}\n{_EXIT_CODES}",
    )
    add_option(root, "--url", metavar="URL", help=SERVER_HELP)
    add_option(root, "--apiKey", metavar="KEY", help=KEY_HELP)
    root.add_argument("-V", "--version", action="store_true", help="show the client's version")
    root.set_defaults(run=None, menu=root)
    parsers: dict[str, ArgumentParser] = {"": root}
    menus: dict[str, Any] = {}
    for command, (target, summary) in COMMANDS.items():
        if path is not None and not f"{path} ".startswith(f"{command} "):
            continue
        group, _, verb = command.rpartition(" ")
        if group not in menus:
            menus[group] = parsers[group].add_subparsers(
                metavar="COMMAND", dest="command", parser_class=Parser, help=SUPPRESS if path is not None else None
            )
        parsers[command] = menus[group].add_parser(
            verb,
            help=summary,
            prog=f"gradient-cli {command}",
            usage=f"gradient-cli {command} [options]" if target else f"gradient-cli {command} COMMAND [options]",
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=None if target else _format_commands(command),
        )
        if target:
            module, _, name = target.partition(":")
            function = getattr(import_module(f"gradient_cli.commands.{module}"), name)
            if name.startswith("add_"):
                function(parsers[command])
            else:
                add_common(parsers[command], function)
        parsers[command].set_defaults(menu=parsers[command], **({} if target else {"run": None}))
    return root


def _format_commands(group: str) -> str:
    shown = {path: text for path, (target, text) in COMMANDS.items() if target and path.startswith(group)}
    room = max(map(len, shown))
    return "\n".join(["commands:", *(f"  {path:<{room}}  {text}" for path, text in shown.items()), ""])


def main() -> int:
    atexit.register(gc.freeze)  # the interpreter's last collection would visit every object, for a tenth of a short run
    streams.prepare()
    as_json = "--json" in sys.argv
    try:
        try:
            args = _parse(sys.argv[1:])
            as_json = getattr(args, "json", False)
            code = _run(args)
        finally:  # also after `--help`
            sys.stdout.flush()
    except ClientError as error:
        return _report(error, as_json=as_json)
    except KeyboardInterrupt:
        terminal.print_message("\ninterrupted")
        return INTERRUPTED
    except BrokenPipeError:
        streams.silence_stdout()
        return BROKEN_PIPE
    except UnicodeError as error:
        return _report(UsageError(f"text cannot be sent: {error}", hint="Encode it as UTF-8."), as_json=as_json)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = "Check disk space and permissions, then try again."
        failure = ClientError(f"{where}{error.strerror or error}", hint=hint)
        try:
            sys.stdout.flush()
        except OSError:  # standard output is what failed
            streams.silence_stdout()
            as_json = False
        return _report(failure, as_json=as_json)
    return code


def _parse(argv: list[str]) -> Namespace:
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    path, program = _command_path(argv), None
    next_steps.command = path
    if path in _PROGRAM_COMMANDS and (at := _program_start(path, argv)):
        argv, program = argv[:at], argv[at:][argv[at] == "--" :]
    args, unknown = build_parser(path).parse_known_args(argv, Namespace(program=program))
    if unknown:
        from gradient_cli.suggestions import unknown_argument

        takes_program, job_id = path in _PROGRAM_COMMANDS, getattr(args, "id", None)
        raise unknown_argument(unknown, args.menu, takes_program=takes_program, job_id=job_id)
    return args


def _program_start(path: str, argv: Sequence[str]) -> int | None:
    """Return where a program and its arguments begin: at `--`, of `jobs exec` also after the job's id."""
    if path != "jobs exec":
        return argv.index("--") if "--" in argv else None
    numbered = iter(enumerate(argv))
    values = len(("jobs", "exec", "ID"))
    for at, word in numbered:
        if word == "--" or (values == 0 and not word.startswith("-")):
            return at
        if word in _ROOT_OPTIONS:
            next(numbered, None)
        values -= not word.startswith("-")
    return None


def _command_path(argv: Sequence[str]) -> str:
    """Return the command or group that the command line names, as in the table of commands."""
    path, arguments = "", iter(argv)
    for word in arguments:
        if word in _ROOT_OPTIONS:
            next(arguments, None)
        elif not word.startswith("-"):
            longer = f"{path} {word}".lstrip()
            if longer not in COMMANDS:
                from gradient_cli.suggestions import unknown_command

                raise unknown_command(word, path, list(COMMANDS))
            path = longer
            if COMMANDS[path][0]:
                break
    return path


def _run(args: Namespace) -> int:
    if args.version is True:
        from gradient_cli.commands.version import client_version

        print(client_version())
        return OK
    if args.run is None:
        args.menu.print_help(sys.stderr)
        return USAGE
    code: int = args.run(args)
    return code


def _report(error: ClientError, *, as_json: bool) -> int:
    """Print an error to stderr; with `--json` also to stdout, as JSON. Return its exit code."""
    label = terminal.style("error:", "red", sys.stderr)
    hint = f"\n{terminal.sanitize(error.hint)}" if error.hint else ""
    if as_json:
        from gradient_cli.formatting import print_json

        try:
            print_json({"error": error.as_json()})
            sys.stdout.flush()
        except OSError:
            streams.silence_stdout()
    terminal.print_message(f"{label} {terminal.sanitize(error)}{hint}")
    return error.code


if __name__ == "__main__":
    sys.exit(main())
