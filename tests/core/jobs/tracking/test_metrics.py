"""Metrics in the database: stored once, read within bounds, removed."""

import math

import pytest

from core.db.models.metrics import Metric
from core.jobs import queries
from core.jobs.tracking import metrics


def rows_of(job, count, names=("loss",), source="job", attempt=1):
    row = {"job_id": job.id, "attempt": attempt, "source": source, "at": job.created_at}
    values = [{name: float(n + place) for place, name in enumerate(names)} for n in range(count)]
    return [row | {"offset": n, "step": float(n), "values": one} for n, one in enumerate(values)]


def add(database, rows):
    with database.write() as session:
        metrics.add(session, rows)


def read(database, job, **options):
    with database.read() as session:
        columns = metrics.read(session, job.id, metrics.count_rows(session, job.id), **options)
        return {(one.source, one.name): one.points for one in columns}


def test_metrics_that_are_there_are_left_as_they_are(database, submit):
    job = submit()
    row = {"job_id": job.id, "attempt": 1, "source": "job", "offset": 0, "step": 1.0, "at": job.created_at}
    add(database, [row | {"values": {"loss": 1.0, "lr": math.nan}}])
    add(database, [row | {"values": {"loss": 9.0}}, row | {"offset": 40, "values": {"loss": 2.0}}])
    found = read(database, job, most_values=1000)
    values = {name: [value for _, _, value in points] for (_, name), points in found.items()}
    assert str(values) == "{'loss': [1.0, 2.0], 'lr': [nan]}"
    with database.read() as session:
        stored = metrics.summarize_stored(session, job.id, 1)
        assert (stored.offsets, stored.values, stored.names) == ({0: 40}, 3, {"loss", "lr"})
        assert metrics.summarize_stored(session, job.id, 2).offsets == {}
        assert metrics.count_rows(session, job.id) == [("job", 1, 2, 40)]


def test_a_metric_that_few_of_very_many_rows_have_is_read_whole(database, submit):
    job = submit()
    rows = rows_of(job, 3000, names=("a", "b"))
    for row in rows[7::100]:
        row["values"] = {"val 'a\"": row["step"], "b": math.nan}
    add(database, rows)
    found = read(database, job, most_values=2000, name="val 'a\"")
    assert [step for step, *_ in found["job", "val 'a\""]] == list(range(7, 3000, 100))
    assert read(database, job, most_values=2000, name="nosuch") == {}


@pytest.mark.parametrize("name", [None, "loss"])
def test_the_extremes_of_very_many_rows_are_read(database, submit, name):
    job = submit()
    rows = rows_of(job, 3001)
    for step, value in ((1234, 9999.0), (2345, -1.0), (17, math.inf), (18, math.nan)):
        rows[step]["values"] = {"loss": value}
    add(database, rows)
    found = read(database, job, most_values=1000, name=name, with_extremes=True)["job", "loss"]
    steps = [step for step, *_ in found]
    assert {0.0, 1234.0, 2345.0, 3000.0} <= set(steps)
    assert steps == sorted(steps)
    assert len(steps) <= 1002
    with database.read() as session:
        own = metrics.read_own_rows(session, job.id, metrics.OwnCount(3001, 1), most_values=1000, with_times=False)
    assert {1234.0, 2345.0} <= set(own.steps)


def test_what_another_source_has_too_is_removed_with_its_last_value(database, submit):
    job = submit()
    rows = rows_of(job, 6, names=("loss", "acc"))
    key = {"job_id": job.id, "attempt": 1, "source": "removal"}
    by_name = key | {"removal": metrics.Removal(0, 4, name="loss")}
    by_step = key | {"removal": metrics.Removal(2, 6, from_step=4.0)}
    with database.write() as session:
        metrics.write(session, [*rows, by_name, by_step])
    found = {name: [step for step, *_ in points] for (_, name), points in read(database, job, most_values=1000).items()}
    assert found == {"acc": [0, 1, 2, 3]}
    with database.read() as session:
        assert metrics.last_values(session, [job.id]) == {job.id: {"acc": 4.0}}


def test_that_values_are_left_out_is_said_once(database, submit):
    job = submit()
    for _ in range(3):
        with database.write() as session:
            metrics.record_limit(session, job, "metric_names_limit", "200 names.")
            metrics.record_limit(session, job, "metric_values_limit", "1 value.")
    with database.read() as session:
        assert metrics.limit_messages(session, job.id) == ["200 names.", "1 value."]
        assert [one.kind for one in queries.events(session, job.id)] == ["submitted", "metrics", "metrics"]


def test_metrics_are_removed_in_batches_and_those_of_others_stay(database, submit, monkeypatch):
    monkeypatch.setattr(metrics, "DELETE_BATCH", 7)
    job, other = submit(), submit()
    add(database, rows_of(job, 20) + rows_of(job, 20, attempt=2) + rows_of(job, 5, source="system") + rows_of(other, 3))
    metrics.remove(database, job.id)
    with database.read() as session:
        assert metrics.count_rows(session, job.id) == []
        assert session.query(Metric).count() == 3
