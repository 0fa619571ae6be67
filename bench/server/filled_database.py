"""A database with many jobs: most of them ended, some queued, in several projects and on several machine types."""

import sqlite3
from pathlib import Path

from bench.service import create_tables

_PROJECTS = 50
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
_SPEC = """json_object('machine_type', m, 'command', 'python train.py --seed ' || i, 'env_vars', json('{}'),
                       'tags', json_array('run' || (i % 1000)), 'ports', json('[]'), 'outputs', json('[]'),
                       'stop_grace', 60, 'max_attempts', 1, 'priority', 50)"""
_AT = "strftime('%Y-%m-%d %H:%M:%f', 'now', (i - :last - 60) || ' seconds') || '000'"
_ENDED = f"""
{_NUMBERS}, made AS (
  SELECT i, printf('j%013d', i) AS id, printf('pr%03d', i % {_PROJECTS}) AS project,
         CASE i % 4 WHEN 0 THEN 'K80' WHEN 1 THEN 'P100' ELSE 'CPU' END AS m, i % 10 = 0 AS failed, {_AT} AS at
  FROM n)
INSERT INTO jobs (id, project_id, submitted_by, spec, name, machine_type, backend, simulated, price_per_hour, priority,
                  max_attempts, state, reason, phase, exit_code, artifacts_state, attempt, lease, worker, host,
                  created_at, claimed_at, started_at, ended_at, finished_at)
SELECT id, project, 'k' || (i % 7), {_SPEC}, 'train ' || i, m, 'process', 1, 0.5, 50, 1,
       CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, CASE WHEN failed THEN 'command_failed' END, 'done', failed,
       'complete', 1, 3, 'w1', 'h1', at, at, at, at, at FROM made
"""
_ATTEMPTS = """
INSERT INTO attempts (job_id, attempt, worker, host, eligible_at, claimed_at, started_at, ended_at, exit_code,
                      log_bytes, artifact_bytes)
SELECT id, 1, worker, host, created_at, claimed_at, started_at, ended_at, exit_code, 1000, 10000 FROM jobs
"""
_EVENTS = """
INSERT INTO events (job_id, at, kind, attempt, lease, from_state, to_state)
SELECT id, created_at, kind, attempt, lease, before, after FROM jobs, (
  SELECT 'submitted' AS kind, NULL AS before, 'queued' AS after UNION ALL SELECT 'claimed', 'queued', 'starting'
  UNION ALL SELECT 'finished', 'finishing', 'succeeded')
"""
_QUEUED = f"""
{_NUMBERS}, made AS (
  SELECT i, printf('q%013d', i) AS id, printf('pr%03d', i % {_PROJECTS}) AS project, 'K80' AS m, {_AT} AS at FROM n)
INSERT INTO jobs (id, project_id, submitted_by, spec, machine_type, backend, simulated, price_per_hour, priority,
                  max_attempts, state, reason, phase, artifacts_state, attempt, lease, created_at)
SELECT id, project, 'k' || (i % 7), {_SPEC}, m, 'process', 1, 0.5, 50, 1, 'queued', 'waiting_for_machine', 'queued',
       'none', 0, 0, at FROM made
"""


def fill(home: Path, *, ended: int, queued: int) -> None:
    """Create `gradient.db` in a folder, with this many jobs that have ended, and this many that wait for a K80."""
    create_tables(home)
    connection = sqlite3.connect(home / "gradient.db")
    for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-400000"):
        connection.execute(f"PRAGMA {pragma}")
    projects = [(f"pr{number:03}", f"project {number}") for number in range(_PROJECTS)]
    connection.executemany("INSERT INTO projects (id, name, created_at) VALUES (?, ?, '2026-01-01 00:00:00')", projects)
    connection.execute(_ENDED, {"first": 1, "last": ended})
    connection.execute(_ATTEMPTS)
    connection.execute(_EVENTS)
    if queued:
        connection.execute(_QUEUED, {"first": 1, "last": queued})
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
