"""Ids: a prefix for the kind, and 13 of [a-z0-9]. They never look like a number."""

import re
import secrets
import string

from core.errors import JobNotFound

_ALPHABET = string.ascii_lowercase + string.digits
_LENGTH = 13
_COUNT = len(_ALPHABET) ** _LENGTH
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_id(prefix: str) -> str:
    """Make a random id, for example `j3k9…` with the prefix `j`; 67 bits of entropy."""
    # From one read of the system's random numbers: each lets other threads run, and then has to wait for its turn.
    number = secrets.randbelow(_COUNT)
    characters = []
    for _ in range(_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return prefix + "".join(characters)


def checked_job_id(job_id: str) -> str:
    """Return the id of a job if it is safe as the name of a folder or a part of an object's name."""
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFound(job_id)
    return job_id
