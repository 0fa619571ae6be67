from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gradient_cli import config, follow, terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, current_folder, is_array_id, parse_moment, resolve_id
from gradient_cli.commands.jobs import arrays
from gradient_cli.commands.jobs.metrics import format_value
from gradient_cli.commands.projects import find_project
from gradient_cli.errors import OK, REFUSED, UsageError
from gradient_cli.follow import describe_state
from gradient_cli.formatting import (
    describe_attempt,
    describe_gpus,
    describe_members,
    describe_port,
    describe_slurm,
    describe_tpu,
    describe_usage,
    format_cost,
    format_duration,
    format_future,
    format_memory,
    format_moment,
    format_moment_and_age,
    format_ordinal,
    format_past,
    format_price,
    format_start,
    job_word,
    list_nodes,
    parse_duration,
    print_fields,
    print_json,
    print_result,
    print_table,
    state_word,
)
from gradient_cli.next_steps import job_steps
from gradient_cli.options import add_common, add_for_job, add_job_ids, add_option, add_positional

_MIB = 1024**2
_QUEUE_REASONS = ("behind_jobs", "waiting_for_machine")
_FILTERS = {
    "state": (
        "STATE",
        "only jobs in these states, separated by commas: Pending, Running, Kept, Succeeded, Failed, Error, Cancelled",
    ),
    "project": ("NAME", "only jobs of this project"),
    "projectId": ("ID", "only jobs of the project with this id"),
    "machineType": ("NAME", "only jobs on this machine type"),
    "name": ("TEXT", "only jobs with exactly this name"),
    "query": ("QUERY", "only jobs that match, for example 'state:failed tag:a,b acc>0.9 lr=0.01 created<2d text'"),
    "sort": (
        "COLUMN",
        (
            "name, state, machine, project, created, finished, duration, cost, a metric or params.NAME; for descending "
            "order --sort=-COLUMN"
        ),
    ),
    "array": ("ID", "list the members of this array, which is otherwise one line"),
    "tag": ("TAG", "only jobs with one of these tags, separated by commas"),
    "since": ("TIME", "only jobs created since this time: 10m, 2h or 1d ago, or a date and time"),
}
_ORDERS_OF_ARRAYS = {"name", "state", "machine", "project", "created", "finished", "duration", "cost"}
_SHORT = {"state": "-s", "project": "-p", "machineType": "-m", "query": "-q", "tag": "-t"}


def add_list(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, text) in _FILTERS.items():
        add_option(parser, f"--{name}", _SHORT.get(name, ""), metavar=metavar, help=text)
    parser.add_argument("--mine", action="store_true", help="only your own jobs, submitted with any of your API keys")
    parser.add_argument(
        "-n", "--limit", type=int, default=50, metavar="N", help="largest number of jobs to list (default: 50)"
    )
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help=f"columns besides the id, separated by commas: {', '.join(_COLUMNS)}, a metric, params.NAME",
    )
    parser.add_argument("-a", "--all", action="store_true", help="list all jobs, without a limit")
    add_common(parser, list_jobs)


def add_stop(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument(
        "--now",
        action="store_true",
        help="kill them immediately, without the grace period, even if they are already stopping",
    )
    add_common(parser, stop)


def add_delete(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "ids", needed=True, nargs="*", metavar="ID", help="ids of the jobs (required)")
    add_common(parser, delete)


def add_wait(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument(
        "--timeout", metavar="TIME", help="give up after this time: 90m, 2h, or seconds (default: no limit)"
    )
    add_common(parser, wait)


def list_jobs(args: argparse.Namespace) -> int:
    """Print jobs, newest first or in the order of `--sort`."""
    if args.limit < 1:
        raise UsageError(f"limit: must be at least 1, not {args.limit}", hint="For example --limit 50, or --all.")
    if "stopped" in {state.strip().casefold() for state in (args.state or "").split(",")}:
        raise UsageError(
            "state: Stopped: succeeded or cancelled?", hint="Write --state Succeeded or --state Cancelled."
        )
    columns = [name.strip() for name in (args.columns or "").split(",") if name.strip() not in {"", "id"}]
    api = connect(args)
    filters: dict[str, Any] = {name: getattr(args, name) for name in _FILTERS}
    filters["q"] = filters.pop("query")
    if args.since:
        filters["since"] = parse_moment("since", args.since, api).isoformat()
    filters["mine"] = "true" if args.mine else None
    metrics = [name for name in columns if name not in _COLUMNS and not name.startswith(_PARAM)]
    # A filter, an order or a column of what members differ in shows these; else an array is one line.
    of_members = any(filters[name] for name in ("state", "name", "q", "array"))
    by_member = bool(args.sort) and args.sort.removeprefix("-") not in _ORDERS_OF_ARRAYS
    shows_members = any(name not in _COLUMNS for name in columns)
    filters["fold"] = None if of_members or by_member or shows_members else "true"
    jobs, after = api.newest_jobs({**filters, "metrics": ",".join(metrics) or None}, None if args.all else args.limit)
    if not jobs and (args.project or args.projectId):
        find_project(api, args.project or args.projectId)  # refuses one that does not exist
    if args.json:
        return print_json({"jobs": jobs, "next": after})
    _print_jobs(jobs, columns, filtered=any(value for name, value in filters.items() if name != "fold"))
    if after:
        which = "first" if args.sort else "newest"
        terminal.print_message(f"only the {which} {len(jobs)}; --limit N or --all lists more")
    return OK


def _params(job: dict[str, Any], prefix: str = "") -> dict[str, str]:
    given = job.get("params") or {}
    return {f"{prefix}{name}": v if isinstance(v, str) else json.dumps(v) for name, v in given.items()}


def _print_jobs(jobs: list[dict[str, Any]], columns: list[str], *, filtered: bool) -> None:
    """Print chosen columns, and name the parameters of the jobs if a chosen one is not among them."""
    if not jobs:
        terminal.print_message(
            "no matching jobs; `gradient-cli jobs list` lists all jobs"
            if filtered
            else "no jobs yet; `gradient-cli jobs create` submits one"
        )
        return
    rows = []
    for job in jobs:
        metrics = {name: format_value(name, value) for name, value in (job.get("metrics") or {}).items()}
        rows.append({**{name: cell(job) for name, cell in _COLUMNS.items()}, **_params(job, _PARAM), **metrics})
    # No empty column if no job waits.
    chosen = columns or [name for name in _USUAL if name != "waits" or any(row[name] for row in rows)]
    heads = ["ID", *(name.upper() if name in _COLUMNS else name.replace(_PARAM, "", 1) for name in chosen)]
    cells = [[_shown_id(job), *(row.get(name, "") for name in chosen)] for job, row in zip(jobs, rows)]
    print_table(heads, cells, whole=("WAITS",), spare=[head for head in _SPARE if head in heads])
    param_names = sorted({name for row in rows for name in row} - set(_COLUMNS))
    for name in chosen:
        if name not in _COLUMNS and name not in param_names:
            there = ", ".join([*_COLUMNS, *param_names])
            text = f"no job in this list has {name}; they have: {there}, and metrics"
            terminal.print_message(terminal.sanitize(text))


def _describe_wait(job: dict[str, Any]) -> str:
    """Return in few words why a job waits: `3rd, ~4m`, `no worker`, `silent, 5m`."""
    if job.get("arrayMembers"):
        return ""
    if job.get("silentSince"):
        return f"silent, {format_past(job['silentSince']).removesuffix(' ago')}"
    position = job.get("queuePosition")
    if position is None:
        return ""
    reason = str(job.get("reason") or "")
    # If the job only waits its turn, its position says more than the name of the reason.
    short = reason.removeprefix("waiting_for_").removeprefix("project_").replace("_", " ")
    why = format_ordinal(position) if reason in _QUEUE_REASONS else short
    return ", ".join(part for part in (why, format_future(job.get("estimatedStartAt"))) if part)


def _shown_id(job: dict[str, Any]) -> str:
    return str(job["arrayId"] if job.get("arrayMembers") else job["id"])


def _describe_progress(job: dict[str, Any]) -> str:
    return _describe_phase(job) + (" (diverged)" if job.get("diverged") else "")


def _describe_phase(job: dict[str, Any]) -> str:
    if job.get("arrayMembers"):
        return "stopping: " * bool(job.get("stopRequested")) + describe_members(job["arrayMembers"])
    phase, state = job.get("phase"), job_word(job)
    is_state_enough = not phase or phase in {"running", state.casefold()} or _describe_wait(job)
    return state if is_state_enough else f"{state} ({phase})"


def _of_one_job(job: dict[str, Any], name: str) -> str:
    """Return a field of a job; nothing if the line is an array, whose members differ in it."""
    return "" if job.get("arrayMembers") or job.get(name) is None else str(job[name])


_PARAM = "params."
_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "name": lambda job: str(job.get("name") or ""),
    "state": _describe_progress,
    "waits": _describe_wait,
    "machine": lambda job: str(job.get("machineType") or ""),
    "project": lambda job: str(job.get("project") or ""),
    "owner": lambda job: str(job.get("owner") or ""),
    "created": lambda job: format_past(job.get("createdAt")),
    "ran": lambda job: format_duration(job.get("durationSeconds")),
    "cost": format_cost,
    "exit": lambda job: _of_one_job(job, "exitCode"),
    "index": lambda job: _of_one_job(job, "arrayIndex"),
    "rank": lambda job: _of_one_job(job, "arrayIndex") if job.get("nodes") else "",
    "value": lambda job: _of_one_job(job, "arrayValue"),
    "host": lambda job: _of_one_job(job, "host"),
}
_USUAL = [name for name in _COLUMNS if name not in {"owner", "exit", "index", "rank", "value", "host"}]
_SPARE = ("COST", "RAN", "PROJECT", "CREATED", "MACHINE")
"""Heads of the columns that a narrow terminal leaves out first."""


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    job_id = resolve_id(args.id, api)
    if is_array_id(job_id):
        members, array = api.members(job_id), api.array(job_id)
        if args.json:
            totals = {name: array[name] for name in ("arrayMembers", "durationSeconds", "cost", "gpuHours")}
            return print_json({"id": job_id, **totals, "jobs": members})
        print_fields(arrays.describe(array))
        columns = ["rank", "state", "waits", "host"] if members[0].get("nodes") else ["index", "value", "state"]
        _print_jobs(members, [*columns, "exit", "ran", "cost"], filtered=True)
        for message in dict.fromkeys(str(job["message"]) for job in members if job.get("nodes") and job.get("message")):
            terminal.print_message(terminal.sanitize(message))
        return OK
    job = api.job(job_id)
    if args.json:
        return print_json(job)
    print_fields(_fields(job))
    nodes = list_nodes(job)
    if nodes:
        rows = [{**node, "state": state_word(node["state"])} for node in nodes]
        cells = [[_of_one_job(row, name) for name in ("rank", "state", "host", "exitCode")] for row in rows]
        print_table(["RANK", "STATE", "HOST", "EXIT"], cells)
    terminal.print_message("\n".join(["next", *(f"  {step}" for step in job_steps(job))]))
    return OK


_SHOWN_TEXTS = (
    ("command", "command"),
    ("working directory", "workingDir"),
    ("python", "python"),
    ("requirements", "requirementsFile"),
)
_SHOWN_LISTS = (
    *(("packages", "packages"), ("extras", "extras"), ("groups", "groups")),
    *(("tags", "tags"), ("outputs", "outputs"), ("data disks", "dataDisks"), ("metrics", "metricPatterns")),
    *(("starts after", "after"), ("inputs", "inputs")),
)


def _fields(job: dict[str, Any]) -> dict[str, str]:
    details = (job.get(name) for name in ("phase", "phaseDetail"))
    phase = " · ".join(str(detail) for detail in details if detail and detail != job.get("message"))
    exact = {
        "id": str(job["id"]),
        "name": str(job.get("name") or ""),
        **{name: str(job.get(name) or "") for name in ("project", "owner")},
        "state": describe_state(job),
        **{name: str(job.get(name) or "") for name in ("reason", "diverged")},
        "phase": phase,
        "queue position": str(job.get("queuePosition") or ""),
        "starts": _describe_start(job),
        "killed": f"{format_start(job['stopsBy'])}, if it has not ended" if job.get("stopsBy") else "",
        "exit code": "" if job.get("exitCode") is None else str(job["exitCode"]),
        "machine type": str(job.get("machineType") or "") + (" (simulated)" if job.get("simulated") else ""),
        "sandbox": "none: it runs as the server's user" if job.get("sandboxed") is False else "",
        **_machine_fields(job),
        "user": str(job.get("user") or ""),
        **_image_fields(job),
        **{label: str(job.get(name) or "") for label, name in _SHOWN_TEXTS},
        "workspace": str(job.get("workspace") or job.get("workspaceSha256") or ""),
        "commit": _describe_commit(job),
        "parameters": _assignments(_params(job)),
        "environment": _assignments(job.get("envVars")),
        "ports": ", ".join(describe_port(port) for port in job.get("ports") or []),
        **{label: ", ".join(job.get(name) or []) for label, name in _SHOWN_LISTS},
        "attempt": describe_attempt(job),
        "time limit": format_duration(job.get("timeLimit")),
        "clone of": str(job.get("parentJobId") or ""),
        "rank": _describe_rank(job),
        "array": f"{job['arrayId']}_{job['arrayIndex']}: {job['arrayValue']}" if job.get("arrayValue") else "",
    }
    gone = {gap["what"]: f"{gap['message']} {format_moment_and_age(gap['at'])}" for gap in job.get("removed") or []}
    exact |= {"note": " ".join(filter(None, [job.get("note"), *(job.get("notes") or [])]))}
    exact |= {"log": gone.get("logs", ""), "artifacts": gone.get("artifacts", "")}
    times = {name: format_moment_and_age(job.get(f"{name}At")) for name in ("created", "started", "finished")}
    spent = format_cost(job, str(job.get("machineType") or "")) + arrays.describe_ceiling(job)
    cost = " at ".join(filter(None, (spent, job.get("pricePerHour") and format_price(job))))
    ran = format_duration(job.get("durationSeconds"))
    return {**exact, **times, "ran": ran, arrays.cost_label(job): cost, "link": str(job.get("url") or "")}


def _describe_rank(job: dict[str, Any]) -> str:
    is_member = job.get("nodes") and job.get("arrayId")
    return f"{job['arrayIndex']} of {job['nodes']} nodes, {job['arrayId']}" if is_member else ""


def _describe_start(job: dict[str, Any]) -> str:
    at = job.get("estimatedStartAt")
    return f"{format_start(at)} ({format_moment(at)}, an estimate from earlier jobs)" if at else ""


def _assignments(given: dict[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (given or {}).items())


def _describe_commit(job: dict[str, Any]) -> str:
    changed = "with changes" if job.get("codeDirty") else ""
    facts = (job.get("codeCommit"), job.get("codeBranch"), job.get("codeDescribe"), changed)
    return " · ".join(str(fact) for fact in facts if fact)


def _machine_fields(job: dict[str, Any]) -> dict[str, str]:
    return {
        "worker": " on ".join(dict.fromkeys(str(job[name]) for name in ("worker", "host") if job.get(name))),
        "cpus": "" if job.get("cpus") is None else f"{job['cpus']:g}",
        "memory": "" if job.get("memoryMb") is None else format_memory(job["memoryMb"] * _MIB),
        "shared memory": "" if job.get("sharedMemMb") is None else format_memory(job["sharedMemMb"] * _MIB),
        "network": str(job.get("network") or ""),
        "gpus": describe_gpus(job),
        "TPU": describe_tpu(job),
        "Slurm": describe_slurm(job),
        "used": describe_usage(job),
    }


def _image_fields(job: dict[str, Any]) -> dict[str, str]:
    container, image = str(job.get("container") or ""), str(job.get("image") or "")
    built = job.get("relDockerfilePath") or "Dockerfile"
    return {
        "container": container,
        "image": image if image != container else "",
        "image digest": str(job.get("imageDigest") or ""),
        "pull": str(job.get("imagePullPolicy") or ""),
        "built from": str(built) + (", build only" if job.get("buildOnly") else "") if job.get("useDockerfile") else "",
        "pushed to": str(job.get("registryTarget") or ""),
    }


def stop(args: argparse.Namespace) -> int:
    api = connect(args)
    if len(args.ids) > 1:
        return _act(args, api, "stop", args.ids, now=args.now)
    job_id = resolve_id(args.ids[0] if args.ids else None, api)
    if is_array_id(job_id):
        return _act(args, api, "stop", [job_id], now=args.now)
    had_ended = api.job(job_id).get("finishedAt")
    job = api.stop_job(job_id, now=args.now)
    if args.json:
        print_json(job)
    elif had_ended:
        terminal.print_message(f"the job had already ended: {describe_state(job)}")
    elif job.get("finishedAt"):
        terminal.print_message(describe_state(job))
    else:
        grace = format_duration(job.get("stopGrace")) or "a moment"
        terminal.print_message(f"stopping{' at once' if args.now else f'; the job has {grace} to save its work'}")
        terminal.print_message(f"  gradient-cli jobs wait {job['id']}")
    return OK


def delete(args: argparse.Namespace) -> int:
    """Delete jobs; an id is required, the folder's last job is not assumed."""
    api = connect(args)
    if not args.ids:
        last = config.last("jobs", current_folder(), api.url)
        hint = (
            f"The last job of this folder: `gradient-cli jobs delete {last}`."
            if last
            else "`gradient-cli jobs list` lists the ids."
        )
        raise UsageError("id: required to delete a job", hint=hint)
    if len(args.ids) > 1 or is_array_id(args.ids[0]):
        return _act(args, api, "delete", args.ids)
    job_id = resolve_id(args.ids[0], api)
    api.delete_job(job_id)
    return print_result(args, {"id": job_id, "deleted": True}, f"deleted {terminal.sanitize(job_id)}")


def _act(args: argparse.Namespace, api: Api, action: str, given: list[str], *, now: bool = False) -> int:
    ids = list(dict.fromkeys(resolve_id(job_id, api) for job_id in given))
    results = api.act_on_jobs(action, ids, now=now)
    if args.json:
        print_json({"results": results})
    else:
        for outcome in results:
            job, error = outcome.get("job"), outcome.get("error") or {}
            result = (
                ("deleted" if action == "delete" else "stopping")
                if outcome["done"]
                else f"error: {error.get('message')}"
            )
            if job:
                result = describe_state(job) if job.get("finishedAt") else "stopping"
            terminal.print_message(f"{terminal.sanitize(outcome['id'])}  {terminal.sanitize(result)}")
    return OK if all(outcome["done"] for outcome in results) else REFUSED


def wait(args: argparse.Namespace) -> int:
    timeout = None if args.timeout is None else parse_duration("timeout", args.timeout)
    api = connect(args)
    ids = [resolve_id(job_id, api) for job_id in args.ids or [None]]
    if any(map(is_array_id, ids)):
        return arrays.wait(args, api, ids, timeout)
    jobs: list[dict[str, Any]] = []
    try:
        for job in follow.wait(api, list(dict.fromkeys(ids)), timeout):
            jobs.append(job)
            if not args.json:
                if len(ids) > 1:
                    terminal.print_message(terminal.style(f"job {job['id']}", "bold", sys.stderr))
                follow.print_summary(api, job)
    except KeyboardInterrupt:
        return follow.detach(*ids[len(jobs) :])
    if args.json:
        print_json(jobs[0] if len(ids) == 1 else {"jobs": jobs})
    sys.stdout.flush()
    return max(map(follow.exit_code, jobs))


add_show = partial(add_for_job, run=show)
