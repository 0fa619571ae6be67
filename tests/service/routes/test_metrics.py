"""Metrics over HTTP, and how series are thinned."""

import math
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from support.live_service import make_job_body, measure_peak_memory, record_statements

from core.jobs.tracking import metrics
from core.jobs.tracking.metrics import MAX_TIME, Series
from service.presenters.outputs.downsample import downsample, series_view
from service.routes import metrics as routes

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def points(values):
    return [(float(step), 1000.0 + step, value) for step, value in enumerate(values)]


@pytest.mark.parametrize("most", [3, 4, 5, 10, 101, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 999, 1000, 1001, 5000])
def test_thinning_keeps_order_ends_and_extremes(count, most):
    chance = random.Random(count)  # noqa: S311 - a repeatable test
    every = points([chance.gauss(0, 1) for _ in range(count)])
    kept = downsample(every, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(kept)
    assert set(kept) <= set(every)
    if count <= most:
        assert kept == every
    else:
        assert (kept[0], kept[-1]) == (every[0], every[-1])
    if most >= 10 and every:
        values = [value for *_, value in kept]
        assert max(values) == max(value for *_, value in every)
        assert min(values) == min(value for *_, value in every)


def test_what_is_not_finite_is_named_and_no_extreme(client, database):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    values = [1.0, math.nan, math.inf, 0.5, -math.inf]
    rows = [row | {"values": {"loss": value}} for row, value in zip(rows_of(job_id, range(5), 1), values, strict=True)]
    with database.write() as session:
        metrics.add(session, rows)
    named = [1.0, "NaN", "Infinity", 0.5, "-Infinity"]
    (loss,) = client.get(f"/jobs/{job_id}/metrics").json()["series"]
    assert [point["value"] for point in loss["points"]] == named
    assert (loss["min"], loss["max"], loss["last"]) == (0.5, 1.0, "-Infinity")
    page = client.get(f"/jobs/{job_id}/metrics/rows").json()
    assert [row["values"]["loss"] for row in page["rows"]] == named
    thinned = series_view(Series("loss", "job", points([math.nan] * 100)), 10)
    assert len(thinned.points) <= 10
    assert (thinned.min, thinned.max) == (None, None)


@pytest.mark.parametrize("last", [math.nan, math.inf])
def test_a_job_is_found_by_its_last_value_also_if_it_is_not_finite(client, database, last):
    good, bad = (client.post("/jobs", json=make_job_body(name=name)).json()["id"] for name in ("good", "bad"))
    with database.write() as session:
        for job_id, values in ((good, [0.8]), (bad, [0.5, last])):
            rows = rows_of(job_id, range(len(values)), 1)
            changed = zip(rows, values, strict=True)
            metrics.add(session, [row | {"values": {"loss": value, "only": last}} for row, value in changed])

    def found(**query):
        return [job["id"] for job in client.get("/jobs", params=query).json()["jobs"]]

    assert found(q="loss<1") == [good]
    assert found(sort="loss") == [good, bad]
    assert found(sort="only") == [bad, good]
    assert found(q="loss=NaN") == ([bad] if math.isnan(last) else [])
    assert found(q="only>1") == ([] if math.isnan(last) else [bad, good])


def test_all_stored_values_are_read_in_pages_whatever_their_times(client, database, monkeypatch):
    monkeypatch.setattr(routes, "PAGE_VALUES", 7)
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    rows = [row | {"at": BEGAN, "attempt": 1 + row["offset"] // 10} for row in rows_of(job_id, range(25), 2)]
    rows[3]["values"] = {"m1": 3.0}
    system = rows_of(job_id, [5], 1)[0] | {"source": "system", "step": None}
    with database.write() as session:
        metrics.add(session, [*rows, system])

    def read(**query):
        found, page = [], {"next": None}
        while "rows" not in page or page["next"]:
            page = client.get(
                f"/jobs/{job_id}/metrics/rows", params=query | {"after": page["next"] or "0.job.0"}
            ).json()
            assert sum(len(row["values"]) for row in page["rows"]) <= 8
            found += page["rows"]
        return [(row["attempt"], row["source"], row["step"], len(row["values"])) for row in found]

    own = [(1 + n // 10, "job", float(n), 1 if n == 3 else 2) for n in range(25)]
    assert read() == sorted([*own, (1, "system", None, 1)], key=lambda row: row[:2])
    assert read(name="m0") == sorted(
        [(*row[:3], 1) for row in own if row[2] != 3] + [(1, "system", None, 1)], key=lambda row: row[:2]
    )
    wrong = client.get(f"/jobs/{job_id}/metrics/rows", params={"after": "1"})
    assert (wrong.status_code, client.get("/jobs/nosuch/metrics/rows").status_code) == (422, 404)


def test_series_come_by_name_and_source(client, database):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    rows = [
        {
            "job_id": job_id,
            "attempt": 1,
            "source": "job",
            "offset": n,
            "step": float(n),
            "at": BEGAN + timedelta(seconds=n),
            "values": {"loss": 1 / (n + 1), "accuracy": n / 100},
        }
        for n in range(100)
    ]
    system = {
        "job_id": job_id,
        "attempt": 1,
        "source": "system",
        "offset": 0,
        "step": None,
        "at": BEGAN,
        "values": {"cpu": 87.5},
    }
    with database.write() as session:
        metrics.add(session, [*rows, system])
    found = client.get(f"/jobs/{job_id}/metrics").json()["series"]
    assert {(series["name"], series["source"]) for series in found} == {
        ("loss", "job"),
        ("accuracy", "job"),
        ("cpu", "system"),
    }
    loss = client.get(f"/jobs/{job_id}/metrics", params={"name": "loss", "maxPoints": 10}).json()["series"]
    assert [series["name"] for series in loss] == ["loss"]
    assert len(loss[0]["points"]) <= 10
    assert loss[0]["points"][0] == {"step": 0.0, "time": "2026-01-01T00:00:00.000Z", "value": 1.0}
    assert (loss[0]["last"], loss[0]["min"], loss[0]["max"]) == (0.01, 0.01, 1.0)
    assert client.get(f"/jobs/{job_id}/metrics", params={"name": "nothing"}).json() == {"series": [], "leftOut": None}
    assert client.get(f"/jobs/{job_id}/metrics", params={"maxPoints": 1}).status_code == 422


def test_a_range_of_times_reaches_to_the_latest_that_a_worker_stores(client, database):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    (row,) = rows_of(job_id, [1], 1)
    with database.write() as session:
        metrics.add(session, [row | {"at": datetime.fromtimestamp(MAX_TIME, UTC)}])
    wanted = {"axis": "time", "from": MAX_TIME, "to": MAX_TIME}
    (found,) = client.get(f"/jobs/{job_id}/metrics", params=wanted).json()["series"]
    assert [point["step"] for point in found["points"]] == [1.0]
    assert client.get(f"/jobs/{job_id}/metrics", params=wanted | {"to": MAX_TIME + 1}).status_code == 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"from": 1},
        {"to": 1},
        {"axis": "time", "from": 5, "to": 1},
        {"axis": "time", "from": 0, "to": 1e300},
        {"axis": "epoch", "from": 0, "to": 1},
        {"from": "nan", "to": 1},
    ],
)
def test_a_range_that_is_none_is_refused(client, wrong):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    assert client.get(f"/jobs/{job_id}/metrics", params=wrong).status_code in {400, 422}


def rows_of(job_id, numbers, names):
    row = {"job_id": job_id, "attempt": 1, "source": "job"}
    values = {f"m{place}": place / 7 for place in range(names)}
    return [
        row | {"offset": n, "step": float(n), "at": BEGAN + timedelta(seconds=n), "values": values} for n in numbers
    ]


_COPIES = text(
    "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 19999) "
    'INSERT INTO metrics SELECT job_id, attempt, source, n.n, n.n, at, "values" FROM metrics, n'
)


@pytest.fixture
def large(client, database):
    """A job of 20,000 rows with 200 values each."""
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    with database.write() as session:
        metrics.add(session, rows_of(job_id, [0], 200))
        session.execute(_COPIES)
    return job_id


@pytest.mark.slow
def test_four_readers_of_a_very_large_job_cost_bounded_memory_and_rows(client, database, large, monkeypatch):
    read = []
    add = metrics.SeriesColumns.add
    monkeypatch.setattr(metrics.SeriesColumns, "add", lambda *words: read.append(words[1]) or add(*words))
    answers = []

    def ask(_: int) -> None:
        answers.append(client.get(f"/jobs/{large}/metrics?maxPoints=400", timeout=300))

    def ask_at_once() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))

    with record_statements(database) as asked:
        peak = measure_peak_memory(ask_at_once)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(read) <= 1001, "rows are chosen in the database, and read for all four at once"
    assert len([statement for statement, _ in asked if "row_number" in statement]) == 2
    assert peak < 150 * 1024**2
    found = answers[0].json()
    assert len(found["series"]) == 200
    assert all(3 <= len(series["points"]) <= 400 for series in found["series"])
    assert all(series["points"][-1]["step"] == 19_999 for series in found["series"])


def test_an_open_page_that_asks_again_costs_little(client, database, large):
    path = f"/jobs/{large}/metrics"
    first = client.get(path, params={"maxPoints": 100})
    with record_statements(database) as asked:
        again = client.get(path, params={"maxPoints": 100}, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, params={"maxPoints": 100}).content == first.content
    assert not [statement for statement, _ in asked if "metrics.values" in statement or '"values"' in statement]
    with database.write() as session:
        metrics.add(session, rows_of(large, [20_000], 200))
    with record_statements(database) as asked:
        assert client.get(path, params={"maxPoints": 100}).content == first.content, "a large job is read seldom"
    assert not [statement for statement, _ in asked if "row_number" in statement]


def test_the_points_of_one_answer_are_bounded_and_the_answer_says_so(client, large):
    found = client.get(f"/jobs/{large}/metrics", params={"maxPoints": 100_000}).json()
    assert sum(len(series["points"]) for series in found["series"]) <= 100_000
    assert "a response has at most 100,000" in found["leftOut"]
    one = client.get(f"/jobs/{large}/metrics", params={"name": "m7", "maxPoints": 100_000}).json()
    assert "based on about 200,000 values" in one["leftOut"]
    assert len(one["series"][0]["points"]) >= 1000
    part = client.get(f"/jobs/{large}/metrics", params={"name": "m7", "from": 100, "to": 599, "maxPoints": 50}).json()
    assert part["leftOut"] is None, "the points beyond the requested number are no loss: the peaks are there"
    assert len(part["series"][0]["points"]) == 50


def test_an_answer_says_that_a_job_wrote_more_than_is_stored(client, database, worker):
    client.post("/jobs", json=make_job_body())
    worker.register()
    job = worker.start()
    with database.write() as session:
        metrics.record_limit(session, job, "metric_names_limit", "200 names are stored.")
    assert client.get(f"/jobs/{job.id}/metrics").json()["leftOut"] == "200 names are stored."
    events = client.get(f"/jobs/{job.id}/events").json()["events"]
    assert [event["message"] for event in events if event["kind"] == "metrics"] == ["200 names are stored."]
