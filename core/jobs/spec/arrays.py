"""Arrays: one submission of many jobs that differ in an index and a value."""

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple, Self

from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

MAX_MEMBERS = 1000
MAX_NODES = 64
MAX_VALUE = 1000
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z", re.ASCII)
_ID = re.compile(r"[as][a-z0-9]{13}\Z")
_VALUE_IN_COMMAND = re.compile(r"\$(?:GRADIENT_ARRAY_VALUE\b|\{GRADIENT_ARRAY_VALUE\})")
_SAME_IN_A_SHELL = re.compile(r"[\w@%+=:,./ -]*", re.ASCII)  # written out, or as the value of a variable
_LIMIT = re.compile(r"(?P<members>.*)%(?P<limit>[1-9]\d{0,5})\Z", re.ASCII | re.DOTALL)


class ArrayMember(NamedTuple):
    """The columns of a member's row, by their names."""

    array_id: str
    array_index: int
    array_value: str
    array_limit: int | None  # most members that run at once
    nodes: int | None = None  # number of members, if they start and end together

    @classmethod
    def of(cls, array_id: str, job: Job) -> Self:
        """Return the member of a new array that repeats a member of another one."""
        return cls(array_id, job.array_index or 0, job.array_value or "", job.array_limit, job.nodes)


def node_members(array_id: str, nodes: int) -> list[ArrayMember]:
    """Return the members of an array that start and end together; the index of each is its rank."""
    return [ArrayMember(array_id, rank, str(rank), None, nodes) for rank in range(nodes)]


def standalone_command(job: Job) -> str:
    """Return the command of an array's member for a job that is of no array: with the index and value of the member."""
    command, value = job.spec.command, job.array_value
    if value is None or job.nodes is not None:
        return command
    if _VALUE_IN_COMMAND.search(command) and _SAME_IN_A_SHELL.fullmatch(value):
        command = _VALUE_IN_COMMAND.sub(value, command)
        if "GRADIENT_ARRAY_" not in command:
            return command
    index = job.array_index or 0
    return f"export GRADIENT_ARRAY_INDEX={index} GRADIENT_ARRAY_VALUE={shlex.quote(value)}\n{command}"


def fixed_by_value(job: Job, params: Mapping[str, object]) -> str | None:
    """Return the parameter of these whose value the member's clone would not get: its array's value has another."""
    arguments = (job.array_value or "").split() if "GRADIENT_ARRAY_VALUE" in job.spec.command else []
    return next(
        (
            name
            for name, value in params.items()
            if any(text.startswith(f"--{name}=") and text != f"--{name}={value}" for text in arguments)
        ),
        None,
    )


def is_array_id(text: str) -> bool:
    """Return whether a text is the id of an array, or of a sweep: its jobs are an array."""
    return _ID.match(text) is not None


def is_sweep_id(text: str | None) -> bool:
    return text is not None and text[:1] == "s" and is_array_id(text)


def array_name(member_name: str, index: int | None) -> str:
    return member_name.removesuffix(f"[{index}]")


def parse_array(array_id: str, text: str) -> list[ArrayMember]:
    """Return the members of `0-999`, `a,b,c` or a value on each line, with `%8` after it for at most 8 at once."""
    match = _LIMIT.match(text)
    members, limit = (match["members"], int(match["limit"])) if match else (text, None)
    if in_range := _RANGE.match(members.strip()):
        indices = range(int(in_range[1]), int(in_range[2]) + 1)
        values = [str(index) for index in indices[: MAX_MEMBERS + 1]]
    else:
        given = (value.strip() for value in (members.splitlines() if "\n" in members else members.split(",")))
        values = [value for value in given if value]
        indices = range(len(values))
    if not 1 <= len(indices) <= MAX_MEMBERS:
        raise SpecInvalid(
            f"The array has {len(indices):,} members; 1 to {MAX_MEMBERS:,} are allowed. Write 0-99, a,b,c or one "
            "value per line, followed by %8 to run at most 8 at once.",
            field="array",
        )
    wrong = next((value for value in values if len(value) > MAX_VALUE or not value.isprintable()), None)
    if wrong is not None:
        raise SpecInvalid(
            f"{quoted(wrong)} is not a value of an array. Write one line of at most {MAX_VALUE} printable characters.",
            field="array",
        )
    return [ArrayMember(array_id, index, value, limit) for index, value in zip(indices, values, strict=True)]
