"""Signing in with a password: one key for each time, which expires."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT

from core.security import api_keys, users

PERSON = {"email": "ann@example.org", "password": "a password of hers"}


@pytest.fixture
def token(live_server, database):
    with database.write() as session:
        users.create(session, **PERSON)
    answer = httpx.post(
        f"{live_server.url}/users/login",
        json=PERSON,
        headers={"ps_client_name": "x"},
        verify=EMPTY_SSL_CONTEXT,
        timeout=60,
    )
    assert answer.status_code == 200
    return answer.json()["id"]


def redeem(live_server, token, **body):
    address = f"{live_server.url}/apiTokens/createPublic"
    return httpx.post(
        address,
        params={"access_token": token},
        json=body,
        headers={"ps_client_name": "x"},
        verify=EMPTY_SSL_CONTEXT,
        timeout=60,
    )


def test_one_sign_in_makes_one_key_however_often_its_token_is_sent(live_server, database, token):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: redeem(live_server, token, apiToken="mine"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
    [made] = [answer.json()["key"] for answer in answers if answer.status_code == 200]
    assert (
        httpx.get(
            f"{live_server.url}/jobs", headers={"x-api-key": made}, verify=EMPTY_SSL_CONTEXT, timeout=60
        ).status_code
        == 200
    )
    with database.read() as session:
        [key] = [key for key in api_keys.list_keys(session) if key.name == "mine"]
    assert abs(key.expires_at - datetime.now(UTC) - timedelta(days=90)) < timedelta(hours=1)


def test_a_name_that_cannot_be_uses_no_sign_in_up(live_server, token):
    assert redeem(live_server, token, apiToken="two\nlines").status_code == 400
    assert redeem(live_server, token).status_code == 200


def test_who_was_taken_out_gets_no_key_for_an_earlier_sign_in(live_server, database, token):
    with database.write() as session:
        users.remove(session, PERSON["email"])
    assert redeem(live_server, token).status_code == 401
