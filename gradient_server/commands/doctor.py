"""`gradient-server doctor`: checks everything that the service needs, and prints problems and remedies.

It changes nothing: the database is opened read-only, and nothing missing is created.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sqlalchemy.exc import DBAPIError

from core.db.database import Database
from core.errors import DatabaseMissing, StoreUnavailable
from core.settings import Settings
from gradient_server.checks import bucket, containers, gpus, host, jobs
from gradient_server.checks import database as database_checks
from gradient_server.checks.finding import Finding, Status, problem
from gradient_server.startup_wait import POOLER_FIX, REFUSED_OPTION

_WIDTH = 100
_INDENT = 21


def run(settings: Settings, *, as_json: bool, tpu: bool = False, gpu: bool = False, all_lines: bool = False) -> int:
    """Run all checks (with `tpu` and `gpu`, also slow ones), print them, and return 1 if there is a problem."""
    findings = [*run_checks(settings), *(_tpu_findings(settings) if tpu else ())]
    findings += gpus.check() if gpu else ()
    print(_format_json(findings) if as_json else _format_text(findings, all_lines=all_lines))
    return int(_worst_status(findings) is Status.PROBLEM)


def run_checks(settings: Settings) -> list[Finding]:
    """Run all checks but those of Google Cloud, in the order in which to fix their findings."""
    return [
        *host.check(settings),
        *containers.check(settings),
        *bucket.check(settings),
        *_database_findings(settings),
    ]


def _tpu_findings(settings: Settings) -> Iterator[Finding]:
    # Only on demand: it queries a cloud, and its library takes seconds to import.
    try:
        from gradient_server.checks import tpus
        from worker.backends.tpu.storage.job_storage import make_bucket_opener
    except ModuleNotFoundError as error:
        return iter(
            [problem("tpu", f"{error.name} is not installed.", "Run `pip install 'gradient-jobs[server,tpu]'`.")]
        )
    return tpus.check(settings, make_bucket_opener(settings))


def _database_findings(settings: Settings) -> Iterator[Finding]:
    where = database_checks.display_url(settings)
    try:
        database = Database.of(settings, read_only=True)
    except DatabaseMissing as error:
        what, _, fix = error.message.partition(". ")
        yield problem("database", f"{what}.", fix)
        return
    try:
        with database.read() as session:
            yield from database_checks.durability(database, session)
        schema = database_checks.migrations(database)
        yield schema
        if schema.status is not Status.PROBLEM:  # else the tables do not match the queries below
            with database.read() as session:
                yield from database_checks.clocks(session)
                yield from jobs.check(settings, session)
    except (StoreUnavailable, DBAPIError) as error:
        cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
        why = str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]
        yield problem(
            "database",
            f"{where} does not answer: {why}.",
            POOLER_FIX if REFUSED_OPTION in why else "Start it, or correct GRADIENT_DATABASE__URL; then try again.",
        )
    finally:
        database.close()


def _worst_status(findings: Sequence[Finding]) -> Status:
    there = {finding.status for finding in findings}
    return next((status for status in (Status.PROBLEM, Status.WARNING) if status in there), Status.OK)


def _format_json(findings: Sequence[Finding]) -> str:
    return json.dumps(
        {"status": _worst_status(findings), "findings": [asdict(finding) for finding in findings]}, indent=2
    )


def _format_text(findings: Sequence[Finding], *, all_lines: bool) -> str:
    """Format the problems, then the warnings, then what is right: unless `all_lines`, only the names of its checks."""
    lines = []
    order = [Status.PROBLEM, Status.WARNING, Status.OK]
    for finding in sorted(findings, key=lambda finding: order.index(finding.status)):
        if finding.status is Status.OK and not all_lines:
            continue
        start = f"{finding.status:9}{finding.check:12}"
        lines += _wrap(finding.message, start)
        if finding.fix is not None:
            lines += _wrap(f"→ {finding.fix}", " " * _INDENT)
    right = dict.fromkeys(finding.check for finding in findings if finding.status is Status.OK)
    if right and not all_lines:
        lines += _wrap(f"{', '.join(right)} (--all describes them)", f"{Status.OK:9}")
    count = Counter(finding.status for finding in findings)
    problems, warnings = count[Status.PROBLEM], count[Status.WARNING]
    lines += ["", f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}."]
    return "\n".join(lines)


def _wrap(text: str, start: str) -> list[str]:
    # Paths and commands are never broken, so that they can be copied.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=start,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
