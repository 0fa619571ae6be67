"""The rows of one submission by raw SQL: the minimum for any service over this database."""

import sqlite3
import uuid
from collections.abc import Sequence

_JOB = """
INSERT INTO jobs (id, project_id, submitted_by, spec, machine_type, backend, simulated, price_per_hour, priority,
                  max_attempts, state, reason, phase, artifacts_state, attempt, lease, request_sha256, created_at)
VALUES (?, 'pr0', 'k0', ?, 'CPU', 'process', 1, 0.0, 50, 1, 'queued', 'waiting_for_machine', 'queued', 'none', 0, 0, ?,
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
"""
_EVENT = """
INSERT INTO events (job_id, at, kind, attempt, lease, to_state)
VALUES (?, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', 'submitted', 0, 0, 'queued')
"""
_OUTBOX = """
INSERT INTO outbox (kind, job_id, created_at) VALUES ('wake', ?, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
"""
_PROJECT = """
INSERT OR IGNORE INTO projects (id, name, created_at) VALUES ('pr0', 'default', '2026-01-01 00:00:00.000000')
"""


def connect(path: str) -> sqlite3.Connection:
    """Open the database as the service does: WAL, a full sync at every commit."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(_PROJECT)
    return connection


def insert(connection: sqlite3.Connection, specs: Sequence[str]) -> list[str]:
    """Insert one submission for each spec, all in one transaction; return their ids."""
    ids = [f"j{uuid.uuid4().hex[:13]}" for _ in specs]
    connection.execute("BEGIN IMMEDIATE")
    for job_id, spec in zip(ids, specs, strict=True):
        connection.execute(_JOB, (job_id, spec, "0" * 64))
        connection.execute(_EVENT, (job_id,))
        connection.execute(_OUTBOX, (job_id,))
    connection.execute("COMMIT")
    return ids
