import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from core.errors import GradientError, SettingsInvalid, WorkerNameTaken
from core.monitoring.logging import announce, configure
from core.settings import Settings
from core.settings.api import MAX_PROCESSES
from gradient_server.backend_choice import BACKENDS, choose, choose_slurm, with_earlier_choice

# Modules of `gradient_server.commands` that have not the name of their command.
_MODULES = {
    "alive": "worker_health",
    "drain": "workers",
    "resume": "workers",
    "secrets": "key_rotation",
    "signing": "key_rotation",
    "tpu-simulator": "tpu_simulator",
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradient-server",
        description="Run Gradient Jobs. Settings are read from GRADIENT_* variables; .env.example lists them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = _add_up(commands)
    api = commands.add_parser(
        "api",
        help="run only the API and the dashboard",
        description="Run the API and the dashboard without a worker: jobs wait until a worker claims them.",
    )
    for command in (up, api):
        command.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
        command.add_argument("--port", type=_parse_port, help="port to listen on (default: 8780; 0: any free port)")
        command.add_argument(
            "--processes",
            type=_parse_processes,
            metavar="N",
            help="processes of the API, which share the port (default: 1)",
        )
    worker = commands.add_parser(
        "worker",
        help="run only a worker, which claims jobs and runs them on this machine",
        description="Claim jobs and run them on this machine. Jobs keep running when the worker stops; a worker of "
        "the same name adopts them.",
    )
    health = commands.add_parser("alive", help="exit with 0 if a worker sends heartbeats, else 1")
    for command in (up, worker, health):
        command.add_argument("--name", help="name of the worker (default: name of this machine)")
    for add in (_add_maintenance, _add_machines, _add_workers):
        add(commands)
    commands.add_parser("migrate", help="migrate the database's schema to this version")
    for add in (_add_keys, _add_sessions, _add_signing, _add_secrets):
        add(commands)
    _add_simulator(commands, up)
    _add_users(commands)
    return parser


def _add_up(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    up = commands.add_parser(
        "up",
        help="run everything on this machine: API, dashboard and worker",
        description="Run API, dashboard and worker, with all data under GRADIENT_HOME (default: ~/.gradient-jobs). "
        "Jobs keep running when it stops and are adopted at the next start.",
    )
    up.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="backend that runs jobs; docker: in containers; process: as processes on this machine, on simulated "
        "machine types; auto: the last choice for this data folder, otherwise docker if its engine answers and "
        "you agree, otherwise process (default: auto)",
    )
    up.add_argument(
        "--slurm", action="store_true", help="hand jobs over to the Slurm cluster on whose login node this is"
    )
    return up


def _add_simulator(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", up: argparse.ArgumentParser
) -> None:
    up.add_argument(
        "--tpu-simulator",
        action="store_true",
        help="run TPU jobs in a simulated cloud, with a TensorFlow server as the device",
    )
    simulator = commands.add_parser(
        "tpu-simulator",
        help="simulate a cloud with TPUs, for tests and laptops",
        description="Serve a TPU API, Cloud Storage and, if TensorFlow is installed, a device with 8 cores, all on "
        "this machine, and print the settings for a service to use them.",
    )
    for name, port, what in (
        ("--port", 9470, "TPU API"),
        ("--storage-port", 9471, "Cloud Storage"),
        ("--device-port", 8470, "device"),
    ):
        simulator.add_argument(
            name, type=_parse_port, default=port, help=f"port of the {what} (default: {port}; 0: any free port)"
        )
    simulator.add_argument(
        "--create-seconds",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="seconds until a node is READY (default: 2)",
    )
    simulator.add_argument("--room", type=int, default=100, metavar="N", help="limit of nodes in a zone (default: 100)")


def _add_join(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    join = commands.add_parser(
        "join",
        help="add this machine as a host to a service, with an invitation from `workers invite`",
        description="Get a token for this machine's worker, write its settings and check the machine. The machine "
        "has its own GRADIENT_HOME and shares only the network with the service.",
    )
    join.add_argument("url", metavar="URL", help="address of the service, such as https://jobs.lab")
    join.add_argument("--token", required=True, help="the invitation printed by `workers invite`")
    join.add_argument("--name", help="name of the worker (default: the host's name)")
    join.add_argument("--slurm", action="store_true", help="add the Slurm cluster on whose login node this is")
    join.add_argument(
        "--env-file",
        type=Path,
        metavar="FILE",
        help="file to write the settings to (default: env under GRADIENT_HOME, which the unit in deploy/systemd reads)",
    )


def _add_workers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = commands.add_parser("workers", help="list the workers, with what they offer and run")
    listing.add_argument("--json", action="store_true", help="print JSON")
    verbs = listing.add_subparsers(dest="verb", metavar="VERB")
    token = verbs.add_parser(
        "token",
        help="print a token for a worker on another host; it replaces the worker's earlier token",
        description="Print a token for a worker on another host that has its own GRADIENT_HOME and "
        "GRADIENT_WORKER__SERVICE_URL. Write it to worker-token under that GRADIENT_HOME. It is shown only "
        "once.",
    )
    revoke = verbs.add_parser("revoke", help="revoke a worker's token: the worker claims no more jobs and ends")
    remove = verbs.add_parser("remove", help="remove a worker that has stopped permanently, and revoke its token")
    for verb in (token, revoke, remove):
        verb.add_argument("name", help="name of the worker, as given with --name")
    verbs.add_parser(
        "invite",
        help="print a command for another host to join, valid once and for an hour",
        description="Print a command that makes another host a worker of this service. Its token works once, for an "
        "hour. The service needs GRADIENT_DATABASE__WORKER_URL, which that host receives.",
    )
    _add_join(commands)
    drain = commands.add_parser(
        "drain",
        help="stop a worker from claiming jobs; its jobs keep running",
        description="Stop a worker from claiming jobs until `gradient-server resume`, even across restarts. Its jobs "
        "keep running.",
    )
    drain.add_argument("--wait", action="store_true", help="wait until its last job has ended")
    drain.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="with --wait: exit with 1 after this time (default: no limit)"
    )
    resume = commands.add_parser("resume", help="let a drained worker claim jobs again")
    for command in (drain, resume):
        command.add_argument("--name", help="name of the worker (default: name of this machine)")


def _add_maintenance(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this installation and print problems with their fixes",
        description="Check everything that the service needs. Exit code 0: no problem was found. Nothing is changed.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--all", action="store_true", help="also describe checks that passed")
    doctor.add_argument("--tpu", action="store_true", help="also check Google Cloud: rights, zones, network, buckets")
    doctor.add_argument("--gpu", action="store_true", help="also let each free GPU work for 20 seconds")
    prune = commands.add_parser(
        "prune",
        help="delete expired logs, artifacts and workspaces",
        description="List and delete logs and artifacts that are older than their project's policy or "
        "GRADIENT_RETENTION__* allows, and uploaded workspaces that no job needs. Workers do this once an hour.",
    )
    prune.add_argument(
        "--images", action="store_true", help="instead delete unused container images of jobs on this machine"
    )
    prune.add_argument(
        "--environments",
        action="store_true",
        help="instead delete downloaded packages and Python environments that no job on this machine uses",
    )
    prune.add_argument("--dry-run", action="store_true", help="list what would be deleted without deleting it")
    prune.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser(
        "reconcile",
        help="after a restore: give new attempt numbers to jobs that ran since the backup",
        description="Give new attempt numbers to jobs whose logs, artifacts or folders in attempts/ are newer than the "
        "database, and end jobs whose run is lost. Run this after a restore, before the service and workers "
        "start.",
    )
    disk = commands.add_parser(
        "disk",
        help="show disk usage",
        description="Show the disk usage of GRADIENT_HOME by category, and the ten largest jobs.",
    )
    disk.add_argument("--json", action="store_true", help="print JSON")


def _add_machines(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    machines = commands.add_parser("machines", help="add this machine, or those of a Slurm cluster")
    add = machines.add_subparsers(dest="verb", required=True, metavar="VERB").add_parser(
        "add",
        help="measure this machine for about 10 seconds and add it to the list of machine types",
        description="Measure matrix products in each number type, memory bandwidth, the launch of operations and image "
        "decoding, in at most 20 seconds, and write the results to GRADIENT_MACHINES__FILE (default: "
        "machines.toml under GRADIENT_HOME). Predictions prefer them to the data sheet. GPUs are measured if "
        "jobs run in Docker containers (`up --backend docker`, GRADIENT_MACHINES__SIMULATE=false), otherwise "
        "CPUs.",
    )
    add.add_argument("--name", help="name of the machine type (default: GRADIENT_MACHINES__HOST)")
    add.add_argument("--price", type=float, metavar="DOLLARS", help="price per hour")
    add.add_argument(
        "--python",
        metavar="PATH",
        help="Python that has torch, or numpy for CPUs (default: the first suitable one found)",
    )
    add.add_argument(
        "--slurm",
        action="store_true",
        help="instead add the machine types of the Slurm cluster on whose login node this is: for each partition its "
        "CPU nodes, one GPU and a node's GPUs of each model",
    )
    add.add_argument("--gpu", metavar="MODEL", help="with --slurm: model of GPUs that the cluster does not name: A100")
    add.add_argument("--dry-run", action="store_true", help="print the entry without writing it")
    add.add_argument("--json", action="store_true", help="print JSON")


def _add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    keys = commands.add_parser("keys", help="create, list and revoke API keys")
    verbs = keys.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="create a key and print it once")
    create.add_argument("name", help="name of the key: who or what it is for")
    create.add_argument("--days", type=float, metavar="N", help="days until it expires (default: never)")
    create.add_argument(
        "--scope",
        choices=("read", "submit", "admin"),
        default="submit",
        help="read: see everything; submit: also submit, and change what is its own (default); admin: all",
    )
    listing = verbs.add_parser("list", help="list all keys, without their secrets")
    for command in (create, listing):
        command.add_argument("--json", action="store_true", help="print JSON")
    _add_budget(verbs, "id", "key")
    revoke = verbs.add_parser("revoke", help="revoke a key and end its sessions and links within 5 seconds")
    revoke.add_argument("id", help="id of the key, from `keys list`")


def _add_budget(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    noun: str,
) -> None:
    budget = verbs.add_parser("budget", help=f"set the most that the jobs of a {noun} may cost")
    budget.add_argument(name, help=f"{name} of the {noun}, from `{noun}s list`")
    text = "100/month, 8gpu_hours/day, 500/total; without any, its budgets are removed"
    budget.add_argument("budgets", nargs="*", metavar="AMOUNT/PERIOD", help=text)


def _add_sessions(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sessions = commands.add_parser("sessions", help="list and end browser sessions")
    verbs = sessions.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="list the open sessions")
    listing.add_argument("--json", action="store_true", help="print JSON")
    end = verbs.add_parser("end", help="end a session, or all of them, within 5 seconds")
    which = end.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", help="id of the session, from `sessions list`")
    which.add_argument("--all", action="store_true", help="end every session")
    audit = commands.add_parser("audit", help="list who submitted, stopped, deleted, changed or entered what")
    audit.add_argument("--days", type=float, default=30.0, help="number of past days to list (default: 30)")
    audit.add_argument("--json", action="store_true", help="print one JSON object per line")


def _add_signing(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    signing = commands.add_parser("signing", help="manage the key that signs links to files and S3 tokens")
    verbs = signing.add_subparsers(dest="verb", required=True, metavar="VERB")
    rotate = verbs.add_parser(
        "rotate",
        help="sign with a new key",
        description="Add a new key to session.key under GRADIENT_HOME. Signatures of the previous key stay valid until "
        "they expire, 8 hours at most. Nothing needs to be stopped.",
    )
    rotate.add_argument(
        "--forget", action="store_true", help="keep no older keys: their signatures are refused immediately"
    )


def _add_secrets(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    key_rotation = commands.add_parser("secrets", help="manage the keys that encrypt secrets")
    verbs = key_rotation.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser(
        "rotate",
        help="encrypt all secrets and registry passwords with a new key",
        description="Create a new key in secrets.key under GRADIENT_HOME, and encrypt all secrets and registry "
        "passwords with it; if GRADIENT_SECRETS__ENCRYPTION_KEYS is set, use the first of its keys instead. Nothing "
        "needs to be stopped.",
    )


def _add_users(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    users = commands.add_parser(
        "users",
        help="create, list and delete users who log in with e-mail address and password",
        description=(
            "Manage users of the original clients, who log in with e-mail address and password to get an API key."
        ),
    )
    verbs = users.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="create a user; the password is read from a prompt or one line of stdin")
    listing = verbs.add_parser("list", help="list all users, without their passwords")
    listing.add_argument("--json", action="store_true", help="print JSON")
    _add_budget(verbs, "email", "user")
    remove = verbs.add_parser("remove", help="delete a user and revoke the keys issued at login")
    for command in (create, remove):
        command.add_argument("email", help="e-mail address of the user")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parsed = build_parser().parse_args(arguments)
    parsed.arguments = sys.argv[1:] if arguments is None else arguments
    configure(os.environ.get("GRADIENT_LOG_FORMAT", ""), "info")  # for an error in the settings
    try:
        # `up` chooses the backend itself.
        settings = Settings() if parsed.command == "up" else with_earlier_choice(Settings())
        # The doctor prints its findings itself.
        configure(settings.log_format, "critical" if parsed.command == "doctor" else settings.log_level)
        return _explain_database(parsed, settings)
    except KeyboardInterrupt:  # before the signal is handled, or while everything ends
        return 128 + signal.SIGINT
    except Exception as error:
        lines = _describe(error)
        for line in lines:
            announce(f"error: {line}", logging.ERROR)
        if parsed.command == "worker" and not isinstance(error, WorkerNameTaken):  # of that name one works
            # What else it says may contain a password, and all users read this.
            why = " ".join(lines) or f"It ended with {type(error).__name__}; see its log for details."
            import_module("worker.start_failure").report(parsed.name, why)
        if not lines:
            raise
        return 2 if isinstance(error, SettingsInvalid) else 1


def _describe(error: Exception) -> list[str]:
    """Return what to tell the user about an error; nothing: it is a fault of this program."""
    if isinstance(error, GradientError):
        return error.message.splitlines() if isinstance(error, SettingsInvalid) else [error.message]
    if isinstance(error, OSError):
        return [f"{error}. Check GRADIENT_HOME, the folder of all data."]
    return []


def _explain_database(parsed: argparse.Namespace, settings: Settings) -> int:
    """Run the command, and explain an error of the database as the start of the service does."""
    from sqlalchemy.exc import DBAPIError

    from gradient_server.startup_wait import DatabaseRefused, describe_failure

    try:
        return _run_command(parsed, settings)
    except DBAPIError as error:
        why = describe_failure(error, settings.root)
        raise DatabaseRefused(f"{why[0].upper()}{why[1:]}") from error


def _run_command(parsed: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen command; only its own modules are imported."""
    command = parsed.command
    if command in {"up", "api", "worker", "migrate"}:
        return _serve(parsed, settings)
    module = _MODULES.get(command, command)
    if command == "prune":
        module = f"prune.{'images' if parsed.images else 'environments' if parsed.environments else 'outputs'}"
    run = import_module(f"gradient_server.commands.{module}").run
    if command == "prune":
        code: int = run(settings, dry_run=parsed.dry_run, as_json=parsed.json)
    elif command == "doctor":
        code = run(settings, as_json=parsed.json, tpu=parsed.tpu, gpu=parsed.gpu, all_lines=parsed.all)
    elif command == "disk":
        code = run(settings, as_json=parsed.json)
    else:
        code = run(parsed, settings)
    return code


def _serve(parsed: argparse.Namespace, settings: Settings) -> int:
    from gradient_server import entrypoints
    from gradient_server.home import locked_home

    if parsed.command == "migrate":
        return entrypoints.migrate(settings)
    if parsed.command == "worker":
        return entrypoints.worker(settings, parsed.name)
    given = {"host": parsed.host, "port": parsed.port, "processes": parsed.processes}
    api = settings.api.model_copy(update={name: value for name, value in given.items() if value is not None})
    settings = settings.model_copy(update={"api": api})
    entrypoints.require_separate_ports_host(settings)  # before anything is changed
    if parsed.command == "api":
        return entrypoints.api(settings)
    with locked_home(settings, shared=False):
        backend = choose_slurm(settings) if parsed.slurm else choose(settings, parsed.backend)
        if parsed.tpu_simulator:
            return entrypoints.up_with_tpu_simulator(backend.settings, parsed.name, backend.reason)
        return entrypoints.up(backend.settings, parsed.name, backend.reason, parsed.arguments)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:  # noqa: PLR2004 - TCP's
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number from 0 to 65535")
    return int(text)


def _parse_processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to {MAX_PROCESSES}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
