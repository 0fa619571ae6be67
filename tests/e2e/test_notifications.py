"""Receivers outside the service, as servers that check what they are sent: by the CLI, over HTTP and by the SDK."""

import json
import signal
import sqlite3
import threading
from collections import Counter

import apprise
import pytest
from aiosmtpd.controller import Controller
from support.deployment import Deployment, wait_until
from support.free_port import free_port
from support.servers.receivers import Mailbox, Receiver
from werkzeug import Response

import gradient_jobs
from core.notifications.apprise_address import SCHEMES
from core.notifications.webhook import sign

SCALE = 3000  # times as fast as the clock
PRIVATE = (
    *("http://127.0.0.1:1/", "http://localhost:1/", "http://[::ffff:10.0.0.1]/", "http://169.254.169.254/"),
    *("http://[64:ff9b::10.0.0.1]/", "ntfy://127.0.0.1/topic"),
    "mailto://example.org/?smtp=127.0.0.1&from=a@b.org&to=c@d.org",
)
RETRIES = tuple(seconds / SCALE for seconds in (5, 300, 1800, 7200, 18_000, 36_000))


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.server.check_assertions()
    receiver.server.stop()


@pytest.fixture(scope="module")
def service_settings():
    return {
        "GRADIENT_NOTIFICATIONS__ALLOWED": '["127.0.0.1"]',
        "service.notifications.sender.POLL_SECONDS": 0.05,
        "core.notifications.deliveries.RETRY_SECONDS": RETRIES,
    }


def save(service, receiver, name, **options):
    answer = service.request("PUT", f"/notifications/{name}", json={"url": receiver.url} | options)
    assert answer.status_code in {200, 201}, answer.text
    receiver.secret = answer.json()["secret"]
    return answer.json()


def delivered(service, name):
    return service.request("GET", f"/notifications/{name}/deliveries").json()["deliveries"]


def answers_of(service, name, count):
    answers = [tried["answer"] for one in delivered(service, name) for tried in one["tries"]]
    return answers if len(answers) == count else None


def test_a_receiver_is_saved_tested_and_told_of_a_jobs_end(service, receiver):
    made = json.loads(service.cli("notifications", "create", "team", "--json", given=receiver.url).stdout)
    receiver.secret = made["secret"]
    assert service.cli("notifications", "test", "team").stderr.count("HTTP 200 taken") == 1
    shown = service.cli("notifications", "list").stdout + service.cli("notifications", "show", "team").stdout
    assert "http://127.0.0.1" in shown
    assert "/hook" not in shown
    assert receiver.secret not in shown
    service.cli(
        *("jobs", "create", "-m", "CPU", "--workspace", "none", "--name", "night", "--command", "exit 3"),
        *("--notify", "team:job.running,job.failed"),
        code=3,
    )
    (_, test), (_, running), (failed_id, failed) = receiver.wait_for(3)
    assert [test["type"], running["type"], failed["type"]] == ["test", "job.running", "job.failed"]
    job = failed["data"]["job"]
    assert (job["name"], job["state"], job["exitCode"]) == ("night", "Failed", 3)
    assert not {"command", "envVars"} & job.keys()
    assert job["url"].endswith(f"/ui/jobs/{job['id']}")
    again = service.cli("notifications", "replay", "team", failed_id)
    assert "HTTP 200" in again.stderr
    assert receiver.wait_for(4)[3] == (failed_id, failed)
    assert service.cli("notifications", "show", "team").stdout.count("delivered") == 3
    service.cli("notifications", "delete", "team")
    refused = service.cli(
        *("jobs", "create", "-m", "CPU", "--workspace", "none"), *("--command", "true", "--notify", "team"), code=4
    )
    assert "There is no receiver 'team'" in refused.stderr


def test_a_receiver_that_is_down_for_an_hour_gets_everything_and_delays_nothing(service, receiver):
    down, hangs, released = Receiver(), Receiver(), threading.Event()
    hangs.answer = lambda: Response("late" if released.wait(60) else "never", 200)
    failures = [503, 429, 302, 500]  # within 5 + 300 + 1800 seconds and their jitter
    down.answer = lambda: Response(
        "", failures.pop(0) if failures else 204, {"Location": hangs.url, "Retry-After": "0"}
    )
    try:
        save(service, hangs, "hangs")
        save(service, down, "down")
        save(service, receiver, "up")
        job = service.submit("true", notify=["hangs", "down", "up"])
        service.wait_ended(job)
        receiver.wait_for(1)
        messages = down.wait_for(5)
        assert len({message_id for message_id, _ in messages}) == 1
        assert len({json.dumps(message) for _, message in messages}) == 1
        [message] = wait_until(
            lambda: [one for one in delivered(service, "down") if one["state"] == "delivered"], "the delivery"
        )
        assert [tried["status"] for tried in message["tries"]] == [503, 429, 302, 500, 204]
        assert len(hangs.messages) == 1
        released.set()
        wait_until(lambda: delivered(service, "hangs")[0]["state"] == "delivered", "the late answer")
    finally:
        released.set()
        down.server.stop()
        hangs.server.stop()


def test_the_sdk_saves_tests_and_deletes_a_receiver(service, receiver):
    with gradient_jobs.Client(service.cli_json["url"], service.cli_json["apiKey"]) as client:
        receiver.secret = client.notifications.save("sdk", receiver.url, events=["job.*"], jobs=["mine"])["secret"]
        assert [one["jobs"] for one in client.notifications.list() if one["name"] == "sdk"] == [["mine"]]
        message = client.notifications.test("sdk")["id"]
        wait_until(lambda: client.notifications.deliveries("sdk")[0]["tries"], "the answer")
        client.notifications.replay("sdk", message)
        assert {message_id for message_id, _ in receiver.wait_for(2)} == {message}
        job = client.jobs.create(command="true", machine_type="CPU", workspace="none")
        wait_until(lambda: receiver.types()["job.succeeded"], "the end of the job")
        assert [one["id"] for one in client.notifications.deliveries("sdk")][-1] == message
        assert receiver.messages[-1][1]["data"]["job"]["id"] == job.id
        client.notifications.delete("sdk")
        with pytest.raises(gradient_jobs.ServerError, match="There is no receiver"):
            client.jobs.create(command="true", machine_type="CPU", workspace="none", notify=["sdk"])


def test_a_receiver_that_is_gone_is_disabled_and_enabled_by_saving_it(service, receiver):
    save(service, receiver, "gone")
    receiver.answer = lambda: Response("", 410)
    service.cli("notifications", "test", "gone", code=1)
    shown = service.request("GET", "/notifications/gone").json()
    assert "410 Gone" in shown["disabled"]
    service.wait_ended(service.submit("true", notify=["gone"]))
    missed = wait_until(lambda: delivered(service, "gone")[0], "the message")
    assert missed["event"] == "test" or (missed["state"], missed["tries"]) == ("failed", [])
    receiver.answer = lambda: Response("", 200)
    assert save(service, receiver, "gone")["disabled"] is None
    assert len(receiver.messages) == 1
    service.cli("notifications", "test", "gone")


def test_an_array_of_200_and_a_sweep_are_one_message_each(service, receiver):
    save(service, receiver, "one", jobs=["mine"], events=["job.failed", "sweep.*"])
    array = service.request(
        "POST", "/jobs", json={"machineType": "CPU", "command": "test $GRADIENT_ARRAY_INDEX -lt 198", "array": "0-199"}
    ).json()["arrayId"]
    [(_, message)] = receiver.wait_for(1)
    assert (message["type"], message["data"]["array"]["id"]) == ("array.ended", array)
    assert message["data"]["array"]["arrayMembers"] == {"Stopped": 198, "Failed": 2}
    sweep = service.request(
        "POST",
        "/sweeps",
        json={
            "machineType": "CPU",
            "command": """echo '{"step": 1, "loss": 1}' >>$GRADIENT_METRICS_FILE""",
            "space": {"a": "1,2,3"},
            "method": "grid",
            "metric": "loss:min",
            "notify": ["one:sweep.ended"],
        },
    ).json()
    assert "id" in sweep, sweep
    _, ended = receiver.wait_for(2)[1]
    assert (ended["type"], ended["data"]["sweep"]["id"]) == ("sweep.ended", sweep["id"]), ended
    assert ended["data"]["sweep"]["counts"]["complete"] == 3
    assert ended["data"]["sweep"]["best"]["value"] == 1
    assert receiver.types() == {"array.ended": 1, "sweep.ended": 1}


def test_a_sweep_that_pauses_says_so(service, receiver):
    save(service, receiver, "paused")
    body = {"machineType": "CPU", "command": "false", "space": {"a": "1,2,3,4,5,6,7"}, "method": "grid"}
    service.request("POST", "/sweeps", json=body | {"notify": ["paused"], "parallel": 1})
    _, message = receiver.wait_for(1)[0]
    assert message["type"] == "sweep.paused"
    assert "consecutive trials failed" in message["data"]["summary"]


@pytest.mark.parametrize(
    ("path", "more", "event"),
    [
        ("/jobs", {}, "schedule.missed"),
        ("/jobs", {"array": "0-1"}, "job.running"),
        ("/sweeps", {"space": {"a": "1,2"}, "method": "grid"}, "job.waiting"),
        ("/schedules", {"cron": "0 3 * * *"}, "sweep.ended"),
    ],
)
def test_an_event_that_never_comes_is_refused(service, receiver, path, more, event):
    save(service, receiver, "team")
    body = {"machineType": "CPU", "command": "true", "notify": [f"team:{event}"]} | more
    error = service.request("POST", path, json=body).json()["error"]
    assert (error["name"], error["field"]) == ("SpecInvalid", "notify")
    assert "never comes" in error["message"]


def test_a_quiet_time_makes_one_digest_of_what_came_meanwhile(service, receiver):
    project = {"project": "quiet"}
    service.request("POST", "/projects", json={"name": "quiet"})
    save(service, receiver, "calm", jobs=["project:quiet"], quietSeconds=8)
    jobs = [service.submit("true", **project)]
    receiver.wait_for(1)
    jobs += [service.submit("false", **project) for _ in range(3)]
    for job in jobs:
        service.wait_ended(job)
    states = lambda: Counter(one["state"] for one in delivered(service, "calm"))  # noqa: E731 - of one test
    wait_until(lambda: states()["held"] or len(receiver.messages) > 1, "a message that is held")
    _, digest = receiver.wait_for(2)[1]
    assert digest["type"] == "digest"
    inside = [message["data"]["job"]["id"] for message in digest["data"]["messages"]]
    assert sorted(inside) == sorted(jobs[1:])
    assert len(digest["data"]["summary"].splitlines()) == 4
    ends = {"delivered": 2, "digested": 3}
    wait_until(lambda: states() == ends, "the answer to the digest")


def test_mail_is_sent_by_apprise_and_tried_again(service):
    mailbox = Mailbox()
    server = Controller(mailbox, hostname="127.0.0.1", port=0, server_hostname="localhost")
    server.port = free_port()
    server.start()
    try:
        url = f"mailto://127.0.0.1:{server.port}/?smtp=127.0.0.1&from=jobs@example.org&to=team@example.org"
        service.cli("notifications", "create", "mail", given=url)
        assert "team@" not in service.cli("notifications", "show", "mail").stdout
        job = service.submit("exit 4", name="<b>night</b>", notify=["mail:job.*"])
        service.wait_ended(job)
        wait_until(lambda: len(mailbox.mails) >= 2, "two mails")
        [ended] = [mail for mail in mailbox.mails if "failed" in mail["subject"]]
        assert ended["to"] == "team@example.org"
        text = ended.get_body(("plain", "html")).get_content()
        assert f"/ui/jobs/{job}" in text
        [message] = [one for one in delivered(service, "mail") if one["event"] == "job.failed"]
        assert message["id"] in text
        answers = wait_until(lambda: answers_of(service, "mail", 3), "the answers")
        assert answers.count("Accepted") == 2
    finally:
        server.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_scheme_that_is_allowed_is_one_of_apprise():
    known = {scheme for entry in apprise.Apprise().details()["schemas"] for scheme in entry["protocols"] or ()}
    known |= {name for entry in apprise.Apprise().details()["schemas"] for name in entry["secure_protocols"] or ()}
    assert set(SCHEMES) <= known


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"url": "file:///etc/passwd"}, "url", "http"),
        ({"url": "dbus://"}, "url", "scheme is not supported"),
        ({"url": "json://example.org"}, "url", "scheme is not supported"),
        ({"url": "exec://pw@x"}, "url", "scheme is not supported"),
        ({"url": "slack://pw@x"}, "url", "cannot read this address of slack"),
        ({"url": "http://user:pw@example.org/"}, "url", "without a user"),
        ({"url": "http://[::1"}, "url", "URL"),
        ({"url": "http://example.org", "events": ["job.fail"]}, "events", "Did you mean job.failed?"),
        ({"url": "http://example.org", "events": ["worker.lost"]}, "jobs", "of no job"),
        ({"url": "http://example.org", "events": ["job.[a-z]*"]}, "events", "not an event"),
        ({"url": "http://example.org", "jobs": ["project:nowhere"]}, "jobs", "neither mine, all"),
    ],
)
def test_a_receiver_that_cannot_work_is_refused(service, body, field, text):
    error = service.request("PUT", "/notifications/bad", json=body).json()["error"]
    assert error["field"] == field
    assert text in error["message"]
    assert "pw@" not in error["message"]
    assert service.request("GET", "/notifications/bad").status_code == 404


@pytest.mark.parametrize(
    "notify", ["https://example.org/x", "bad name", "team:", "team:budget.100", "team:worker.lost", "team:jobs"]
)
def test_a_job_that_names_no_receiver_or_no_event_is_refused(service, notify):
    body = {"machineType": "CPU", "command": "true", "notify": [notify]}
    for path in ("/jobs", "/jobs?dryRun=true"):
        error = service.request("POST", path, json=body).json()["error"]
        assert (error["name"], error["field"]) == ("SpecInvalid", "notify")


def test_a_private_address_is_not_told(tmp_path):
    deployment = Deployment(tmp_path / "home", **{"service.notifications.sender.POLL_SECONDS": 0.05})
    try:
        deployment.start_api()
        for url in PRIVATE:
            deployment.cli("notifications", "create", "inside", given=url)
            failed = deployment.cli("notifications", "test", "inside", code=1)
            assert "not public" in failed.stderr
    finally:
        deployment.stop()


def test_a_service_killed_in_the_middle_of_a_delivery_delivers_again_with_the_same_id(tmp_path, receiver):
    fast = {
        "GRADIENT_NOTIFICATIONS__ALLOWED": '["127.0.0.1"]',
        "service.notifications.sender.POLL_SECONDS": 0.05,
        "core.notifications.deliveries.CLAIM_SECONDS": 1,
    }
    deployment = Deployment(tmp_path / "home", **fast)
    try:
        deployment.start_api()
        save(deployment, receiver, "team")
        deployment.api.kill()
        doomed = deployment.start_api(GRADIENT_FAILPOINT="notify_sent")
        deployment.start_worker()
        job = deployment.submit("true", notify=["team"])
        assert doomed.wait() == -signal.SIGKILL
        [(first, message)] = receiver.messages
        assert message["data"]["job"]["id"] == job
        deployment.start_api()
        assert receiver.wait_for(2)[1] == (first, message)
        wait_until(lambda: delivered(deployment, "team")[0]["state"] == "delivered", "the record")
    finally:
        deployment.stop()


def test_several_api_processes_over_postgresql_send_each_message_once(tmp_path, postgres, receiver):
    fast = {"GRADIENT_NOTIFICATIONS__ALLOWED": '["127.0.0.1"]', "service.notifications.sender.POLL_SECONDS": 0.05}
    url = postgres.new_database()
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=url, GRADIENT_API__PROCESSES="3", **fast)
    try:
        deployment.migrate()
        deployment.start_api()
        deployment.start_worker(GRADIENT_WORKER__SLOTS="4")
        save(deployment, receiver, "team", jobs=["mine", "all"])
        jobs = [deployment.submit("true", notify=["team"]) for _ in range(12)]
        array = deployment.request(
            "POST", "/jobs", json={"machineType": "CPU", "command": "true", "array": "0-9", "notify": ["team"]}
        ).json()["arrayId"]
        receiver.wait_for(13)
        for job in jobs:
            deployment.wait_ended(job)
        wait_until(
            lambda: {one["state"] for one in delivered(deployment, "team")} == {"delivered"},
            "all deliveries to be recorded",
        )
        subjects = [message["data"].get("job", message["data"].get("array"))["id"] for _, message in receiver.messages]
        assert sorted(subjects) == sorted([*jobs, array])
    finally:
        deployment.stop()


def test_what_is_held_is_sent_when_its_receiver_is_saved_again(service, receiver):
    service.request("POST", "/projects", json={"name": "held"})
    save(service, receiver, "held", jobs=["project:held"], quietSeconds=3600)
    jobs = []
    for count in range(3):
        jobs.append(service.submit("true", project="held"))
        service.wait_ended(jobs[-1])
        wait_until(lambda: len(delivered(service, "held")) == count + 1, "the message")  # noqa: B023 - called at once
    assert Counter(one["state"] for one in delivered(service, "held")) == {"delivered": 1, "held": 2}
    save(service, receiver, "held", jobs=["project:held"])
    _, digest = receiver.wait_for(2)[1]
    assert [message["data"]["job"]["id"] for message in digest["data"]["messages"]] == jobs[1:]


def test_signatures_are_those_of_the_specification():
    secret, message_id = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signature = sign(secret, message_id, 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_lost_worker_and_a_missed_time_are_told(tmp_path, receiver):
    fast = {
        "GRADIENT_NOTIFICATIONS__ALLOWED": '["127.0.0.1"]',
        "GRADIENT_WORKER__LOST_AFTER_SECONDS": "3",
        "GRADIENT_WORKER__LEASE_SECONDS": "1.5",
        "GRADIENT_LIMITS__QUEUED_PER_KEY": "1",
        "service.notifications.sender.POLL_SECONDS": 0.05,
        "GRADIENT_WORKER__SWEEP_SECONDS": "0.5",
    }
    deployment = Deployment(tmp_path / "home", **fast)
    try:
        deployment.start_api()
        save(deployment, receiver, "ops", jobs=["all"], events=["worker.lost", "schedule.missed"])
        worker = deployment.start_worker("gone")
        wait_until(lambda: deployment.request("GET", "/workers").json()["workers"], "the worker")
        worker.kill()
        _, lost = receiver.wait_for(1)[0]
        assert (lost["type"], lost["data"]["worker"]["name"]) == ("worker.lost", "gone")
        deployment.submit("true")  # fills the queue
        schedule = deployment.request(
            "POST", "/schedules", json={"machineType": "CPU", "command": "true", "cron": "* * * * *"}
        ).json()
        with sqlite3.connect(deployment.home / "gradient.db") as rows:  # the minute is over
            rows.execute("UPDATE schedules SET next_at = datetime(next_at, '-1 minute') || '.000000'")
        _, missed = receiver.wait_for(2)[1]
        assert (missed["type"], missed["data"]["schedule"]["id"]) == ("schedule.missed", schedule["id"])
        assert "queue" in missed["data"]["schedule"]["refusal"]
        assert receiver.types() == {"worker.lost": 1, "schedule.missed": 1}
    finally:
        deployment.stop()
