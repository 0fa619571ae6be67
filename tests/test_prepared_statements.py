"""Prepared statements bypass the listener that narrows queries to what a viewer sees: each one says why it may."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRITES = "writes, and returns rows of its own caller"
OF_WORKERS = "run by workers and by claims, which have no viewer"
OF_ALL = "counts or locks for all, and names nothing"
NARROWED = "its caller asks hidden_projects"
IS_THE_ANSWER = "is what hidden_projects and the rights of owners are read from"
STATEMENTS = {
    "core/db/turns.py:_LOCK": OF_ALL,
    "core/jobs/costs/amounts.py:_NOW": OF_ALL,
    "core/jobs/costs/limits.py:_BUDGETS": OF_ALL,
    "core/jobs/costs/amounts.py:_sum_of": "a sum of all jobs of a subject, which the caller has found",
    "core/jobs/guarded_updates.py:_adding_event": WRITES,
    "core/jobs/guarded_updates.py:_update_attempt": WRITES,
    "core/jobs/guarded_updates.py:_update_job": WRITES,
    "core/jobs/lifecycle.py:_select_held": OF_WORKERS,
    "core/jobs/queries.py:_job": NARROWED,
    "core/jobs/scheduling/claims.py:_claim_statement": OF_WORKERS,
    "core/jobs/scheduling/claims.py:_next_job_query": OF_WORKERS,
    "core/jobs/submission.py:_insert_one_job": WRITES,
    "core/jobs/guarded_updates.py:_ADD_SUBMITTED_EVENT": WRITES,
    "core/jobs/guarded_updates.py:_ENQUEUE_WAKE": WRITES,
    "core/jobs/projects.py:_FOR_SUBMISSION": NARROWED,
    "core/jobs/scheduling/claims.py:_HOST_USAGE": OF_WORKERS,
    "core/jobs/scheduling/claims.py:_INSERT_ATTEMPT": OF_WORKERS,
    "core/jobs/scheduling/claims.py:_JOB": OF_WORKERS,
    "core/jobs/scheduling/claims.py:_LATEST_CLAIM": OF_WORKERS,
    "core/jobs/scheduling/claims.py:_SET_CLAIMED": OF_WORKERS,
    "core/jobs/scheduling/dependencies.py:_LOCK": OF_ALL,
    "core/jobs/scheduling/dependencies.py:_TAKE": OF_ALL,
    "core/jobs/scheduling/port_allocations.py:_ALLOCATED_PORTS": OF_WORKERS,
    "core/security/job_rights.py:_CLOSED_AT": IS_THE_ANSWER,
    "core/security/job_rights.py:_KEYS_OF_OWNER": IS_THE_ANSWER,
    "core/security/visibility.py:ROLES_OF_KEY": IS_THE_ANSWER,
    "core/security/visibility.py:_ALL": IS_THE_ANSWER,
    "core/security/visibility.py:_CLOSED": IS_THE_ANSWER,
}


def made_in(file):
    """Yield the name that each prepared statement of a file is assigned to, or else of the function that makes it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Prepared":
                yield node.targets[0].id if isinstance(node, ast.Assign) else node.name


def test_every_prepared_statement_is_narrowed_or_says_why_not():
    packages = ("core", "service", "worker", "gradient_server")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    names = {f"{file.relative_to(ROOT)}:{name}" for file in files for name in made_in(file)}
    assert names == STATEMENTS.keys(), "narrow a new one by hidden_projects, and list it with its reason"
