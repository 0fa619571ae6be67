"""The page that Prometheus reads: what it holds, who may see it, and that its labels stay few."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import RepairCount, Worker
from service.main import create_app
from service.monitoring.service_metrics import exposition


@pytest.fixture
def figures(client):
    """A look at the page: a function of a sample's name and labels."""

    def look(name, **labels):
        answer = client.get("/metrics")
        assert answer.status_code == 200
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        return samples.get((name, frozenset(labels.items())))

    return look


def submit(client, **fields):
    answer = client.post("/jobs", json=make_job_body(**fields))
    assert answer.status_code == 201
    return answer.json()["id"]


def test_it_is_text_that_prometheus_reads(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families) > 15
    assert all(family.documentation for family in families)
    assert "_created" not in answer.text


def test_every_figure_is_documented(client, worker):
    worker.register()
    text = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    shown = client.get("/metrics").text
    names = {line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE gradient_")}
    assert len(names) > 14
    assert [name for name in sorted(names) if f"`{name}" not in text] == []


def alerts():
    """The rules that the repository offers."""
    text = (Path(__file__).parents[3] / "deploy" / "prometheus-rules.yml").read_text()
    (group,) = yaml.safe_load(text)["groups"]
    return group["rules"]


def test_every_alert_asks_for_figures_and_labels_that_there_are(client, worker, database):
    worker.register()
    submit(client)
    with database.write() as session:
        session.execute(insert(RepairCount).values(kind="lost_jobs", total=3, last_at=now(), last_worker="w"))
        session.execute(update(Worker).values(gpus=["0"]))
    shown = client.get("/metrics").text
    samples = {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(shown) for sample in family.samples
    }
    assert 6 <= len(alerts()) <= 10
    for rule in alerts():
        assert {"alert", "expr", "annotations"} <= rule.keys()
        assert rule["annotations"]["summary"]
        names = set(re.findall(r"gradient_[a-z_]+", rule["expr"]))
        assert names, rule
        assert names <= samples.keys(), rule
        for name, matchers in re.findall(r"(gradient_[a-z_]+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"([a-z_]+)\s*[=!]~?", matchers)) <= samples[name], rule
        given = set().union(*(samples[name] for name in names))
        assert set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"])) <= given, rule


def test_jobs_queue_and_workers_come_from_the_record(client, figures, worker):
    worker.register()
    for _ in range(3):
        submit(client)
    worker.start()
    assert figures("gradient_jobs", state="queued", backend="process", pool="CPU") == 2
    assert figures("gradient_jobs", state="running", backend="process", pool="CPU") == 1
    assert figures("gradient_jobs", state="finishing", backend="process", pool="CPU") == 0
    assert figures("gradient_queue_jobs", backend="process", pool="CPU") == 2
    assert 0 < figures("gradient_queue_oldest_seconds", backend="process", pool="CPU") < 60
    assert figures("gradient_workers", backend="process") == 1
    assert figures("gradient_queue_workers", backend="process", pool="CPU") == 1
    assert figures("gradient_jobs_silent", backend="process", pool="CPU") == 0
    assert figures("gradient_worker_slots", worker="w", host="h") == 1
    assert figures("gradient_worker_jobs", worker="w", host="h") == 1
    assert figures("gradient_outbox_messages") == 3


def test_a_queue_that_nobody_serves_shows_no_worker(client, figures):
    submit(client)
    assert figures("gradient_workers", backend="process") == 0
    assert figures("gradient_queue_workers", backend="process", pool="CPU") == 0


def test_workers_that_are_away_drained_or_silent_are_named(figures, worker, database):
    worker.register()
    of_w = {"worker": "w", "host": "h"}
    assert figures("gradient_worker_drained", **of_w) == 0
    assert 0 <= figures("gradient_worker_seen_seconds", **of_w) < 60
    values = {"seen_at": now(-3600), "drained_at": now(-7200), "gpus": ["0", "1"]}
    with database.write() as session:
        session.execute(update(Worker).values(**values))
    assert figures("gradient_worker_drained", **of_w) == 1
    assert 3600 <= figures("gradient_worker_seen_seconds", **of_w) < 3660
    assert figures("gradient_worker_slots", **of_w) is None
    assert figures("gradient_gpus", host="h") == 2
    assert figures("gradient_gpus_held", host="h") == 0


def test_repairs_are_counted_by_kind(figures, database):
    with database.write() as session:
        session.execute(insert(RepairCount).values(kind="lost_jobs", total=3, last_at=now(), last_worker="w"))
    assert figures("gradient_sweep_repairs_total", kind="lost_jobs") == 3


def test_jobs_that_end_are_counted_whoever_ended_them(client, figures, worker):
    assert figures("gradient_jobs_ended_total", state="succeeded", backend="process", pool="CPU") is None
    for reason in ("completed", "completed", "launch_failed"):
        submit(client)
        worker.end(worker.start(), reason)
    assert figures("gradient_jobs_ended_total", state="succeeded", backend="process", pool="CPU") == 2
    assert figures("gradient_jobs_ended_total", state="failed", backend="process", pool="CPU") == 1
    assert figures("gradient_jobs", state="succeeded", backend="process", pool="CPU") is None


def test_requests_are_counted_by_the_pattern_of_their_route(client, figures):
    job_id = submit(client)
    for path in (f"/jobs/{job_id}", "/jobs/j0", "/jobs/j1"):
        client.get(path)
    requests = "gradient_http_requests_total"
    assert figures(requests, route="/jobs/{job_id}", method="GET", status="200") == 1
    assert figures(requests, route="/jobs/{job_id}", method="GET", status="404") == 2
    assert figures(requests, route="/jobs", method="POST", status="201") == 1
    duration = "gradient_http_request_duration_seconds"
    assert figures(f"{duration}_count", route="/jobs/{job_id}", method="GET") == 3
    assert figures(f"{duration}_bucket", route="/jobs/{job_id}", method="GET", le="+Inf") == 3


def test_what_a_stranger_makes_up_adds_no_labels(client, anonymous_client, figures):
    for number in range(20):
        anonymous_client.get(f"/made/up/{number}")
        anonymous_client.request(f"MADE{number}", "/jobs")
    requests = "gradient_http_requests_total"
    assert figures(requests, route="none", method="GET", status="404") == 20
    text = client.get("/metrics").text
    assert "made" not in text
    assert "MADE" not in text
    assert text.count('method="other"') < 25


def test_samples_of_several_processes_are_in_one_family_each_with_its_process(stores, settings, database):
    other = create_app(settings, database=database, wake=lambda: None).state.app_state
    stores.service_metrics.count_sent_bytes("log", 7)
    other.service_metrics.count_sent_bytes("log", 5)
    with database.read() as session:
        events = stores.service_metrics.collect_job_events(session)
        collected = {0: stores.service_metrics.collect(), 1: other.service_metrics.collect(), 2: []}
        text = exposition(collected, events, session).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.count("# TYPE gradient_served_bytes_total ") == 1
    served = {
        (sample.labels["process"], sample.value)
        for sample in families["gradient_served_bytes"].samples
        if sample.labels["content"] == "log"
    }
    assert served == {("0", 7.0), ("1", 5.0)}
    assert all("process" not in sample.labels for sample in families["gradient_stored_bytes"].samples)
