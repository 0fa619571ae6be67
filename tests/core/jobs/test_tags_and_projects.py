"""Tags of jobs, and projects that go, on both kinds of database."""

import pytest

from core.errors import ProjectNotFound, SpecInvalid
from core.jobs import lifecycle, projects, queries
from core.jobs.queries import JobFilter


def listed(database, **wanted):
    with database.read() as session:
        return [job.id for job in queries.page(session, JobFilter(**wanted), limit=10).jobs]


def test_a_deleted_project_takes_its_jobs_along_and_frees_its_name(database, submit):
    gone, job, other = submit(project="p"), submit(project="p"), submit(project="other")
    with database.write() as session:
        lifecycle.delete(session, gone.id)
    with pytest.raises(SpecInvalid, match="1 jobs of this project have not ended"), database.write() as session:
        projects.delete(session, job.project_id)
    with database.write() as session:
        lifecycle.request_stop(session, job.id)
    with database.write() as session:
        projects.delete(session, job.project_id)
    assert listed(database) == [other.id]
    with database.read() as session:
        assert [project.name for project in queries.projects(session)] == ["other"]
        kinds = {one.id: [event.kind for event in queries.events(session, one.id)] for one in (gone, job, other)}
    ended = ["submitted", "finished", "deleted"]
    assert kinds == {gone.id: ended, job.id: ended, other.id: ["submitted"]}
    for change in (projects.delete, lambda session, one: projects.set_tags(session, one, ["x"])):
        with pytest.raises(ProjectNotFound), database.write() as session:
            change(session, job.project_id)
    with database.write() as session:
        project, made = projects.get_or_create(session, "p")
    assert (made, project.id == job.project_id) == (True, False)
