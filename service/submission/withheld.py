"""Values that a clone of another key's job goes without: hidden ones, the git login, its receivers of messages."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from core.db.models.credentials import GitLogin
from core.db.models.jobs import Job
from core.jobs.spec.job_spec import JobSpec
from service.app_state import AppState
from service.auth.ownership import changeable


@dataclass(frozen=True, slots=True)
class Withheld:
    """Values that a clone does not get from its job."""

    job_id: str
    variables: Collection[str] = ()
    git_login: bool = False
    notify: Collection[str] = ()

    def remainder(self, spec: JobSpec) -> JobSpec:
        """Return the job's specification without it."""
        kept = {n: v for n, v in spec.env_vars.items() if n not in self.variables}
        return replace(spec, env_vars=kept, notify=() if self.notify else spec.notify)

    def notes(self, given: Collection[str] = ()) -> list[str]:
        """Return as sentences what is left out and how to give it."""
        missing = [name for name in self.variables if name not in given]
        notes = []
        if missing:
            notes.append(
                f"Left out because job {self.job_id} belongs to another key: the hidden values of "
                f"{', '.join(missing)}. Set your own values: gradient-cli jobs clone {self.job_id} "
                f"{' '.join(f'--envVars {name}=VALUE' for name in missing)}"
            )
        if self.git_login:
            notes.append(
                f"Left out because job {self.job_id} belongs to another key: its login for the git server. If the "
                "repository is not public, submit a job with its address and your own login."
            )
        if self.notify:
            notes.append(
                f"Left out because job {self.job_id} belongs to another key: its receivers of notifications "
                f"({', '.join(self.notify)}). Name your own with --notify."
            )
        return notes


def withheld_from(session: Session, app_state: AppState, key_id: str, job: Job) -> Withheld:
    """Return what a clone of this job goes without if this key submits it: nothing if the key may change the job."""
    if changeable(session, app_state, key_id, [(job.submitted_by, job.project_id)]):
        return Withheld(job.id)
    return Withheld(job.id, job.spec.hidden_variables(), session.get(GitLogin, job.id) is not None, job.spec.notify)
