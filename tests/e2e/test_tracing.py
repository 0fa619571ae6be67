"""A job's way through the service, as a collector of traces and a reader of logs see it: real processes, real SDK."""

import json
import signal
from datetime import UTC, datetime

import pytest
from support.deployment import Deployment, wait_until

STEPS = {"prepare", "launch", "run", "tear down", "collect", "finish"}
GATE = 'while [ ! -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.05; done'
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced_deployment(tmp_path, collector):
    """API and workers in processes of their own, which send traces at once."""
    deployment = Deployment(
        tmp_path / "home",
        GRADIENT_TRACING__ENABLED="true",
        GRADIENT_LOG_FORMAT="json",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    yield deployment
    deployment.stop()


def submit(deployment, command, *, headers, **fields):
    body = {"machineType": "CPU", "command": command} | fields
    answer = deployment.request("POST", "/jobs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def wait_for_spans(collector, names):
    """Wait for spans of API and worker, which are sent one by one, in any order."""
    wait_until(lambda: all(map(collector.spans_named, names)), f"the spans {sorted(names)}")


def test_one_trace_holds_a_job_from_its_request_to_its_end(traced_deployment, collector):
    traced_deployment.start_api()
    traced_deployment.start_worker()
    job_id = submit(traced_deployment, "echo secret-word", headers={"traceparent": THEIRS})
    traced_deployment.wait_ended(job_id)
    names = {"POST /jobs", "submit", "attempt"} | STEPS
    wait_for_spans(collector, names)
    ours = {span.name: span for span in collector.spans if span.trace_id == THEIRS.split("-")[1]}
    assert ours.keys() == names
    request, submission, attempt = ours["POST /jobs"], ours["submit"], ours["attempt"]
    assert request.parent_id == THEIRS.split("-")[2]
    assert submission.parent_id == request.span_id
    assert attempt.parent_id == submission.span_id
    assert {ours[step].parent_id for step in STEPS} == {attempt.span_id}
    assert (request.attributes["http.route"], request.attributes["http.response.status_code"]) == ("/jobs", 201)
    of_job = {"gradient.job.id": job_id, "gradient.attempt": 1, "gradient.machine_type": "CPU"}
    for name in STEPS | {"attempt"}:
        assert of_job.items() <= ours[name].attributes.items()
    assert ours["run"].attributes["gradient.reason"] == attempt.attributes["gradient.reason"] == "completed"
    assert attempt.began <= ours["run"].began <= ours["run"].ended <= attempt.ended
    assert not any(span.failed for span in ours.values())
    assert attempt.resource["service.name"] == "gradient-jobs"
    assert "secret-word" not in str(collector.spans)
    assert traced_deployment.request("GET", "/ui/login?ticket=secret-ticket").status_code < 500
    wait_until(lambda: collector.spans_named("GET /ui/login"), "the page's span")
    assert "secret-ticket" not in str(collector.spans)
    assert not {"/health", "/readiness", "/metrics"} & {span.attributes.get("url.path") for span in collector.spans}


def test_a_run_is_not_lost_when_its_worker_restarts(traced_deployment, collector):
    traced_deployment.start_api()
    first = traced_deployment.start_worker("w1")
    job_id = submit(traced_deployment, f"{GATE}; exit 3", headers={})
    began = wait_until(lambda: traced_deployment.job(job_id)["startedAt"], "the job to run")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.read_log()
    assert collector.one("launch").parent_id, "what was done is sent when the worker ends"
    assert not collector.spans_named("run")
    traced_deployment.start_worker("w1")
    (traced_deployment.storage / "go").touch()
    traced_deployment.wait_ended(job_id)
    wait_for_spans(collector, {"submit", "launch", "run", "attempt"})
    run, attempt = collector.one("run"), collector.one("attempt")
    assert collector.one("launch").parent_id == run.parent_id == attempt.span_id
    assert attempt.parent_id == collector.one("submit").span_id
    assert {run.trace_id, collector.one("launch").trace_id} == {attempt.trace_id}
    assert datetime.fromisoformat(began) == datetime.fromtimestamp(round(run.began, 3), UTC)
    assert run.failed
    assert attempt.failed
    assert run.attributes["gradient.reason"] == "exit_nonzero"


def test_a_request_id_goes_from_the_client_to_the_workers_log(traced_deployment):
    api = traced_deployment.start_api(GRADIENT_TRACING__ENABLED="false")
    worker = traced_deployment.start_worker(GRADIENT_TRACING__ENABLED="false")
    job_id = submit(traced_deployment, "true", headers={"X-Request-Id": "from-the-client.7"})
    traced_deployment.wait_ended(job_id)
    clone = traced_deployment.request("POST", f"/jobs/{job_id}/clone", headers={"X-Request-Id": "again"}).json()
    traced_deployment.wait_ended(clone["id"])
    assert "from-the-client" not in json.dumps(clone)

    def lines(process):
        whole = (line for line in process.read_log().splitlines() if line.startswith("{") and line.endswith("}"))
        return [json.loads(line) for line in whole]

    wait_until(
        lambda: sum(line["event"] == "attempt_closed" for line in lines(worker)) == 2, "both attempts' last line"
    )
    for id_, request_id in ((job_id, "from-the-client.7"), (clone["id"], "again")):
        of_attempt = [line for line in lines(worker) if line.get("job_id") == id_]
        assert [line["event"] for line in of_attempt] == ["attempt_opened", "attempt_closed"]
        for line in of_attempt:
            assert (line["request_id"], line["attempt"], line["lease"]) == (request_id, 1, 1)
        (made,) = [line for line in lines(api) if line["event"] == "job_submitted" and line["job_id"] == id_]
        assert made["request_id"] == request_id
    (posted,) = [line for line in lines(api) if line["event"] == "request" and line["path"] == "/jobs"]
    assert (posted["route"], posted["request_id"], posted["status"]) == ("/jobs", "from-the-client.7", 201)
    (cloned,) = [line for line in lines(api) if line["event"] == "request" and line["path"].endswith("/clone")]
    assert (cloned["route"], cloned["job_id"]) == ("/jobs/{job_id}/clone", job_id)


def test_a_collector_that_is_away_holds_nothing_up(traced_deployment, collector):
    collector.stop()
    up = traced_deployment.start_up()
    job_id = submit(traced_deployment, "true", headers={})
    assert traced_deployment.wait_ended(job_id)["state"] == "Stopped"
    up.signal(signal.SIGTERM)
    assert up.wait() == 0


def test_a_trace_that_a_stranger_began_is_not_continued(traced_deployment, collector):
    traced_deployment.start_api()
    for headers in ({"x-api-key": "wrong"}, {"x-api-key": ""}, {}):
        traced_deployment.request("GET", "/jobs", headers={"traceparent": THEIRS} | headers)
    found = wait_until(
        lambda: len(collector.spans_named("GET /jobs")) == 3 and collector.spans_named("GET /jobs"), "the spans"
    )
    theirs = [span for span in found if span.trace_id == THEIRS.split("-")[1]]
    assert [span.attributes["http.response.status_code"] for span in theirs] == [200]
