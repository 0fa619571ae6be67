"""Lists of jobs by the filters with which people find their own jobs again."""

from datetime import UTC, datetime, timedelta

from support.live_service import make_job_body

from core.security import api_keys, users


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def submit(client, **fields):
    answer = client.post("/jobs", json=make_job_body(**fields))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def test_the_beginning_of_an_id_finds_the_job(client):
    first, second = submit(client), submit(client)
    assert ids(client.get("/jobs", params={"idPrefix": first[:9]})) == [first]
    assert ids(client.get("/jobs", params={"idPrefix": first})) == [first]
    assert ids(client.get("/jobs", params={"idPrefix": "j"})) == [second, first]
    assert client.get("/jobs", params={"idPrefix": "J%"}).status_code == 422


def test_jobs_since_a_time(client):
    job = submit(client)
    now = datetime.now(UTC)
    assert ids(client.get("/jobs", params={"since": (now - timedelta(minutes=1)).isoformat()})) == [job]
    assert ids(client.get("/jobs", params={"since": (now + timedelta(minutes=1)).isoformat()})) == []
    for wrong in ("2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "yesterday"):  # the first has no time zone
        assert client.get("/jobs", params={"since": wrong}).status_code == 422


def test_jobs_of_the_own_key(client, database):
    job = submit(client)
    with database.write() as session:
        other = {"x-api-key": api_keys.create(session, "other")[1]}
    assert ids(client.get("/jobs", params={"mine": "true"})) == [job]
    assert ids(client.get("/jobs", params={"mine": "true"}, headers=other)) == []
    assert ids(client.get("/jobs", headers=other)) == [job]


def test_jobs_of_all_keys_of_a_user_are_their_own(client, database):
    with database.write() as session:
        user = users.create(session, "carol@example.org", "0123456789")
        laptop, desktop = (
            {"x-api-key": users.create_key_for(session, user.id, name)[1]} for name in ("laptop", "desktop")
        )
    submit(client)
    made = [client.post("/jobs", json=make_job_body(), headers=key).json()["id"] for key in (laptop, desktop)]
    for key in (laptop, desktop):
        assert ids(client.get("/jobs", params={"mine": "true"}, headers=key)) == made[::-1]
