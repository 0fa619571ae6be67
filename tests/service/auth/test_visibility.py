"""Random memberships: no list, search or sum of any key has anything of a project that it does not see."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update
from support.live_service import make_job_body

from core.db.models.jobs import Project
from core.db.models.project_members import ProjectMember
from core.security import users

NAMES = ("amber", "beryl", "coral", "denim")
KEYS = ("alone", "laptop", "desktop")  # of which the last two are a user's
MOVES = st.one_of(
    st.tuples(st.sampled_from(["closed", "open"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["viewer", "submitter", "maintainer"]), st.sampled_from(NAMES), st.sampled_from(KEYS)),
    st.tuples(st.just("removed"), st.sampled_from(NAMES), st.sampled_from(KEYS)),
)


@pytest.fixture
def world(client, database, worker, add_key):
    """Projects with a job each that has run, a waiting one and a schedule; and the headers of the keys."""
    worker.register()
    projects = {}
    for name in NAMES:
        spec = make_job_body(project=name, params={f"{name}_lr": 1}, tags=[f"{name}-tag"])
        job = client.post("/jobs", json=spec).json()
        projects[name] = job["projectId"]
        worker.end(worker.start())
        assert client.post("/schedules", json={**spec, "cron": "0 3 * * *"}).status_code == 201
    for name in NAMES:
        client.post("/jobs", json=make_job_body(project=name))
    with database.write() as session:
        user = users.create(session, "ann@example.org", "0123456789").id
    keys = {name: add_key(name, None if name == "alone" else user) for name in KEYS}
    return projects, keys


def shown(client, headers):
    """Return the projects of what each list, search or sum has, by its address."""
    get = {
        "/jobs?limit=100": lambda answer: [job["project"] for job in answer["jobs"]],
        "/jobs?q=command:main&sort=-created": lambda answer: [job["project"] for job in answer["jobs"]],
        "/jobs?query=main": lambda answer: [job["project"] for job in answer["jobs"]],
        "/schedules": lambda answer: [schedule["project"] for schedule in answer["schedules"]],
        "/projects": lambda answer: [project["name"] for project in answer["projects"]],
        "/costs?by=project": lambda answer: [row["name"] for row in answer["rows"]],
        "/original/projects": lambda answer: [project["name"] for project in answer["data"]],
        "/original/jobs/getJobs": lambda answer: [job["project"] for job in answer],
        "/ui/jobs/complete?text=project:": lambda answer: [term.partition(":")[2] for term in answer],
        "/ui/jobs/complete?text=tag:": lambda answer: [term.partition(":")[2].removesuffix("-tag") for term in answer],
    }
    found = {}
    for address, names in get.items():
        answer = client.get(address, headers=headers)
        assert answer.status_code == 200, (address, answer.text)
        found[address] = Counter(names(answer.json()))
    days = client.get("/costs?by=day&days=2", headers=headers).json()["rows"]
    pages = [
        client.get(page, headers=headers).text for page in ("/ui", "/ui/jobs", "/ui/jobs?charts=1", "/ui/machines")
    ]
    return found, sum(row["jobs"] for row in days), pages


def test_no_list_search_or_sum_has_anything_of_a_project_that_is_not_seen(client, anonymous_client, database, world):
    projects, keys = world

    @settings(
        max_examples=6,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(MOVES, min_size=4, max_size=10))
    def check(moves):
        closed, members = set(), set()
        with database.write() as session:
            session.execute(delete(ProjectMember))
            session.execute(update(Project).values(closed_at=None))
        for how, name, *rest in moves:
            project = f"/projects/{projects[name]}"
            if how in {"closed", "open"}:
                assert client.patch(project, json={"closed": how == "closed"}).status_code == 200
                (closed.add if how == "closed" else closed.discard)(name)
                continue
            path, person = f"{project}/members/{keys[rest[0]][0]}", "alone" if rest == ["alone"] else "user"
            if how == "removed":
                answer = client.delete(path)
                assert answer.status_code == (204 if (name, person) in members else 404), answer.text
                members.discard((name, person))
            else:
                assert client.put(path, json={"role": how}).status_code == 200
                members.add((name, person))
        for key, (_, headers) in keys.items():
            person = "alone" if key == "alone" else "user"
            seen = {name for name in NAMES if name not in closed or (name, person) in members}
            found, ran, pages = shown(anonymous_client, headers)
            for address, names in found.items():
                assert set(names) == seen, (address, key, moves)
                assert len(set(names.values())) <= 1, (address, "as much of each")
            assert ran == len(seen)
            for hidden in set(NAMES) - seen:
                assert not any(hidden in page for page in pages), (hidden, key, moves)

    check()
