"""Signing in: guesses are slowed down, nobody is locked out by a stranger, and checks do not hold up the service."""

import itertools
import threading
import time
from collections import Counter
from types import SimpleNamespace

import anyio
import httpx
import pytest
from starlette.exceptions import HTTPException
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import make_job_body

from core.errors import Unauthorized
from core.security import users
from service.auth import sign_in_throttle as throttle
from service.auth.sign_in_throttle import FailureBackoff, SignInLimiter

PASSWORD = "correct horse battery"


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def ann(database):
    with database.write() as session:
        users.create(session, "ann@example.org", PASSWORD)
    return "ann@example.org"


def test_delays_grow_to_the_longest_and_are_forgotten(clock):
    delays = FailureBackoff(free=2, longest=5, forgotten=60)
    waits = []
    for _ in range(6):
        delays.record_failure("a")
        waits.append(delays.wait_seconds("a"))
    assert waits == [0, 1, 2, 4, 5, 5]
    assert delays.wait_seconds("b") == 0
    clock[0] += 5
    assert delays.wait_seconds("a") == 0
    delays.record_failure("a")
    assert delays.wait_seconds("a") == 5
    clock[0] += 60
    delays.record_failure("a")
    assert delays.wait_seconds("a") == 0


def test_several_processes_together_let_no_more_attempts_through_than_one(clock):
    def attempts(delays):
        """Attempts within 900 seconds, each as soon as it is let through."""
        count, until = 0, clock[0] + 900
        while clock[0] < until:
            count += 1
            delays.record_failure("a")
            clock[0] += delays.wait_seconds("a")
        return count

    limits = {"free": 20, "longest": 60.0, "forgotten": 9000.0}
    alone = attempts(FailureBackoff(**limits))
    for processes in (2, 4, 16):
        assert alone / 2 < processes * attempts(FailureBackoff(**limits, processes=processes)) < alone + 2 * processes


def test_names_that_are_made_up_without_end_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(throttle, "MAX_NAMES", 10)
    delays = FailureBackoff(free=1, longest=5, forgotten=60)
    for number in range(100):
        delays.record_failure(str(number))
    assert (delays.wait_seconds("99") > 0, delays.wait_seconds("0")) == (True, 0)


def wrong():
    raise Unauthorized("wrong")


async def outcome(sign_ins, address, client, check):
    try:
        return await sign_ins.check(address, client, check)
    except Unauthorized:
        return 401
    except HTTPException as error:
        return error.status_code if int((error.headers or {})["Retry-After"]) >= 1 else None


def test_a_client_that_tries_ever_new_addresses_is_slowed_down():
    async def attack():
        sign_ins = SignInLimiter()
        answers = [await outcome(sign_ins, f"user{number}", "stranger", wrong) for number in range(40)]
        assert (answers[:20], answers[20:]) == ([401] * 20, [429] * 20)
        assert await outcome(sign_ins, "ann", "her own", lambda: "in") == "in"

    anyio.run(attack)


def test_who_has_tried_no_wrong_password_is_checked_before_a_storm_of_guesses():
    """Guesses from eight networks at once, for as long as it takes, on one thread."""

    async def attack():
        sign_ins, over, tried = SignInLimiter(at_once=1), anyio.Event(), Counter()

        def guess():
            time.sleep(0.02)
            wrong()

        async def storm(network):
            for number in itertools.count():
                if over.is_set():
                    return
                tried[await outcome(sign_ins, f"user{network}-{number}", f"network{network}", guess)] += 1
                await anyio.sleep(0.001)

        async with anyio.create_task_group() as tasks:
            for network in range(8):
                for _ in range(4):
                    tasks.start_soon(storm, network)
            while tried[401] < 24:  # noqa: ASYNC110 - of any of the tasks
                await anyio.sleep(0.01)
            answers = [await outcome(sign_ins, "ann", "her own", lambda: "in") for _ in range(12)]
            over.set()
        assert answers == ["in"] * 12
        assert tried[429] > 0

    anyio.run(attack)


def test_one_sign_in_of_each_client_waits_and_the_most_suspect_are_refused(monkeypatch):
    monkeypatch.setattr(throttle, "MAX_WAITING", 3)
    go_on = threading.Event()

    async def attack():
        sign_ins, answers = SignInLimiter(at_once=1), {}

        async def sign_in(client, check=lambda: "in"):
            answers[client] = await outcome(sign_ins, f"user of {client}", client, check)

        for _ in range(2):
            await sign_in("stranger", wrong)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sign_in, "first", lambda: go_on.wait(60) and "in")
            await anyio.wait_all_tasks_blocked()
            for client in ("stranger", "second", "third"):
                tasks.start_soon(sign_in, client)
            await anyio.wait_all_tasks_blocked()
            assert await outcome(sign_ins, "x", "second", lambda: "in") == 429, "one of it waits already"
            tasks.start_soon(sign_in, "fourth")
            await anyio.wait_all_tasks_blocked()
            assert answers == {"stranger": 429}
            go_on.set()
        assert answers == {"stranger": 429} | dict.fromkeys(("first", "second", "third", "fourth"), "in")
        assert await outcome(sign_ins, "x", "second", lambda: "in") == "in"

    anyio.run(attack)


def test_whoever_leaves_while_waiting_leaves_the_thread_to_others():
    go_on = threading.Event()

    async def attack():
        sign_ins = SignInLimiter(at_once=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, sign_ins, "ann", "first", lambda: go_on.wait(60))
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.05):
                await outcome(sign_ins, "ann", "second", lambda: "in")
            go_on.set()
        assert await outcome(sign_ins, "ann", "second", lambda: "in") == "in"

    anyio.run(attack)


def test_sign_ins_that_hang_hold_up_nobody_else(live_server, client, monkeypatch):
    """Eighty strangers sign in while no check of a password comes to an end."""
    go_on, begun = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        assert go_on.wait(120)
        raise Unauthorized("wrong")

    monkeypatch.setattr(users, "sign_in", slow)
    answers = []

    def stranger(number):
        body = {"email": f"user{number}@example.org", "password": "x" * 12}
        answers.append(
            httpx.post(f"{live_server.url}/users/login", json=body, verify=EMPTY_SSL_CONTEXT, timeout=120).status_code
        )

    threads = [threading.Thread(target=stranger, args=(number,)) for number in range(80)]
    for one in threads:
        one.start()
    try:
        assert begun.wait(60)
        for _ in range(10):
            assert client.get("/jobs").status_code == 200
        assert client.post("/jobs", json=make_job_body()).status_code == 201
    finally:
        go_on.set()
        for one in threads:
            one.join()
    assert set(answers) <= {401, 429}


def test_a_stranger_guessing_does_not_keep_ann_from_signing_in(live_server, ann, monkeypatch):
    real = users.sign_in
    monkeypatch.setattr(users, "sign_in", lambda session, email, password: _cheap(real, session, email, password))
    guesses = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=live_server.url, transport=guesses, timeout=60) as stranger:
        for _ in range(30):
            stranger.post("/users/login", json={"email": ann, "password": "a guess of a stranger"})
        refused = stranger.post("/users/login", json={"email": ann, "password": PASSWORD})
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    with httpx.Client(base_url=live_server.url, verify=EMPTY_SSL_CONTEXT, timeout=60) as own:
        assert own.post("/users/login", json={"email": ann, "password": PASSWORD}).status_code == 200


def _cheap(real, session, email, password):
    """The check without its cost where the password is wrong anyway."""
    if password != PASSWORD:
        raise Unauthorized("wrong")
    return real(session, email, password)
