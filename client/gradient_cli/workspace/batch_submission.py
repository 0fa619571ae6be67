"""Submission of many jobs, whose folders are each packed and uploaded only once."""

from __future__ import annotations

import json
import os
import time

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.api.submissions import IDEMPOTENCY_KEY
from gradient_cli.api.transport import MAX_RATE_LIMIT_SECONDS
from gradient_cli.errors import TOO_MANY_REQUESTS, ServerError
from gradient_cli.workspace import submission, workspace_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from gradient_cli.api.client import Api
    from gradient_cli.workspace.packing.archive import WorkspaceFolder

    Outcome = dict[str, Any] | ServerError  # a job as the server created it, or why the server refused it

_BATCH_JOBS = 1000
_BATCH_BYTES = 4_000_000
_REFUSED_SPEC = (400, 404, 422)


def submit(
    api: Api, jobs: list[tuple[dict[str, Any], str, list[str]]], report: Callable[[str], None]
) -> Iterator[tuple[int, Outcome]]:
    """Submit jobs, each of which succeeds or fails by itself.

    Yields a job's place in `jobs`, and what became of it.

    Args:
        jobs: For each job its spec, its workspace (a path, a URL or `none`) and the patterns of excluded files to
            upload, as `job_spec.resolve` returns them. A spec that has a `workspaceSha256` needs no other workspace.
        report: Called with a line about each upload.
    """
    specs = _with_machine_types(api, [spec for spec, _, _ in jobs], report)
    ready: dict[int, dict[str, Any]] = {}
    by_folder: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for place, (_, workspace, include) in enumerate(jobs):
        if "workspaceSha256" in specs[place]:
            ready[place] = specs[place]
        elif workspace == "none" or workspace_path.is_url(workspace):
            ready[place] = {**specs[place], "workspace": workspace}
        else:
            by_folder.setdefault((workspace, tuple(include)), []).append(place)
    folders = {key: submission.read_folder(key[0], list(key[1])) for key in by_folder}
    for key, places in by_folder.items():
        uploaded = None
        for place in places:
            if uploaded is None:
                outcome = _submit_first(api, specs[place], key[0], folders[key], report)
                uploaded = None if isinstance(outcome, ServerError) else outcome["workspaceSha256"]
                yield place, outcome
            else:
                ready[place] = {**specs[place], "workspaceSha256": uploaded}
    order = sorted(ready)
    for number, outcome in _submit_ready(api, [ready[place] for place in order]):
        yield order[number], outcome


def _submit_ready(api: Api, specs: list[dict[str, Any]]) -> Iterator[tuple[int, Outcome]]:
    """Submit jobs without an upload, waiting where a limit of the server is reached."""
    specs = [{IDEMPOTENCY_KEY: os.urandom(16).hex(), **spec} for spec in specs]
    waiting = list(range(len(specs)))
    until = time.monotonic() + MAX_RATE_LIMIT_SECONDS
    while waiting:
        sent = _fill_batch(waiting, specs)
        del waiting[: len(sent)]
        limited: list[tuple[int, ServerError]] = []
        for place, outcome in zip(sent, api.create_batch([specs[place] for place in sent])):
            if isinstance(outcome, ServerError) and outcome.status == TOO_MANY_REQUESTS:
                limited.append((place, outcome))
            else:
                yield place, outcome
        if len(limited) < len(sent):
            until = time.monotonic() + MAX_RATE_LIMIT_SECONDS
        wait = max((error.retry_after for _, error in limited), default=0.0)
        if time.monotonic() + wait > until:
            yield from limited
        elif limited:
            terminal.print_message(f"{limited[0][1]} Waiting {wait:.0f} s…")
            time.sleep(wait)
            waiting[:0] = [place for place, _ in limited]


def _fill_batch(places: list[int], specs: list[dict[str, Any]]) -> list[int]:
    """Return the first of these places whose specs together are a batch that the server accepts."""
    size = 0
    for count, place in enumerate(places[:_BATCH_JOBS]):
        size += len(json.dumps(specs[place]))
        if size > _BATCH_BYTES and count:
            return places[:count]
    return places[:_BATCH_JOBS]


def _with_machine_types(api: Api, specs: list[dict[str, Any]], report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the specs with the server's default machine type where they name none."""
    if all(spec.get("machineType") for spec in specs):
        return specs
    default: dict[str, Any] = {}
    submission.choose_machine_type(api, default, report)
    return [{**spec, "machineType": spec.get("machineType") or default["machineType"]} for spec in specs]


def _submit_first(
    api: Api, spec: dict[str, Any], path: str, folder: WorkspaceFolder | None, report: Callable[[str], None]
) -> Outcome:
    """Submit the first valid job of a folder alone, because it may have to be uploaded with it."""
    try:
        return submission.submit(api, spec, path, folder, report)
    except ServerError as error:
        if error.status not in _REFUSED_SPEC or error.field.startswith("workspace"):
            raise
        return error
