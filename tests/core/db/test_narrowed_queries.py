"""Every form of a query of a request leaves out the rows of hidden projects, on both databases."""

import pytest
from sqlalchemy import exists, func, literal, select, union
from sqlalchemy.orm import aliased
from support.job_insertion import insert_job

from core.catalogue.machine_types import Catalogue
from core.db.database import now
from core.db.models.job_params import JobParam
from core.db.models.jobs import Event, Job, Project
from core.db.models.project_members import ProjectMember
from core.errors import JobNotFound
from core.jobs import projects, queries
from core.jobs.queries import JobFilter
from core.jobs.spec.job_spec import JobSpec
from core.jobs.submission import NewJob
from core.security.visibility import Viewer, seeing_as, seeing_everything

OTHER = aliased(Job)
SOME = select(Job.seq).where(Job.priority > 0).limit(9).subquery()
COUNTS = {
    "rows": select(Job),
    "columns": select(Job.id),
    "columns of the table": select(*Job.__table__.c).where(Job.deleted_at.is_(None)),
    "alias": select(OTHER.id),
    "join": select(Event.id).join(Job, Job.id == Event.job_id),
    "child": select(Event.id),
    "alias of a child": select(aliased(JobParam).name),
    "subquery": select(SOME),
    "only in a condition": select(Project.id).where(exists(select(literal(1)).where(Job.project_id == Project.id))),
    "union": union(select(Job.id).where(Job.priority > 0), select(Job.id)),
    "scalar": select(Project.id, select(func.count(Job.seq)).where(Job.project_id == Project.id).scalar_subquery()),
}


@pytest.fixture
def ids(database):
    """An open project and one that is closed, each with a job, by name."""
    made = {}
    with database.write() as session:
        for name in ("open", "closed"):
            project, _ = projects.get_or_create(session, name)
            spec = JobSpec(machine_type="CPU", command="true", params={"lr": 1})
            new = {"machine": Catalogue.load().get("CPU"), "backend": "process", "submitted_by": "k"}
            job, _ = insert_job(session, NewJob(spec=spec, project_id=project.id, **new))
            made[name] = project.id, job.id
        session.get(Project, made["closed"][0]).closed_at = session.scalar(select(now()))
        session.add(ProjectMember(project_id=made["closed"][0], member="member", role="viewer"))
    return made


@pytest.mark.parametrize("form", COUNTS)
def test_a_query_leaves_out_what_is_hidden(database, ids, form):
    def count(viewer):
        with seeing_as(viewer), database.read() as session:
            return len(session.execute(COUNTS[form]).all())

    assert count(None) == 2 == count(Viewer("member")) == count(Viewer("admin", sees_closed=True))
    assert count(Viewer("stranger")) == 1
    assert count(Viewer("admin", projects=(ids["open"][0],), sees_closed=True)) == 1
    assert count(Viewer("member", projects=("pr1",))) == 0


@pytest.mark.usefixtures("ids")
def test_sums_and_prepared_statements_leave_it_out_too(database, ids):
    with seeing_as(Viewer("stranger")), database.read() as session:
        assert session.scalar(select(func.count()).where(Job.priority > 0)) == 1
        assert session.scalar(select(func.count()).select_from(SOME)) == 1
        assert [job.id for job in queries.page(session, JobFilter(), limit=9).jobs] == [ids["open"][1]]
        assert [job.id for job in queries.queued(session, limit=9)] == [ids["open"][1]]
        assert session.get(Project, ids["closed"][0]) is None
        assert queries.get(session, ids["open"][1]).id == ids["open"][1]
        for job_id in (ids["closed"][1], "j0000000000000"):
            with pytest.raises(JobNotFound):
                queries.get(session, job_id)
        with seeing_everything():
            assert session.scalar(select(func.count(Job.seq))) == 2
        assert queries.queue_sizes(session)[0][1] == 2, "a count of all"


@pytest.mark.usefixtures("ids")
def test_a_query_that_cannot_be_narrowed_is_refused_if_something_is_hidden(database):
    of_table = select(Job.__table__.c.id)
    with seeing_as(Viewer("stranger")), database.read() as session, pytest.raises(RuntimeError, match="not narrowed"):
        session.execute(of_table)
    with seeing_as(Viewer("member")), database.read() as session:
        assert len(session.execute(of_table).all()) == 2
