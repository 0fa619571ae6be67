"""The database dies, hangs, is slow, or is fought over: jobs run on, nobody else's job is taken, nothing is lost."""

import signal
import statistics
import threading
import time

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command
from support.servers.postgres import PostgresServer

from core.db.models.jobs import Event

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]


@pytest.fixture
def fragile(tmp_path):
    """A PostgreSQL of this test's own."""
    server = PostgresServer(tmp_path)
    server.start()
    yield server
    server.stop()


def adoptions(deployment):
    return [event for event in deployment.rows(Event)[0] if event["kind"] == "adopted"]


def test_postgresql_crashes_and_comes_back(make_deployment, fragile):
    deployment = make_deployment(GRADIENT_DATABASE__URL=fragile.new_database(), GRADIENT_WORKER__SLOTS="4")
    deployment.migrate()
    deployment.start_api()
    deployment.start_worker("one")
    crashes = tries(1, 20)
    statuses = set()
    with fault_trial("F14", deployment, seconds=600) as one:
        one.tries = crashes
        for crash in range(crashes):
            runs = [deployment.submit(recorded_command(f"{gate_command(f'go{crash}')}; say done", 3)) for _ in range(3)]
            wait_until(lambda runs=runs: {job for job, _, _ in deployment.running()} >= set(runs), "them to run")
            before = {pid for _, _, pid in deployment.running()}
            fragile.crash()
            refused = deployment.request("POST", "/jobs", json={"machineType": "CPU", "command": "true"}, retry=False)
            statuses.add(refused.status_code)
            assert {pid for _, _, pid in deployment.running()} & before, "the jobs run on"
            # Some end while nobody can write it down.
            deployment.open_gate(f"go{crash}")
            fragile.resume()
            one.mark_lifted()
            for number in range(3):
                again(deployment, f"key{crash}-{number}")
            deployment.wait_all_ended()
            one.repaired()
    assert statuses == {503}, "a request is refused, never lost"


def again(deployment, key):
    """Submit as a client does who is told to try again."""
    body = {"machineType": "CPU", "command": recorded_command()}

    def taken():
        answer = deployment.request("POST", "/jobs", json=body, headers={"Idempotency-Key": key})
        return answer.json()["id"] if answer.status_code in {200, 201} else None

    deployment.accepted.append((wait_until(taken, "the job to be accepted"), key))


def test_a_worker_that_cannot_reach_postgresql_harms_nothing(postgres_deployment, proxy):
    """Its jobs go on, a neighbour takes them over, and it releases them when it is back."""
    postgres_deployment.start_api()
    cut_off = postgres_deployment.start_worker(
        "one", GRADIENT_DATABASE__URL=proxy.url(postgres_deployment.database_url)
    )
    with fault_trial("F15", postgres_deployment, seconds=300) as one:
        one.tries = tries(1, 10)
        for outage in range(one.tries):
            job_id = postgres_deployment.submit(
                recorded_command(f"say before; {gate_command(f'go{outage}')}; say after", 5)
            )
            wait_until(lambda job_id=job_id: b"before" in postgres_deployment.raw_log(job_id), "its first line")
            (held,) = {attempt for job, attempt, _ in postgres_deployment.running() if job == job_id}
            proxy.shut()
            neighbour = postgres_deployment.start_worker("two")
            wait_until(lambda job_id=job_id: of(postgres_deployment, job_id), "the neighbour to take the job over")
            assert {attempt for job, attempt, _ in postgres_deployment.running() if job == job_id} == {held}
            assert postgres_deployment.job(job_id)["state"] == "Running"
            postgres_deployment.open_gate(f"go{outage}")
            postgres_deployment.wait_ended(job_id)
            proxy.open()
            one.mark_lifted()
            neighbour.signal(15)
            assert neighbour.wait() == 0
            postgres_deployment.wait_ended(postgres_deployment.submit(recorded_command()))
            one.repaired()
    assert cut_off.alive()
    cut_off.signal(signal.SIGTERM)
    assert cut_off.wait() == 0


def of(deployment, job_id):
    return [event for event in adoptions(deployment) if event["job_id"] == job_id]


def test_a_host_that_is_given_up_has_ended_what_runs_elsewhere_by_then(postgres_deployment, proxy):
    """Cut off for longer than hosts are waited for: the second copy begins after the first one's end."""
    postgres_deployment.start_api()
    cut_off = start_far(
        postgres_deployment, "one", "here", GRADIENT_DATABASE__URL=proxy.url(postgres_deployment.database_url)
    )
    command = 'say up; [ "$GRADIENT_ATTEMPT" -ge 2 ] || sleep 600'
    with fault_trial("F15", postgres_deployment, seconds=300) as one:
        job_id = postgres_deployment.submit(recorded_command(command), maxAttempts=2)
        once = postgres_deployment.submit(recorded_command(f"say up; {gate_command('once')}"))
        postgres_deployment.wait_states(running=2)
        start_far(postgres_deployment, "two", "there")
        proxy.shut()
        wait_until(
            lambda: job_id not in {job for job, _, _ in postgres_deployment.running()}, "the first copy to be ended"
        )
        assert once in {job for job, _, _ in postgres_deployment.running()}, "what runs only once runs on"
        job = postgres_deployment.wait_ended(job_id)
        assert (job["state"], job["attempt"], job["exitCode"]) == ("Stopped", 2, 0)
        assert postgres_deployment.wait_ended(once)["reason"] == "worker_lost"
        proxy.open()
        one.mark_lifted()
        wait_until(lambda: not postgres_deployment.running(), "the host that is back to end what was given up")
    assert cut_off.alive()


@pytest.mark.slow
def test_a_job_is_ended_though_its_start_could_not_be_recorded(postgres_deployment, proxy):
    """The database goes out of reach between the command's start and the record of it: others start the job again."""
    postgres_deployment.start_api()
    through = {
        "GRADIENT_DATABASE__URL": proxy.url(postgres_deployment.database_url),
        "GRADIENT_FAILPOINT": "launched:stop",
    }
    cut_off = start_far(postgres_deployment, "one", "here", **through)
    with fault_trial("F15", postgres_deployment, seconds=300) as one:
        job_id = postgres_deployment.submit(recorded_command('say up; [ "$GRADIENT_ATTEMPT" -ge 2 ] || sleep 600'))
        wait_until(cut_off.frozen, "the worker to freeze")
        wait_until(postgres_deployment.running, "the command to run")
        proxy.shut()
        cut_off.signal(signal.SIGCONT)
        wait_until(lambda: not postgres_deployment.running(), "the first copy to be ended")
        start_far(postgres_deployment, "two", "there")
        job = postgres_deployment.wait_ended(job_id)
        assert (job["state"], job["attempt"], job["exitCode"]) == ("Stopped", 2, 0)
        proxy.open()
        one.mark_lifted()
        wait_until(lambda: not postgres_deployment.scratch(), "the host that is back to clear up")
    assert cut_off.alive()


def start_far(postgres_deployment, name, host, **settings):
    """A worker of another host, which is given up soon."""
    return postgres_deployment.start_worker(
        name,
        GRADIENT_WORKER__HOST=host,
        GRADIENT_WORKER__LOST_AFTER_SECONDS="16",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
        **{"core.db.connection_watchdog.MAX_CHECKOUT_SECONDS": 1},
        **settings,
    )


def test_nobody_calls_a_job_lost_because_all_lost_the_database(postgres_deployment, proxy):
    """Out of reach for longer than the time after which a silent host is given up."""
    through = proxy.url(postgres_deployment.database_url)
    settings = {"GRADIENT_DATABASE__URL": through, "GRADIENT_WORKER__LOST_AFTER_SECONDS": "2"}
    postgres_deployment.start_api()
    postgres_deployment.start_worker("one", **settings)
    postgres_deployment.start_worker("two", **settings)
    with fault_trial("F15", postgres_deployment) as one:
        jobs = [
            postgres_deployment.submit(recorded_command(f"say before; {gate_command()}; say after")) for _ in range(3)
        ]
        wait_until(lambda: len({job for job, _, _ in postgres_deployment.running()}) == 3, "all to run")
        proxy.shut()
        shut = time.monotonic()
        postgres_deployment.open_gate()
        wait_until(
            lambda: not postgres_deployment.running() and time.monotonic() > shut + 4, "the jobs to end in the dark"
        )
        assert {postgres_deployment.job(job_id)["state"] for job_id in jobs} <= {"Running", "Pending"}
        proxy.open()
        one.mark_lifted()
        postgres_deployment.wait_all_ended()
        assert {postgres_deployment.job(job_id)["state"] for job_id in jobs} == {"Stopped"}


DELAY_SECONDS = 0.5 if FULL_RUN else 0.1
"""By so much longer does each statement take."""


def test_a_slow_database_costs_no_lease(postgres_deployment, proxy):
    through = proxy.url(postgres_deployment.database_url)
    settings = {"GRADIENT_DATABASE__URL": through, "GRADIENT_WORKER__LEASE_SECONDS": "30"}
    postgres_deployment.start_api(GRADIENT_DATABASE__URL=through)
    postgres_deployment.start_worker("one", **settings)
    postgres_deployment.start_worker("two", **settings)
    answers = []
    with fault_trial("F16", postgres_deployment, seconds=300) as one:
        for _ in range(tries(1, 10)):
            proxy.delay = DELAY_SECONDS
            answers += [postgres_deployment.post(recorded_command("say one; sleep 1; say two")) for _ in range(2)]
            postgres_deployment.wait_all_ended(300)
            proxy.delay = 0.0
        one.mark_lifted()
    assert adoptions(postgres_deployment) == []
    assert statistics.median(answers) < 10


def test_writers_that_starve_each_other_over_sqlite(deployment):
    writers, jobs = 4, tries(30, 10_000)
    addresses = []
    for _ in range(writers):
        deployment.start_api()
        addresses.append(deployment.cli_json["url"])
    deployment.start_worker(GRADIENT_WORKER__SLOTS="4")
    seconds, refused = [], []
    with fault_trial("F17", deployment, seconds=1800) as one:
        burst(deployment, addresses, jobs, seconds, refused)
        one.mark_lifted()
    assert refused == []
    assert len(seconds) == jobs
    assert not any("database is locked" in log.read_text(errors="replace") for log in deployment.logs)


def burst(deployment, addresses, jobs, seconds, refused):
    """Post through all APIs at once, from two clients each."""
    key = deployment.cli_json["apiKey"]

    def client(number):
        for one in range(number, jobs, 2 * len(addresses)):
            began = time.monotonic()
            answer = deployment.client.post(
                addresses[number % len(addresses)] + "/jobs",
                json={
                    "machineType": "CPU",
                    "command": recorded_command(),
                    "envVars": {"CANARY_TOKEN": deployment.canary},
                },
                headers={"x-api-key": key, "Idempotency-Key": f"key{one}"},
            )
            seconds.append(time.monotonic() - began)
            if answer.status_code == 201:
                deployment.accepted.append((answer.json()["id"], f"key{one}"))
            else:
                refused.append(answer.text)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(2 * len(addresses))]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
