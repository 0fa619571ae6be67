"""Redis forgets, dies, hangs, repeats itself, or loses every message: jobs are slower to begin, and that is all."""

import random
import statistics
import threading
import time
from contextlib import suppress

import pytest
import redis as client
from support.deployment import TIMEOUT_SECONDS, wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command

from core.notify.celery_app import Publisher
from core.notify.messages import WakeMessage, worker_queue

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

QUICKLY = 2.0
"""Seconds for an answer, on a machine that is busy with other tests: far below any timeout of a broker's client."""


def start_workers(deployment, count=2, **settings):
    return [deployment.start_remote_worker(f"far{number}", **settings) for number in range(count)]


@pytest.mark.parametrize("_", range(tries(1, 20)))
def test_redis_is_flushed_and_restarted_while_jobs_wait_and_run(full_deployment, redis, _):
    full_deployment.start_api()
    start_workers(full_deployment, GRADIENT_WORKER__SLOTS=str(tries(2, 10)))
    jobs = tries(6, 1020)
    with fault_trial("F6", full_deployment, seconds=900) as one:
        for _ in range(jobs):
            full_deployment.submit(recorded_command(f"{gate_command()}; say done"))
        full_deployment.wait_states(running=tries(4, 20))
        with redis.client() as connection:
            connection.flushall()
        redis.kill()
        redis.start()
        with redis.client() as connection:
            connection.flushall()
        full_deployment.open_gate()
        one.mark_lifted()
    assert one.jobs == jobs


@pytest.mark.parametrize("how", [pytest.param("down", marks=pytest.mark.slow), "frozen"])
@pytest.mark.parametrize("_", range(tries(1, 10)))
def test_redis_is_gone_and_jobs_are_accepted_and_run(full_deployment, redis, how, _):
    full_deployment.start_api()
    start_workers(full_deployment, 1)
    with fault_trial("F7", full_deployment) as one:
        full_deployment.submit(recorded_command())
        full_deployment.wait_all_ended()
        redis.kill() if how == "down" else redis.freeze()
        began = time.monotonic()
        # The dispatcher has to meet the silence, not only the request.
        answers = [full_deployment.post(recorded_command()) for _ in range(20)]
        full_deployment.wait_all_ended()
        while time.monotonic() < began + tries(4, 60):
            answers.append(full_deployment.post(recorded_command()))
            time.sleep(0.2)
        full_deployment.wait_all_ended()
        redis.start() if how == "down" else redis.thaw()
        one.mark_lifted()
        full_deployment.submit(recorded_command())
    slow = statistics.quantiles(answers, n=10)[-1]  # a busy machine may delay a few
    assert slow < QUICKLY, f"answers waited for the broker: {slow:.2f} s"


def test_redis_is_killed_again_and_again_under_load(full_deployment, redis):
    full_deployment.start_api()
    workers = start_workers(full_deployment, GRADIENT_WORKER__SLOTS="4")
    kills = tries(2, 100)
    with fault_trial("F8", full_deployment, seconds=900) as one:
        one.tries = kills
        for _ in range(kills):
            for _ in range(tries(4, 10)):
                full_deployment.submit(recorded_command("sleep 0.1; say done"))
            redis.kill()
            for _ in range(tries(2, 5)):
                full_deployment.submit(recorded_command())
            redis.start()
        one.mark_lifted()
    assert [worker.alive() for worker in workers] == [True, True]


class Echo(threading.Thread):
    """Hears every message that goes to a queue of ours, and sends it again, several times, in any order."""

    def __init__(self, server, chance):
        super().__init__(daemon=True)
        self._server = server
        self._chance = chance
        self._stopping = False
        self._heard: list[tuple[str, str]] = []
        self._past: list[tuple[str, str]] = []
        self._sent: set[str] = set()
        self.ready = threading.Event()
        self.repeats = 0

    def run(self):
        # Without a timeout, which would end the monitoring: the last command it hears is ours.
        with client.Redis.from_url(self._server.url) as listener, listener.monitor() as monitor:
            self.ready.set()
            while not self._stopping:
                self._hear(monitor.next_command()["command"])
                if len(self._heard) > 5 or self._chance.random() < 0.3:
                    self._repeat()

    def _hear(self, command):
        verb, _, rest = command.partition(" ")
        queue, _, message = rest.partition(" ")
        if verb == "LPUSH" and "gradient.wake" in message and message not in self._sent:
            self._sent.add(message)
            self._heard.append((queue, message))

    def _repeat(self):
        with self._server.client() as sender:
            copies = [one for one in self._heard for _ in range(self._chance.randint(1, 4))]
            self._chance.shuffle(copies)
            for queue, message in copies:
                sender.lpush(queue, message)
                self.repeats += 1
        self._past += self._heard
        self._heard = []

    def replay(self):
        """Everything once more, when nobody expects it."""
        self._stopping = True
        with self._server.client() as sender:
            sender.ping()
            self.join()
            for queue, message in [*self._past, *self._heard]:
                sender.lpush(queue, message)
                self.repeats += 1


def test_every_message_comes_several_times_and_once_more_later(full_deployment, redis):
    full_deployment.start_api()
    start_workers(full_deployment, GRADIENT_WORKER__SLOTS="4")
    echo = Echo(redis, random.Random(9))  # noqa: S311 - repeatable, not secret
    echo.start()
    assert echo.ready.wait(TIMEOUT_SECONDS)
    with fault_trial("F9", full_deployment, seconds=600) as one:
        for number in range(tries(20, 2000)):
            full_deployment.submit(recorded_command("sleep 0.05; say done", number % 3))
        full_deployment.wait_all_ended(600)
        echo.replay()
        one.tries = echo.repeats
        one.mark_lifted()
        full_deployment.submit(recorded_command())
    assert echo.repeats > 10


def test_every_message_is_lost_and_jobs_begin_at_the_next_look(full_deployment, redis):
    """The API rings where nobody listens."""
    nowhere = redis.url.removesuffix("/0") + "/1"
    full_deployment.start_api(GRADIENT_QUEUE__BROKER_URL=nowhere)
    start_workers(full_deployment, GRADIENT_WORKER__POLL_SECONDS="1")
    with fault_trial("F10", full_deployment, seconds=600) as one:
        for _ in range(tries(4, 200)):
            full_deployment.wait_ended(full_deployment.submit(recorded_command()))
        one.mark_lifted()
        one.tries = tries(4, 200)
    with client.Redis.from_url(nowhere) as connection:
        assert connection.keys("*gradient*"), "the messages were sent"


REPLY_ERRORS = {
    "read-only": ("replicaof 127.0.0.1 1", "replicaof no one"),
    "out of memory": ("config set maxmemory 1", "config set maxmemory 0"),
    "no replicas": ("config set min-replicas-to-write 1", "config set min-replicas-to-write 0"),
    "no permission": ("acl setuser default -@all +auth +info +acl +ping", "acl setuser default +@all"),
    "disk full": ("", ""),
}


@pytest.mark.parametrize(
    "error",
    [pytest.param(error, marks=() if error == "read-only" else pytest.mark.slow) for error in REPLY_ERRORS],
)
def test_a_broker_that_answers_with_an_error_ends_no_worker(full_deployment, redis, small_disk, error):
    begin, end = REPLY_ERRORS[error]
    full_deployment.start_api()
    workers = [full_deployment.start_remote_worker("far0", GRADIENT_LOG_LEVEL="debug")]
    full_deployment.submit(recorded_command())
    full_deployment.wait_all_ended()
    with redis.client() as connection:
        if error == "disk full":
            redis.kill()
            disk = small_disk(redis.folder, 4 * 1024**2)
            redis.start()
            disk.fill()
        else:
            connection.execute_command(begin)
    workers.append(full_deployment.start_remote_worker("far1", GRADIENT_LOG_LEVEL="debug"))  # while it lasts
    for _ in range(3):
        full_deployment.submit(recorded_command())
        full_deployment.wait_all_ended()
        time.sleep(0.4)
    assert all(worker.alive() for worker in workers), "".join(worker.read_log()[-3000:] for worker in workers)
    if error == "disk full":
        disk.free()
    else:
        with redis.client() as connection:
            connection.execute_command(end)
    said = "".join(worker.read_log() for worker in workers)
    assert said.count("Traceback") == 0, said
    publisher = Publisher(redis.url)
    for number, worker in enumerate(workers):

        def heard(number=number, worker=worker):
            with suppress(OSError):
                publisher.publish_wake([WakeMessage(worker_queue(f"far{number}"), "jagain", None)])
            return "jagain" in worker.read_log()

        wait_until(heard, "messages to arrive again")
