"""Commands that make sense after an answer: `next` of every answer as JSON, and of `jobs show`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

command = ""  # the one that runs, as in the table of commands
KEPT = "Kept"  # state of a failed job whose machine is kept
COLLECTING = "collecting"  # phase of a job whose command has ended, and whose outputs are being stored
_BY_STATUS = {402: "whoami", 404: "jobs list"}  # of errors that name no command
_VERBS = {"sweeps": ("wait", "show"), "notifications": ("show", "test")}
_SHOWN = ("jobs", "schedules", "compare", "projects", "experiments")  # nouns whose commands have `show` alone


def next_steps(answer: Mapping[str, Any]) -> list[str]:
    noun = command.partition(" ")[0]
    if error := answer.get("error"):
        named = re.findall("`(gradient-(?:cli|server) [^`]+)`", f"{error['message']} {error['hint']}")
        step = _BY_STATUS.get(error["status"]) or " ".join([*command.split(), "--help"])
        return named or [f"gradient-cli {step}"]
    if clone := answer.get("clone"):
        change = f"--{clone['option']} {clone['value']}"
        return [f"gradient-cli jobs clone {answer['id']} {change}"]
    if "state" in answer and "exitCode" in answer:
        return job_steps(answer)
    if answer.get("deleted"):
        return [f"gradient-cli {noun} {'ls' if noun == 'storage' else 'list'}"]
    rows = (value[0] for value in answer.values() if isinstance(value, list) and value and isinstance(value[0], dict))
    first = answer if "id" in answer else next(rows, {})
    subject = first.get("arrayId") or first.get("id") or first.get("name")
    verbs = _VERBS.get(noun, ("show",) if noun in _SHOWN else ()) if subject else ()
    return [f"gradient-cli {noun} {verb} {subject}" for verb in verbs if command != f"{noun} {verb}"]


def job_steps(job: Mapping[str, Any]) -> list[str]:
    job_id = str(job["id"])
    logs = [f"gradient-cli jobs logs {job_id}"]
    if job.get("arrayMembers"):
        return [f"gradient-cli jobs {verb} {job['arrayId']}" for verb in ("show", "wait")]
    if job["state"] == KEPT:
        return logs + kept_steps(job_id)
    if not job.get("finishedAt"):
        verb = "wait" if job.get("stopRequested") or job.get("phase") == COLLECTING else "stop"
        verbs = [verb] if command == "jobs show" else ["show", verb]
        return [f"{logs[0]} --follow", *(f"gradient-cli jobs {verb} {job_id}" for verb in verbs)]
    gone = {removal["what"] for removal in job.get("removed") or []}
    why = [f"gradient-cli jobs why {job_id}"] if job["state"] in {"Failed", "Error"} else []
    artifacts = [] if "artifacts" in gone else [f"gradient-cli jobs artifacts list {job_id}"]
    return [*why, *([] if "logs" in gone else logs), *artifacts, f"gradient-cli jobs clone {job_id}"]


def kept_steps(job_id: str) -> list[str]:
    return [f"gradient-cli jobs exec {job_id}", f"gradient-cli jobs release {job_id}"]
