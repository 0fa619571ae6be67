"""Dependencies between jobs when both ends move at once, and how quickly a chain is followed."""

import threading
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select
from support.job_insertion import insert_job

from core.db.models.job_dependencies import JobDependency
from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs import lifecycle, projects, queries
from core.jobs.scheduling import claims, dependencies
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import TERMINAL, JobState
from core.jobs.submission import NewJob


def end(database, reason):
    """Claim the next job, and end it."""
    with database.write() as session:
        job = claims.claim(session, WorkerOffer("w1", "h1", ("process",)))
    with database.write() as session:
        job = lifecycle.mark_finishing(session, job, reason, exit_code=1)
    with database.write() as session:
        return lifecycle.finish(session, job, artifacts_state="none")


def test_a_job_that_is_submitted_while_its_predecessor_fails_is_refused_or_cancelled(database, submit, catalogue):
    """Never does it wait for what has happened already."""
    outcomes = []
    for _ in range(12):
        first = submit()
        both = threading.Barrier(2)

        def follow(first=first, both=both):
            both.wait()
            spec = JobSpec(machine_type="CPU", command="true", after=(first.id,))
            try:
                with database.write() as session:
                    project, _ = projects.get_or_create(session, "default")
                    dependencies.check(session, spec)
                    machine = catalogue.get("CPU")
                    new_job = NewJob(
                        spec=spec, machine=machine, backend="process", project_id=project.id, submitted_by="tester"
                    )
                    return insert_job(session, new_job)[0].id
            except SpecInvalid:
                return None

        def fail(both=both):
            both.wait()
            end(database, "exit_nonzero")

        with ThreadPoolExecutor(2) as pool:
            second, _ = pool.submit(follow), pool.submit(fail)
        outcomes.append(second.result())
    with database.read() as session:
        states = [queries.get(session, job_id).state for job_id in outcomes if job_id is not None]
        assert set(states) <= {JobState.CANCELLED}
        assert session.scalar(select(func.count()).select_from(JobDependency)) == 0
        assert session.scalar(select(func.count()).select_from(Job).where(Job.state.not_in(TERMINAL))) == 0


def test_the_end_of_a_long_chain_is_reached_in_one_transaction(database, submit):
    first = last = submit()
    for _ in range(300):
        last = submit(after=(last.id,))
    end(database, "exit_nonzero")
    with database.read() as session:
        assert queries.get(session, last.id).reason == "dependency_failed"
        assert queries.get(session, first.id).reason == "exit_nonzero"
