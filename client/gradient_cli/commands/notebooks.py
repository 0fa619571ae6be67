"""`notebooks run`: JupyterLab in a job, on a port of this computer."""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.commands.jobs import create
from gradient_cli.commands.jobs.port_forward import Forward
from gradient_cli.commands.jobs.run import install
from gradient_cli.errors import OK, ServerError, UsageError
from gradient_cli.follow import exit_code, print_summary, wait
from gradient_cli.formatting import format_price
from gradient_cli.options import add_option
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace.packing.archive import WorkspaceFolder

PORT = 8888
_OUTPUTS = "**/*.ipynb"
_POLL_SECONDS = 0.5
_ENDED = ("Stopped", "Failed", "Error", "Cancelled")
_STARTS = "starting JupyterLab"
# Only the service reaches the port: it listens on localhost.
_COMMAND = """\
[ -e artifacts ] || ln -s "$GRADIENT_ARTIFACTS_DIR" artifacts
echo {starts}
exec python3 -m jupyterlab --no-browser --allow-root --ip=127.0.0.1 --port="$GRADIENT_PORT_{port}" \
    --ServerApp.port_retries=0 --ServerApp.root_dir="$GRADIENT_WORKSPACE_DIR"
"""


def add_run(parser: argparse.ArgumentParser) -> None:
    create.add_create(parser)
    specs.describe(parser, "command", "TEXT", argparse.SUPPRESS)  # `run` makes the command
    add_option(
        parser,
        "--idleMinutes",
        metavar="MINUTES",
        type=float,
        default=60.0,
        help="end the job after this many minutes in which nothing works in it and no page of it is open, as "
        "--onIdle does (default: 60)",
    )
    add_option(
        parser,
        "--localPort",
        metavar="PORT",
        type=int,
        default=PORT,
        help=f"port on this computer for JupyterLab (default: {PORT}; 0: a free port)",
    )
    parser.set_defaults(run=run, show=_open)


def run(args: argparse.Namespace) -> int:
    if args.command is not None:
        raise UsageError("command: `notebooks run` sets it", hint="Use `gradient-cli jobs create --command`.")
    if not args.idleMinutes >= 1:
        raise UsageError("idleMinutes: must be at least 1", hint="For example --idleMinutes 30.")
    args.onIdle = args.onIdle or f"stop:{round(args.idleMinutes * 60)}"
    args.command = install("jupyterlab") + _COMMAND.format(starts=_STARTS, port=PORT)
    args.token = os.urandom(24).hex()
    args.envVars = [*(args.envVars or []), f"JUPYTER_TOKEN={args.token}"]
    spec, workspace, include = specs.resolve(args)
    spec["outputs"] = list(dict.fromkeys([*spec.get("outputs", []), _OUTPUTS]))
    spec["ports"] = list(dict.fromkeys([*spec.get("ports", []), str(PORT)]))
    return create.submit(args, spec, workspace, include)


def _open(args: argparse.Namespace, api: Api, job: dict[str, Any], folder: WorkspaceFolder | None = None) -> int:
    job_id = job["id"]
    if args.json or args.detach:
        again = _describe_opening(job_id, args.token)
        code = create.follow_or_detach(args, api, job, folder)
        terminal.print_message(again)
        return code
    terminal.print_message(
        f"job {terminal.style(job_id, 'bold', sys.stderr)}  {terminal.sanitize(job.get('url') or '')}"
    )
    try:
        job = _wait_until_running(api, job_id)
        if job["state"] in _ENDED:
            return _report_end(api, job)
        with Forward(api, job, PORT, args.localPort) as forward:
            if not _wait_until_it_answers(api, job_id, forward):
                return _report_end(api, api.job(job_id))
            print(f"{forward.url}{_path(args.token)}", flush=True)
            price = format_price(job)
            terminal.print_message(
                f"Ctrl-C ends this link; the notebook keeps running{f' at {price}' if price else ''} until "
                f"`gradient-cli jobs stop {job_id}`, or until it idles for {args.idleMinutes:g} minutes"
            )
            forward.wait()
    except ServerError as error:
        if error.name != "JobNotEnterable":
            raise
        return _report_end(api, next(wait(api, [job_id], None)))  # it has just ended
    except KeyboardInterrupt:
        terminal.print_message(
            f"\nthe notebook keeps running\n{_describe_opening(job_id, args.token)}\n  stop it    gradient-cli jobs "
            f"stop {job_id}"
        )
    return OK


def _describe_opening(job_id: str, token: str) -> str:
    return f"  open it    gradient-cli jobs port-forward {job_id} {PORT} --path '{_path(token)}'"


def _path(token: str) -> str:
    return f"/lab?token={token}"


def _wait_until_running(api: Api, job_id: str) -> dict[str, Any]:
    """Return the job once it runs or has ended, and print what it waits for."""
    shown = None
    while True:
        job = retry_until_connected(lambda: api.job(job_id))
        if job["state"] in ("Running", *_ENDED):
            return job
        parts = (job.get("phase") or job["state"], job.get("message"))
        text = terminal.sanitize(": ".join(filter(None, parts)))
        if text != shown:
            terminal.print_message(text)
            shown = text
        time.sleep(_POLL_SECONDS)


def _wait_until_it_answers(api: Api, job_id: str, forward: Any) -> bool:  # noqa: ANN401  its class is imported late
    """Return whether JupyterLab answers; false if the job ended before."""
    terminal.print_message("waiting for JupyterLab, which is installed if missing")
    seen: int | None = 0
    forward.quiet = True
    host, port = forward.address
    while True:
        connection = http.client.HTTPConnection(host, port, timeout=10)
        try:
            connection.request("GET", "/api")
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            if seen is not None:
                seen = _show_installation(api, job_id, seen)
            if retry_until_connected(lambda: api.job(job_id))["state"] in _ENDED:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            forward.quiet = False
            return True
        finally:
            connection.close()


def _show_installation(api: Api, job_id: str, seen: int) -> int | None:
    """Print the lines of the log after `seen`, and return the number of the last; None: JupyterLab starts."""
    page = retry_until_connected(lambda: api.logs(job_id, line=seen))
    for row in page["lines"]:
        if row["message"] == _STARTS:
            return None
        terminal.print_message(terminal.style(terminal.sanitize_line(row["message"], colours=False), "dim", sys.stderr))
        seen = int(row["line"])
    return seen


def _report_end(api: Api, job: dict[str, Any]) -> int:
    print_summary(api, job)
    return exit_code(job)
