"""Jobs that a job waits for (`after`), and jobs whose artifacts it gets (`inputs`)."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

MAX_DEPENDENCIES = 100
_ID = re.compile(r"j[a-z0-9]{1,15}\Z")
_AFTER_ID = re.compile(r"[ja][a-z0-9]{1,15}\Z")  # of a job, or of an array
_MAX_FOLDER = 500
_CONDITIONS = {"succeeded": True, "ended": False}


class JobInput(NamedTuple):
    """A job whose artifacts another one finds in a folder of its workspace."""

    job_id: str
    folder: str


def parse_dependencies(after: Sequence[str], inputs: Sequence[str]) -> dict[str, bool]:
    """Return the ids of jobs and arrays to wait for, and whether each has to succeed; that of an input has to."""
    dependencies = dict.fromkeys((job_input.job_id for job_input in parse_inputs(inputs)), True)
    for text in after:
        job_id, colon, condition = text.partition(":")
        if not _AFTER_ID.match(job_id) or (colon and condition not in _CONDITIONS):
            raise SpecInvalid(
                f"{quoted(text)} is not a job to wait for. Write its id, followed by :ended if it does not have to "
                "succeed: j1a2b3:ended.",
                field="after",
            )
        dependencies[job_id] = _CONDITIONS.get(condition, True)
    if len(dependencies) > MAX_DEPENDENCIES:
        raise SpecInvalid(
            f"{len(dependencies)} jobs to wait for; at most {MAX_DEPENDENCIES} are allowed.", field="after"
        )
    return dependencies


def parse_inputs(inputs: Sequence[str]) -> list[JobInput]:
    job_inputs: list[JobInput] = []
    for text in inputs:
        job_id, _, given = text.partition(":")
        folder = PurePosixPath(given)
        usable = given.isprintable() and len(given) <= _MAX_FOLDER and ".." not in folder.parts and folder.parts
        if not _ID.match(job_id) or folder.is_absolute() or not usable:
            raise SpecInvalid(
                f"{quoted(text)} is not a valid input. Write a job's id and the workspace folder for its artifacts: "
                "j1a2b3:model.",
                field="inputs",
            )
        for other in job_inputs:
            if folder.is_relative_to(other.folder) or PurePosixPath(other.folder).is_relative_to(folder):
                raise SpecInvalid(
                    f"The folders of two inputs overlap: {quoted(other.folder)} and {quoted(given)}. Give each "
                    "input a separate folder.",
                    field="inputs",
                )
        job_inputs.append(JobInput(job_id, str(folder)))
    return job_inputs
