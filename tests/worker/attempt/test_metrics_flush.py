"""Metrics of several running attempts, stored together."""

import pytest
from sqlalchemy import func, select, update
from support.deployment import wait_until

from core.db.models.jobs import Job
from core.db.models.metrics import LastMetric, Metric
from core.errors import StoreUnavailable
from core.jobs.tracking.metric_limits import MetricLimits
from core.jobs.tracking.metrics import StoredSummary, last_values
from worker.attempt.outputs import metrics_flush
from worker.attempt.outputs.log_shipper import SourceFile
from worker.attempt.outputs.metric_rows import MetricRows
from worker.attempt.outputs.metrics_flush import MetricsFlush, MetricsQueue
from worker.attempt.outputs.metrics_reader import MetricsReader
from worker.attempt.periodic import Schedule


@pytest.fixture
def flush(database, monkeypatch):
    monkeypatch.setattr(metrics_flush, "PAUSE_SECONDS", 0.01)
    return MetricsFlush(database, Schedule())


@pytest.fixture
def queues(submit):
    return [MetricsQueue(submit(), {}) for _ in range(3)]


def row(queue, number):
    made = {"job_id": queue.job.id, "attempt": 1, "source": "job", "offset": number, "step": None}
    return made | {"at": queue.job.created_at, "values": {"loss": 1.0}}


def stored(database):
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(Metric))


def count_writes(database, monkeypatch, failures=()):
    """Count the transactions of a database; the first ones fail as given."""
    write, left, begun = database.write, list(failures), []

    def counted():
        begun.append(1)
        if left:
            raise left.pop(0)
        return write()

    monkeypatch.setattr(database, "write", counted)
    return begun


def test_a_database_that_does_not_answer_is_tried_again(database, flush, queues, monkeypatch):
    begun = count_writes(database, monkeypatch, [StoreUnavailable("gone"), StoreUnavailable("gone")])
    queues[0].add([row(queues[0], 0)])
    flush.request(queues[0])
    wait_until(lambda: stored(database) == 1, "the row")
    assert len(begun) == 3


def test_a_worker_that_lost_the_job_changes_no_metric(database, flush, queues):
    """It was frozen; its successor has stored newer values."""
    lost, held = queues[:2]
    for queue in (lost, held):
        queue.add([row(queue, 0)])
        queue.set_totals({"peak_cpu_percent": 1.0}, at_once=True)
    with database.write() as session:
        session.execute(update(Job).where(Job.id == lost.job.id).values(lease=Job.lease + 1))
        session.add(LastMetric(job_id=lost.job.id, name="loss", value=0.1))
    for queue in (lost, held):
        flush.flush(queue)
    with database.read() as session:
        assert last_values(session, [lost.job.id, held.job.id]) == {
            lost.job.id: {"loss": 0.1},
            held.job.id: {"loss": 1.0},
        }
    assert stored(database) == 1


def test_metrics_that_cannot_be_stored_keep_back_no_other_job_s(database, flush, queues, caplog):
    broken, *others = queues
    broken.add([row(broken, 0) | {"job_id": None}])
    for queue in others:
        queue.add([row(queue, 0)])
    with flush.in_progress:
        for queue in queues:
            flush.request(queue)
    wait_until(lambda: stored(database) == 2, "the rows of the others")
    wait_until(lambda: caplog.text.count("metrics_not_stored") == 2, "the messages")
    assert not broken.is_empty


def test_an_end_is_told_that_the_database_does_not_answer(database, flush, queues, monkeypatch):
    count_writes(database, monkeypatch, [StoreUnavailable("gone")])
    queues[0].add([row(queues[0], 0)])
    with pytest.raises(StoreUnavailable):
        flush.flush(queues[0])
    assert not queues[0].is_empty, "nothing is lost"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_name_that_postgresql_does_not_take_is_stored_without_it(database, flush, submit, tmp_path):
    """One that was refused kept all others of its job, and its outputs, from being stored."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"loss\\u0000": 1}\n{"loss": 2}\n')
    job = submit()
    rows = MetricRows(job.id, 1, MetricLimits(), StoredSummary())
    queue = MetricsQueue(job, rows.left_out)
    queue.add(MetricsReader(SourceFile(file), rows).read())
    flush.flush(queue)
    with database.read() as session:
        last = last_values(session, [job.id])[job.id]
    assert list(last.values()) == [2.0, 1.0]
    assert list(last)[1].startswith("loss\N{REPLACEMENT CHARACTER}")
