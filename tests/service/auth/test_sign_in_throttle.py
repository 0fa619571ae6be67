"""Signing in: guesses are slowed down, nobody is locked out by a stranger, and checks do not hold up the service."""

import os
import threading

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
    monkeypatch.setattr(throttle.time, "monotonic", lambda: now[0])
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


def test_success_forgets_failures(clock):
    delays = FailureBackoff(free=1, longest=5, forgotten=60)
    delays.record_failure("a")
    assert delays.wait_seconds("a") == 1
    delays.reset("a")
    assert delays.wait_seconds("a") == 0
    assert clock


def test_names_that_are_made_up_without_end_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(throttle, "_MAX_NAMES", 10)
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


def test_wrong_passwords_of_a_stranger_do_not_lock_anybody_out():
    async def attack():
        sign_ins = SignInLimiter()
        for _ in range(30):
            await outcome(sign_ins, "ann", "stranger", wrong)
        assert await outcome(sign_ins, " ANN ", "stranger", lambda: "in") == 429
        assert await outcome(sign_ins, "ann", "her own", lambda: "in") == "in"

    anyio.run(attack)


def test_a_client_that_tries_ever_new_addresses_is_slowed_down():
    async def attack():
        sign_ins = SignInLimiter()
        answers = [await outcome(sign_ins, f"user{number}", "stranger", wrong) for number in range(40)]
        assert (answers[:20], answers[20:]) == ([401] * 20, [429] * 20)
        assert await outcome(sign_ins, "ann", "her own", lambda: "in") == "in"

    anyio.run(attack)


def test_who_comes_while_as_many_as_may_are_checked_is_refused_at_once():
    go_on = threading.Event()

    async def attack():
        sign_ins = SignInLimiter(at_once=2)
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(outcome, sign_ins, "ann", f"client{number}", lambda: go_on.wait(60))
            await anyio.wait_all_tasks_blocked()
            refused = [await outcome(sign_ins, "ann", f"more{number}", wrong) for number in range(100)]
            go_on.set()
        assert refused == [429] * 100
        assert await outcome(sign_ins, "ann", "more0", lambda: "in") == "in"

    anyio.run(attack)


def test_in_a_storm_of_wrong_passwords_checks_pause_for_as_long_as_they_take():
    async def attack():
        sign_ins, go_on = SignInLimiter(at_once=1), threading.Event()

        def slow():
            go_on.wait(60)
            wrong()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, sign_ins, "ann", "stranger", slow)
            await anyio.wait_all_tasks_blocked()
            assert await outcome(sign_ins, "bob", "another", wrong) == 429
            await anyio.sleep(0.5)
            go_on.set()
        assert await outcome(sign_ins, "carl", "a third", lambda: "in") == 429, "its place is still taken"
        for _ in range(6000):
            if await outcome(sign_ins, "carl", "a third", lambda: "in") == "in":
                return
            await anyio.sleep(0.01)
        pytest.fail("its place was never free again")

    anyio.run(attack)


def test_a_check_lets_every_other_thread_run_first():
    async def priorities():
        def own():
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        return await SignInLimiter().check("ann", "her own", own), own()

    lowest, usual = anyio.run(priorities)
    assert lowest == 19 > usual


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
