"""`gradient-server`: the operator's command line."""

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from core.errors import GradientError
from core.monitoring.logging import configure
from core.settings import Settings


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="gradient-server",
        description="Runs Gradient Jobs. Settings come from GRADIENT_* variables; .env.example lists them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser(
        "up",
        help="run everything on this machine: API, dashboard and worker over SQLite",
        description="Runs API, dashboard and worker in one process, with everything under GRADIENT_HOME "
        "(default ~/.gradient-jobs). Jobs go on when it stops and are taken up again when it comes back.",
    )
    api = commands.add_parser(
        "api",
        help="run only the API and the dashboard",
        description="Runs the API and the dashboard without a worker: jobs wait until some worker takes them.",
    )
    for command in (up, api):
        command.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
        command.add_argument("--port", type=_parse_port, help="port to listen on (default: 8780; 0: any free one)")
    worker = commands.add_parser(
        "worker",
        help="run only a worker: it claims jobs and runs them on this machine",
        description="Claims jobs and runs them on this machine. When it stops its jobs go on; a worker of the same "
        "name takes them up again.",
    )
    health = commands.add_parser("alive", help="say by the exit code whether a worker's heart beats, for health checks")
    for command in (up, worker, health):
        command.add_argument("--name", help="the worker's name (default: the machine's name)")
    _add_maintenance(commands)
    _add_workers(commands)
    _add_migrate(commands)
    _add_keys(commands)
    _add_sessions(commands)
    _add_signing(commands)
    _add_secrets(commands)
    _add_simulator(commands, up)
    _add_users(commands)
    return parser


def _add_simulator(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", up: argparse.ArgumentParser
) -> None:
    up.add_argument(
        "--tpu-simulator",
        action="store_true",
        help="run TPU jobs the whole way, on a made-up cloud with a TensorFlow server as the device",
    )
    simulator = commands.add_parser(
        "tpu-simulator",
        help="make up a cloud with TPUs, for tests and laptops",
        description="Serves a TPU API, Cloud Storage and, where TensorFlow is installed, a device with 8 cores, all on "
        "this computer, and prints the settings that have a service use them.",
    )
    for name, port, what in (
        ("--port", 9470, "TPU API"),
        ("--storage-port", 9471, "Cloud Storage"),
        ("--device-port", 8470, "device"),
    ):
        simulator.add_argument(
            name, type=_parse_port, default=port, help=f"port of the {what} (default: {port}; 0: any)"
        )
    simulator.add_argument(
        "--create-seconds", type=float, default=2.0, metavar="SECONDS", help="time until a node is READY (default: 2)"
    )
    simulator.add_argument(
        "--room", type=int, default=100, metavar="N", help="nodes a zone has room for (default: 100)"
    )


def _add_workers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = commands.add_parser("workers", help="show the workers that have reported: what they offer and run")
    listing.add_argument("--json", action="store_true", help="print JSON")
    drain = commands.add_parser(
        "drain",
        help="have a worker claim no more jobs; what it runs, runs on",
        description="Has a worker claim no more jobs, until `gradient-server resume`, whether it is restarted or not. "
        "What it runs, runs on.",
    )
    drain.add_argument("--wait", action="store_true", help="return when its last job has ended")
    drain.add_argument("--timeout", type=float, metavar="SECONDS", help="with --wait: give up after this, exit code 1")
    resume = commands.add_parser("resume", help="have a drained worker claim jobs again")
    for command in (drain, resume):
        command.add_argument("--name", help="the worker's name (default: the machine's name)")


def _add_maintenance(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this installation, and say what to do about what is wrong",
        description="Looks at everything the service needs, and changes nothing. Exit code 0: no problem was found.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--tpu", action="store_true", help="ask Google as well: permissions, zones, bucket")
    prune = commands.add_parser(
        "prune",
        help="remove what no policy keeps any longer: logs, artifacts, workspaces",
        description="Lists and removes logs and artifacts of jobs that ended longer ago than their project's policy or "
        "GRADIENT_RETENTION__* keeps them, and uploaded workspaces that no job needs. Workers do so once an hour.",
    )
    prune.add_argument(
        "--images",
        action="store_true",
        help="instead: this machine's container images that jobs brought and nothing uses",
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would go; change nothing")
    prune.add_argument("--json", action="store_true", help="print JSON")


def _add_migrate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    migrate = commands.add_parser("migrate", help="bring the database's schema up to this release")
    migrate.add_argument(
        "--back-to",
        metavar="REVISION",
        help="take it back instead, to an earlier revision such as 0001, or to `base`, which drops every table; data "
        "of later revisions is lost. Stop every process first",
    )


def _add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    keys = commands.add_parser("keys", help="make, list and revoke API keys")
    verbs = keys.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="make a key and print it, once")
    create.add_argument("name", help="whose or what it is for")
    create.add_argument("--days", type=float, metavar="N", help="days that it works (default: until it is revoked)")
    listing = verbs.add_parser("list", help="show all keys (never their secrets)")
    for command in (create, listing):
        command.add_argument("--json", action="store_true", help="print JSON")
    revoke = verbs.add_parser("revoke", help="take a key out of use, and end its sessions and links, within 5 seconds")
    revoke.add_argument("id", help="the key's id, as `keys list` shows it")


def _add_sessions(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sessions = commands.add_parser("sessions", help="list and end browser sessions")
    verbs = sessions.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="show the sessions that are open")
    listing.add_argument("--json", action="store_true", help="print JSON")
    end = verbs.add_parser("end", help="end a session, or all of them, within 5 seconds")
    which = end.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", help="the session's id, as `sessions list` shows it")
    which.add_argument("--all", action="store_true", help="end every session")


def _add_signing(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    signing = commands.add_parser("signing", help="look after the key that signs links to files and S3 tokens")
    verbs = signing.add_subparsers(dest="verb", required=True, metavar="VERB")
    rotate = verbs.add_parser(
        "rotate",
        help="sign with a new key",
        description="Puts a new key into session.key under GRADIENT_HOME. What the key before it signed works until it "
        "expires, 8 hours at most. Nothing needs to be stopped.",
    )
    rotate.add_argument("--forget", action="store_true", help="keep no older key: what it signed is refused at once")


def _add_secrets(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    secrets = commands.add_parser("secrets", help="look after the keys that secrets are encrypted with")
    verbs = secrets.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser(
        "rotate",
        help="encrypt all secrets and registry passwords with a new key",
        description="Makes a new key in secrets.key under GRADIENT_HOME and encrypts all secrets and registry "
        "passwords with it; where GRADIENT_SECRETS__ENCRYPTION_KEYS names the keys, with the first of those. Nothing "
        "needs to be stopped.",
    )


def _add_users(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    users = commands.add_parser(
        "users",
        help="make, list and remove people who sign in with e-mail and password",
        description="The original clients can sign in with e-mail and password, and get an API key of their own.",
    )
    verbs = users.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="make somebody who may sign in; asks for the password, or reads one line")
    listing = verbs.add_parser("list", help="show everybody (never their passwords)")
    listing.add_argument("--json", action="store_true", help="print JSON")
    remove = verbs.add_parser("remove", help="take somebody out, and revoke the keys they got by signing in")
    for command in (create, remove):
        command.add_argument("email", help="their e-mail address")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parsed = build_parser().parse_args(arguments)
    try:
        settings = Settings()
        # The doctor prints its findings itself.
        configure(settings.log_format, "critical" if parsed.command == "doctor" else settings.log_level)
        return _run_command(parsed, settings)
    except GradientError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except ValidationError as error:
        for problem in error.errors():
            variable = "GRADIENT_" + "__".join(str(part) for part in problem["loc"]).upper()
            words = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                words = "There is no such setting; .env.example lists them all."
            # The value is not printed: an address may contain a password.
            print(f"error: {variable}: {words}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}. GRADIENT_HOME names the folder that everything is kept in.", file=sys.stderr)
        return 1


def _run_command(parsed: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen command; each imports only its own modules."""
    if parsed.command in {"keys", "users", "sessions"}:
        from gradient_server.commands import keys, sessions, users

        return {"keys": keys.run, "users": users.run, "sessions": sessions.run}[parsed.command](parsed, settings)
    if parsed.command in {"workers", "drain", "resume"}:
        from gradient_server.commands import workers

        return workers.run(parsed, settings)
    if parsed.command == "doctor":
        from gradient_server.commands import doctor

        return doctor.run(settings, as_json=parsed.json, tpu=parsed.tpu)
    if parsed.command == "prune":
        return _run_prune(parsed, settings)
    if parsed.command == "alive":
        from gradient_server.commands import worker_health

        return worker_health.run(settings, parsed.name)
    return _run_process(parsed, settings)


def _run_prune(parsed: argparse.Namespace, settings: Settings) -> int:
    if parsed.images:
        from gradient_server.commands import prune_images

        return prune_images.run(settings, dry_run=parsed.dry_run, as_json=parsed.json)
    from gradient_server.commands import prune

    return prune.run(settings, dry_run=parsed.dry_run, as_json=parsed.json)


def _run_process(parsed: argparse.Namespace, settings: Settings) -> int:
    if parsed.command == "tpu-simulator":
        from gradient_server.commands import tpu_simulator

        return tpu_simulator.run(parsed)
    if parsed.command in {"secrets", "signing"}:
        from gradient_server.commands import secrets

        signing = parsed.command == "signing"
        return secrets.rotate_signing(settings, forget=parsed.forget) if signing else secrets.rotate(settings)
    from gradient_server import processes
    from gradient_server.tracing import export_spans

    if parsed.command == "migrate":
        return processes.migrate(settings, parsed.back_to)
    with export_spans(settings.tracing):
        return _serve(parsed, settings)


def _serve(parsed: argparse.Namespace, settings: Settings) -> int:
    from gradient_server import processes

    if parsed.command == "worker":
        return processes.worker(settings, parsed.name)
    given = {"host": parsed.host, "port": parsed.port}
    api = settings.api.model_copy(update={name: value for name, value in given.items() if value is not None})
    settings = settings.model_copy(update={"api": api})
    if parsed.command == "api":
        return processes.api(settings)
    return (
        processes.up_with_tpu_simulator(settings, parsed.name)
        if parsed.tpu_simulator
        else processes.up(settings, parsed.name)
    )


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:  # noqa: PLR2004 - TCP's
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
