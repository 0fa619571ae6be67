"""`gradient-server prune`: lists and deletes expired logs, artifacts and workspaces."""

import json
import sys
from collections.abc import Iterator

from core.db import schema_check
from core.db.ballast import release_ballast
from core.db.database import Database, require_database
from core.formatting import format_bytes, iso_time
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.disk_usage import measure
from core.storage.prune import PruneReport, RemovalCount, prune
from core.storage.retention import OutputKind
from core.storage.stores import Stores
from gradient_server.home import require_home
from gradient_server.schema_upgrade import prepare_schema
from worker.environments.cache import UNUSED_DAYS

_ROW = "{:24} {:10} {:>8} {:>10}  {:20} {}"


def run(settings: Settings, *, dry_run: bool, as_json: bool) -> int:
    """Delete expired output, or only list it; return 1 if some files could not be deleted."""
    database = _open_database(settings, dry_run=dry_run)
    stores = Stores(settings=settings, database=database, artifacts=open_artifacts(settings))
    try:
        report = prune(stores, dry_run=dry_run, progress=_show_progress)
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        database.close()
    packages = sum(entry.bytes for entry in measure(settings.root / "environments").entries.values())
    if as_json:
        print(_format_json(report, packages, dry_run=dry_run))
    else:
        print("\n".join(_report_lines(report, dry_run=dry_run)))
        if packages:
            print(
                f"Python packages of jobs take {format_bytes(packages)}; workers remove those unused for {UNUSED_DAYS}"
            )
            print("days; `gradient-server prune --environments` removes all unused ones.")
    return int(report.failed > 0)


def _open_database(settings: Settings, *, dry_run: bool) -> Database:
    require_database(settings)  # before anything is made
    release_ballast(settings.root)
    database = Database.of(settings, read_only=dry_run)
    if dry_run:
        schema_check.check(database)
    else:
        prepare_schema(database)
    require_home(settings, database)
    return database


def _show_progress(report: PruneReport) -> None:
    if sys.stderr.isatty():
        total = report.total
        print(f"\r\x1b[K{total.count:,} so far, {format_bytes(total.bytes)}", end="", file=sys.stderr, flush=True)


def _report_lines(report: PruneReport, *, dry_run: bool) -> Iterator[str]:
    if not report.projects and not report.workspaces_days:
        yield "No policy is set: everything is kept until its job is deleted."
        yield "Set one with GRADIENT_RETENTION__* or `gradient-cli projects update`."
    elif report.total.count:
        yield _ROW.format("PROJECT", "WHAT", "COUNT", "BYTES", "OLDEST (UTC)", "POLICY")
        for project in report.projects:
            for kind, policy in project.policies.items():
                if project.removed[kind].count:
                    yield _row(project.name, kind.value, project.removed[kind], policy.describe)
        if report.workspaces.count:
            days = report.workspaces_days
            kept = f"kept {days} days after the last job on it" if days else "kept until its jobs are deleted"
            yield _row("(all)", "workspaces", report.workspaces, kept)
    yield from _summary_lines(report, dry_run=dry_run)


def _summary_lines(report: PruneReport, *, dry_run: bool) -> Iterator[str]:
    total = report.total
    logs, artifacts = (sum(project.removed[kind].count for project in report.projects) for kind in OutputKind)
    counts = [
        (logs, "log", "logs"),
        (artifacts, "job's artifacts", "jobs' artifacts"),
        (report.workspaces.count, "workspace", "workspaces"),
    ]
    parts = ", ".join(f"{number:,} {singular if number == 1 else many}" for number, singular, many in counts if number)
    verb = "Would be removed" if dry_run else "Removed"
    yield f"{verb}: {parts or 'nothing'}{f' ({format_bytes(total.bytes)})' if parts else ''}."
    if report.unfinished:
        what = "have not been removed yet" if dry_run else "had not been removed yet"
        yield f"Files of {report.unfinished:,} earlier removals {what}."
    if report.failed:
        yield f"Files of {report.failed:,} removals could not be removed; see the service's log. Run this again."


def _row(name: str, what: str, tally: RemovalCount, policy: str) -> str:
    oldest = f"{tally.oldest:%Y-%m-%d %H:%M}" if tally.oldest else ""
    return _ROW.format(name, what, f"{tally.count:,}", format_bytes(tally.bytes), oldest, policy)


def _format_json(report: PruneReport, packages: int, *, dry_run: bool) -> str:
    projects = [
        {
            "id": project.id,
            "name": project.name,
            **{
                kind.value: {**_tally_fields(project.removed[kind]), "keepDays": policy.days, "own": policy.own}
                for kind, policy in project.policies.items()
            },
        }
        for project in report.projects
    ]
    fields = {
        "dryRun": dry_run,
        "projects": projects,
        "workspaces": {**_tally_fields(report.workspaces), "keepDays": report.workspaces_days or None},
        "environments": {"bytes": packages},
        "unfinished": report.unfinished,
        "failed": report.failed,
    }
    return json.dumps(fields, indent=2)


def _tally_fields(tally: RemovalCount) -> dict[str, int | str | None]:
    return {"count": tally.count, "bytes": tally.bytes, "oldest": iso_time(tally.oldest) if tally.oldest else None}
