"""The rows that the database lets a worker that has joined write: its own and those of its jobs, with sound values.

The service and other workers read these rows, so a value that they cannot read would stop their work, too.
"""

from core.jobs.reasons import REASONS
from core.jobs.states import OWNED, JobState

ME = "(SELECT worker_of_login())"
_MY_HOST = f"(SELECT w.host FROM workers w WHERE w.name = {ME})"  # noqa: S608 - of constants
_CURRENT = "jobs j JOIN attempts a ON a.job_id = j.id AND a.attempt = j.attempt"
_ARTIFACTS = frozenset({"none", "partial", "complete", "removed"})


def _of_job(table: str, more: str = "") -> str:
    """Return the condition that a row is of a job whose current attempt the worker has run."""
    return f"EXISTS (SELECT 1 FROM {_CURRENT} WHERE j.id = {table}.job_id AND a.worker = {ME}{more})"  # noqa: S608 - too


def _of_attempt(table: str) -> str:
    return _of_job(table, f" AND {table}.attempt = j.attempt")


def _is_one_of(column: str, values: frozenset[str]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


def _within(columns: str, first: str, last: str) -> list[str]:
    """Return conditions that leave out NaN and the infinities, too."""
    return [f"{column} BETWEEN {first} AND {last}" for column in columns.split()]


def _are_times(columns: str) -> list[str]:
    return _within(columns, "'1900-01-01'", "'9000-01-01'")


def _are_past(columns: str, delay: str = "1 minute") -> list[str]:
    """Return conditions for times by the database's clock."""
    return _within(columns, "'1900-01-01'", f"clock_timestamp() + interval '{delay}'")


def _is_json(column: str, kind: str, *refused: str) -> str:
    """Return the condition on a JSON value's type; `refused`: paths of what it may not have."""
    without = "".join(f" AND NOT jsonb_path_exists({column}::jsonb, '{path}')" for path in refused)
    return f"(json_typeof({column}) = '{kind}'{without})"


def _rises(table: str, key: str, column: str, most: int) -> str:
    """Return the condition that a number is as before, or greater by `most` at most."""
    before = f"(SELECT o.{column} FROM {table} o WHERE o.{key} = {table}.{key})"  # noqa: S608 - of constants
    return f"{column} - coalesce({before}, 0) BETWEEN 0 AND {most}"


_REASON = f"(reason IS NULL OR {_is_one_of('reason', frozenset(REASONS))})"
_OTHER_THAN_STRING = '? (@.type() != "string")'
_NEITHER_STRING_NOR_NULL = '? (@.type() != "string" && @.type() != "null")'
_NO_SIZE = '? (@.type() != "null" && (@.type() != "number" || @ < 0 || @ > 1000000000000000000 || @ != @.floor()))'
_NO_NUMBER = '? (@.type() != "number" && !(@ == "NaN" || @ == "Infinity" || @ == "-Infinity"))'

_SOUND: dict[str, list[str]] = {
    "jobs": [
        _is_one_of("state", frozenset(JobState)),
        _is_one_of("artifacts_state", _ARTIFACTS),
        _REASON,
        _rises("jobs", "id", "lease", 1),
        _rises("jobs", "id", "machine_faults", 1),
        _is_json("handle", "object", '$.sandboxed ? (@.type() != "boolean" && @.type() != "null")'),
        *_are_times("ended_at finished_at started_at"),
        *_are_past("heartbeat_at"),
        *_are_past("run_after", "1 day"),
    ],
    "attempts": [
        _REASON,
        _is_json(
            "gpus",
            "array",
            'strict $[*] ? (@.type() != "object")',
            f"$[*].memory {_NO_SIZE}",
            f'$[*].keyvalue() ? (@.key != "memory" && @.key != "index").value {_NEITHER_STRING_NOR_NULL}',
        ),
        _is_json(
            "allocation",
            "object",
            *(f'strict $ ? (!exists (@.{name} ? (@.type() == "string")))' for name in ("zone", "name", "type")),
            f"$.url {_NEITHER_STRING_NOR_NULL}",
        )
        + " AND (allocation::jsonb ? 'url')",
        *_are_times("ended_at started_at"),
        *_within("artifact_bytes log_bytes peak_gpu_memory_bytes peak_memory_bytes", "0", "9007199254740992"),
        *_within("mean_cpu_percent mean_gpu_percent mean_host_cpu_percent peak_cpu_percent", "0", "1e12"),
        *_within("peak_gpu_percent sampled_seconds", "0", "1e12"),
    ],
    "events": [*_are_times("at")],
    "job_params": ["number <> 'NaN'"],
    "last_metrics": ["value <> 'NaN'"],
    "leader_leases": _are_past("until", "1 day"),
    "metrics": [*_are_times("at"), _is_json("values", "object", f"$.* {_NO_NUMBER}")],
    "outbox": _are_times("created_at"),
    "repair_counts": [*_are_past("last_at"), _rises("repair_counts", "kind", "total", 10**6)],
    "resources": [
        *_are_times("billed_at billed_until deleting_at gone_at intended_at seen_at"),
        *_within("price_per_hour", "0", "1e6"),
    ],
    "workers": [
        _is_json("backends", "array", f"strict $[*] {_OTHER_THAN_STRING}"),
        _is_json("machine_types", "array", f"strict $[*] {_OTHER_THAN_STRING}"),
        _is_json("gpus", "array", f"strict $[*] {_OTHER_THAN_STRING}"),
        _is_json("taken_gpus", "object", f"strict $.* {_OTHER_THAN_STRING}"),
        _is_json("gpu_faults", "object", f"strict $.* {_OTHER_THAN_STRING}"),
        *_are_past("seen_at started_at"),
        *_within("slots", "0", "100000"),
        *_within("cpus memory_mb", "0", "1e9"),
    ],
}
"""Conditions on the values of rows, by table. One that is unknown, as of NULL, is met."""

_ROWS: dict[str, tuple[str, ...]] = {
    # Once it has been given back or has ended, the job is no longer the worker's.
    "jobs": (
        f"worker = {ME} AND {_is_one_of('state', frozenset(OWNED))}",
        f"(worker = {ME} AND host = {_MY_HOST}) OR (worker IS NULL AND host IS NULL AND state = 'queued')",
    ),
    "attempts": (_of_attempt("attempts"),),
    "events": (f"actor IS NULL AND {_of_attempt('events')}",),
    "metrics": (_of_attempt("metrics"),),
    **{table: (_of_job(table),) for table in ("job_logins", "job_params", "last_metrics", "port_requests")},
    **{table: (_of_job(table),) for table in ("gpu_allocations", "port_allocations")},
    "installation": ("name LIKE 'cloud-%'",),
    "leader_leases": ("name = 'clouds'",),
    "outbox": ("kind = 'wake'",),
    "repair_counts": ("true", f"last_worker = {ME}"),
    "resources": (f"host = {_MY_HOST}",),
    "workers": (f"name = {ME}",),
}

_MOST_BYTES = {"jobs": 4 << 20, "metrics": 1 << 20}
_MOST_BYTES_OF_OTHERS = 256 << 10
"""Of a row: pages and answers of the service have many of them, whole."""


def _after(table: str, rows: str) -> str:
    """Return what a changed row has to be."""
    fits = f"pg_column_size({table}.*) <= {_MOST_BYTES.get(table, _MOST_BYTES_OF_OTHERS)}"
    return " AND ".join([f"({rows})", *(f"({sound}) IS NOT FALSE" for sound in (fits, *_SOUND.get(table, ())))])


FAR_ROWS = {table: (rows[0], _after(table, rows[-1])) for table, rows in _ROWS.items()}
"""By table: the rows that a worker which has joined may change, and what they have to be afterwards."""
