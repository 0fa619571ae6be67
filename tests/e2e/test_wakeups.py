"""Wake messages over a real Redis: lost, repeated, late and malformed ones do no harm."""

import base64
import contextlib
import json
import os
import pickle

import pytest
from sqlalchemy import func, select
from support.deployment import Deployment, wait_until

from core.db.database import Database
from core.db.models.jobs import Outbox
from core.notify.celery_app import MAX_QUEUE_LENGTH, Publisher
from core.notify.messages import WakeMessage, machine_type_queue, worker_queue

pytestmark = [pytest.mark.faults]

GATE = 'while [ ! -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.05; done'
OWN = "gradient:" + worker_queue("one")


@pytest.fixture
def redis_deployment(tmp_path, redis):
    """A running API, and the folders of a worker that shares its stores but not its local notification file."""
    deployment = Deployment(
        tmp_path / "home",
        GRADIENT_DATABASE__URL=f"sqlite:///{tmp_path / 'shared.db'}",
        GRADIENT_QUEUE__BROKER_URL=redis.url,
        GRADIENT_WORKER__LEASE_SECONDS="3",
        GRADIENT_LOG_LEVEL="debug",
    )
    deployment.start_api()
    far = tmp_path / "far"
    far.mkdir()
    for store in ("workspaces", "logs", "artifacts", "attempts", "storage"):
        (deployment.home / store).mkdir(exist_ok=True)
        (far / store).symlink_to(deployment.home / store)
    (far / "home-mark").symlink_to(deployment.home / "home-mark")
    yield deployment
    deployment.stop()
    Deployment(far).stop()  # what its jobs left


def queue_length(redis, name):
    with redis.client() as client:
        return client.llen(f"gradient:{name}")


def start_far(redis_deployment, **settings):
    far = str(redis_deployment.home.parent / "far")
    return redis_deployment.start("worker", "--name", "one", **{"GRADIENT_HOME": far} | settings)


def listens(worker):
    wait_until(lambda: "ready. [celery" in worker.read_log(), "it to listen")


def open_gate(redis_deployment):
    (redis_deployment.storage / "go").touch()


def messages(redis_deployment):
    database = Database(redis_deployment.database_url)
    try:
        with database.read() as session:
            return session.scalar(select(func.count(Outbox.id)))
    finally:
        database.close()


def envelope(body, *, headers=None, content_type="application/json", **properties):
    """A message as Kombu leaves it in Redis."""
    properties = {
        "body_encoding": "base64",
        "delivery_tag": os.urandom(8).hex(),
        "delivery_info": {"exchange": "", "routing_key": worker_queue("one")},
    } | properties
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8" if content_type == "application/json" else "binary",
        "content-type": content_type,
        "headers": {"task": "gradient.wake", "id": "m1", "lang": "py"} if headers is None else headers,
        "properties": properties,
    }
    return json.dumps(message).encode()


RINGS = json.dumps([["j1", None], {}, {}]).encode()
PICKLE = pickle.dumps((["j1", None], {}, {}))
HOSTILE = {
    "no arguments": envelope(b"[[], {}, {}]"),
    "arguments of other kinds": envelope(b'[[{"a": 1}, 2], {}, {}]'),
    "named arguments": envelope(b'[[], {"evil": 1}, {}]'),
    "no list of three": envelope(b'{"x": 1}'),
    "a word": envelope(b'"abc"'),
    "numbers": envelope(b"[1, 2, 3]"),
    "another task after it": envelope(b'[["j1", null], {}, {"callbacks": [{"task": "gradient.ping"}]}]'),
    "pickle": envelope(PICKLE, content_type="application/x-python-serialize"),
    "unknown task": envelope(RINGS, headers={"task": "os.system", "id": "m2"}),
    "unknown task of the first protocol": envelope(b'{"task": "os.system"}', headers={}),
    "no id": envelope(RINGS, headers={"task": "gradient.wake"}),
    "years later": envelope(RINGS, headers={"task": "gradient.wake", "id": "m3", "eta": "9999-01-01T00:00:00"}),
    "headers are a list": envelope(RINGS, headers=[1]),
    "not compressed": envelope(RINGS, headers={"task": "gradient.wake", "id": "m", "compression": "application/gzip"}),
    "no delivery tag": envelope(RINGS, delivery_tag=None),
    "no envelope": b"[1]",
    "no JSON": b"\xff\x00hello",
    "too deep": b"[" * 100_000,
}


def test_no_message_ends_a_worker_or_its_messages(redis_deployment, redis):
    worker = start_far(redis_deployment, GRADIENT_WORKER__POLL_SECONDS="3600")
    listens(worker)
    with redis.client() as client:
        for name, message in HOSTILE.items():
            for _ in range(3):  # one more than it has threads
                client.lpush(OWN, message)
            marker = "after" + "".join(name.split())
            client.lpush(OWN, envelope(json.dumps([[marker, None], {}, {}]).encode()))
            wait_until(lambda marker=marker: marker in worker.read_log(), f"it to hear after {name}")
        wait_until(lambda: client.llen(OWN) == client.hlen("gradient:unacked") == 0, "nothing to be left")
    assert worker.alive()
    assert redis_deployment.wait_ended(redis_deployment.submit("true"))["state"] == "Stopped"


def test_doubled_and_replayed_wake_messages_start_nothing_twice(redis_deployment, redis):
    start_far(redis_deployment)
    once = 'echo started >>"$GRADIENT_STORAGE_DIR/starts"'
    job_id = redis_deployment.submit(f"{once}; {GATE}")
    publisher = Publisher(redis.url)
    publisher.publish_wake(
        [
            WakeMessage(queue, job_id, "r1")
            for queue in (machine_type_queue("CPU"), worker_queue("one"))
            for _ in range(20)
        ]
    )
    open_gate(redis_deployment)
    assert redis_deployment.wait_ended(job_id)["attempt"] == 1
    publisher.publish_wake([WakeMessage(machine_type_queue("CPU"), job_id, None)] * 20)
    assert redis_deployment.wait_ended(redis_deployment.submit("true"))["state"] == "Stopped"
    assert (redis_deployment.storage / "starts").read_text() == "started\n"


def test_a_stop_request_wakes_the_host_that_holds_the_job(redis_deployment):
    """The worker looks for stop requests only once an hour, unless a message wakes it."""
    worker = start_far(redis_deployment, GRADIENT_WORKER__LEASE_SECONDS="21600", GRADIENT_WORKER__POLL_SECONDS="3600")
    listens(worker)
    job_id = redis_deployment.submit("sleep 600")
    wait_until(lambda: redis_deployment.job(job_id)["state"] == "Running", "the job to run")
    assert redis_deployment.request("POST", f"/jobs/{job_id}/stop").status_code == 200
    assert redis_deployment.wait_ended(job_id)["state"] == "Cancelled"


def test_a_broker_that_hangs_keeps_no_request_waiting(redis_deployment, redis):
    redis_deployment.submit("true")
    wait_until(lambda: messages(redis_deployment) == 0, "the first ring to be sent")
    redis.freeze()
    try:
        jobs = [redis_deployment.submit("true") for _ in range(20)]
        assert messages(redis_deployment) == 20, "none of them could be sent"
    finally:
        redis.thaw()
    wait_until(lambda: messages(redis_deployment) == 0, "the rings to be sent")
    assert queue_length(redis, machine_type_queue("CPU")) >= 1
    start_far(redis_deployment)
    for job_id in jobs:
        assert redis_deployment.wait_ended(job_id)["state"] == "Stopped"


def test_a_queue_without_a_consumer_does_not_grow_for_ever(redis):
    Publisher(redis.url).publish_wake(
        [WakeMessage(machine_type_queue("CPU"), f"j{number}", None) for number in range(MAX_QUEUE_LENGTH + 20)]
    )
    assert queue_length(redis, machine_type_queue("CPU")) == MAX_QUEUE_LENGTH
    assert queue_length(redis, machine_type_queue("GPU")) == 0


def test_a_worker_is_woken_only_for_the_machine_types_it_takes(redis_deployment, redis):
    worker = start_far(redis_deployment, GRADIENT_WORKER__MACHINE_TYPES='["cpu"]')
    listens(worker)
    Publisher(redis.url).publish_wake(
        [WakeMessage(machine_type_queue(name), f"for{name}", None) for name in ("A100", "CPU")]
    )
    wait_until(lambda: "forCPU" in worker.read_log(), "it to hear its own")
    assert queue_length(redis, machine_type_queue("A100")) == 1
    assert queue_length(redis, machine_type_queue("CPU")) == 0


# Celery's own way to stop consuming while all else goes on: from outside it looks like a lost subscription.
def test_a_worker_receives_messages_again_after_its_broker_was_away(redis_deployment, redis):
    worker = start_far(redis_deployment)
    listens(worker)
    redis.kill()
    wait_until(lambda: "broker_unreachable" in worker.read_log(), "it to miss its broker")
    redis.start()
    before = worker.read_log().count("wake_received")
    publisher = Publisher(redis.url)

    def rings():
        with contextlib.suppress(OSError):
            publisher.publish_wake([WakeMessage(worker_queue("one"), "jback", None)])
        return worker.read_log().count("wake_received") > before

    wait_until(rings, "it to hear again")
    assert worker.alive()
