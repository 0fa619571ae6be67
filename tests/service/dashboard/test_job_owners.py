"""Stop, tag and delete on the pages: offered for the jobs that a key may change, for those of others their owner."""

import re

import pytest
from support.live_service import make_job_body

from core.security import api_keys, users


@pytest.fixture
def add_job(client, database):
    def add(owner, user_id=None):
        with database.write() as session:
            key, secret = users.create_key_for(session, user_id, owner) if user_id else api_keys.create(session, owner)
        answer = client.post("/jobs", json=make_job_body(name=f"job-of-{owner}"), headers={"x-api-key": secret})
        return answer.json()["id"], key.id, secret

    return add


def offered_on_job_page(page):
    return [action for action in ("stop", "delete") if f'action="/ui/jobs/{page.url.path[9:]}/{action}"' in page.text]


def disabled_buttons(page):
    return re.findall(r'value="(\w+)" data-changes[^>]* disabled', page.text)


@pytest.mark.parametrize("tab", ["", "/log", "/metrics", "/artifacts", "/config", "/events"])
def test_the_pages_of_anothers_job_name_the_owner_and_offer_no_change(signed_in_browser, add_job, tab):
    job_id, key_id, _ = add_job("bob")
    page = signed_in_browser.get(f"/ui/jobs/{job_id}{tab}").text
    assert f'title="API key {key_id}. Only the owner' in page
    assert "by bob</span>" in page
    assert 'id="clone"' in page
    assert all(f'action="/ui/jobs/{job_id}/{action}"' not in page for action in ("stop", "delete"))


def test_owners_administrators_and_teams_that_share_are_offered_every_change(
    signed_in_browser, live_server, client, settings, add_job
):
    own = client.post("/jobs", json=make_job_body()).json()["id"]
    others, _, _ = add_job("bob")

    def offered(job_id):
        page = signed_in_browser.get(f"/ui/jobs/{job_id}")
        return offered_on_job_page(page), 'id="owner"' in page.text

    assert offered(own) == (["stop", "delete"], False)
    assert offered(others) == ([], True)
    settings.sign_in.shared_jobs = True
    assert offered(others) == (["stop", "delete"], False)
    settings.sign_in.shared_jobs = False
    settings.sign_in.administrators.append(live_server.api_key.split("_")[1])
    assert offered(others) == (["stop", "delete"], False)
    assert "data-of-others" not in signed_in_browser.get("/ui/jobs").text


def test_the_list_marks_the_jobs_of_others(signed_in_browser, client, add_job):
    others, key_id, _ = add_job("bob")
    page = signed_in_browser.get("/ui/jobs")
    assert disabled_buttons(page) == ["stop", "tag", "delete"], "the page has no job that the key may change"
    own = client.post("/jobs", json=make_job_body()).json()["id"]
    page = signed_in_browser.get("/ui/jobs")
    assert re.findall(r'value="(\w+)" data-of-others', page.text) == [others]
    assert re.findall(r'title="API key (\w+)">owner: bob<', page.text) == [key_id]
    assert f'value="{own}" data-open aria-label' in page.text
    assert disabled_buttons(page) == []
