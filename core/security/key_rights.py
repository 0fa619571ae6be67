"""Rights of API keys: their scope, the projects and machine types of their jobs, and how many there may be at once."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job, Project
from core.db.turns import take_turn
from core.errors import KeyRefused, SpecInvalid

SCOPES = ("read", "submit", "admin")
"""Each includes those before it. read: see everything; submit: submit, and change what is its own."""
MAX_JOBS = 1_000_000
MAX_NAMED = 100  # projects or machine types


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRights:
    """The rights of a key; None: without that limit."""

    scope: str = "submit"
    projects: tuple[str, ...] | None = None  # ids
    machine_types: tuple[str, ...] | None = None
    max_jobs: int | None = None  # most unfinished jobs at once
    agent: bool = False  # a program acts with it, not a person

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self:
        given = dict(stored or {})
        for name in ("projects", "machine_types"):
            if given.get(name) is not None:
                given[name] = tuple(given[name])
        return cls(**given)

    def stored(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def allows(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def check(self, machine_types: Collection[str]) -> None:
        """Raise `SpecInvalid` for values that no key can have; `machine_types`: those that are offered."""
        if self.scope not in SCOPES:
            raise SpecInvalid(f"{self.scope[:40]!r} is not a scope. Use {', '.join(SCOPES)}.", field="scope")
        if self.max_jobs is not None and not 1 <= self.max_jobs <= MAX_JOBS:
            raise SpecInvalid(f"{self.max_jobs:,} is not in the range 1 to {MAX_JOBS:,}.", field="maxJobs")
        for field, names in (("projects", self.projects), ("machineTypes", self.machine_types)):
            if names is not None and not 1 <= len(names) <= MAX_NAMED:
                raise SpecInvalid(f"Name 1 to {MAX_NAMED}, or leave it out for all.", field=field)
        unknown = sorted({*(self.machine_types or ())} - {*machine_types})
        if unknown:
            raise SpecInvalid(f"There is no machine type {unknown[0][:80]!r}.", field="machineTypes")

    def check_machine_type(self, name: str) -> None:
        if self.machine_types is not None and name not in self.machine_types:
            allowed = ", ".join(self.machine_types)
            raise KeyRefused(f"This API key may not use {name}, only {allowed}.", field="machineType")

    def check_may_create_projects(self) -> None:
        if self.projects is not None:
            raise KeyRefused("This API key may only use the projects that were given to it, and create none.")

    def check_job_count(self, session: Session, key_id: str, new: int) -> None:
        """Raise `KeyRefused` if so many new jobs would be too many at once."""
        if self.max_jobs is None:
            return
        take_turn(session, "submissions")  # jobs that are inserted meanwhile count
        unfinished = select(func.count()).where(Job.submitted_by == key_id, Job.finished_at.is_(None))
        count = session.scalars(unfinished).one()
        if count + new > self.max_jobs:
            raise KeyRefused(
                f"This API key may have {self.max_jobs:,} unfinished job{'s' * (self.max_jobs != 1)} at once, and has "
                f"{count:,}; {new:,} would be new. Wait until jobs end, or stop some."
            )


def check_project(session: Session, allowed: Collection[str] | None, name: str) -> None:
    """Refuse the name of a project that a key is not for, whether there is one; `allowed`: ids; None: all."""
    if allowed is not None:
        names = session.scalars(select(Project.name).where(Project.id.in_(allowed)).order_by(Project.name)).all()
        if name not in names:
            raise KeyRefused(
                f"This API key may not submit to project {name}, only to {', '.join(names)}.", field="project"
            )
