"""The pages of comparisons."""

import html
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from support.live_service import make_job_body, record_requests

from core.jobs import queries
from core.jobs.tracking import metrics


def submit(client, **fields):
    return client.post("/comparisons", json=make_job_body(machineType="CPU,V100", **fields))


def test_a_comparison_is_shown_with_its_curves(signed_in_browser, client, train):
    made = submit(client, name="<b>digits", metric="accuracy", target=0.8).json()
    train(2, [0.5, 0.7, 0.8, 0.9])
    train(1, [0.5, 0.7, 0.8, 0.9])
    assert "&lt;b&gt;digits" in signed_in_browser.get("/ui/comparisons").text
    page = signed_in_browser.get(f"/ui/comparisons/{made['id']}").text
    assert "&lt;b&gt;digits" in page
    assert "Fastest: not decided: at least 2 more repeats on CPU and V100" in page
    assert "Final accuracy" in page
    assert "Bottlenecks" not in page, "none was measured"
    assert "accuracy by cost" in page


def test_a_comparison_is_renamed_and_deleted_on_its_page(signed_in_browser, client):
    address = f"/comparisons/{submit(client).json()['id']}"
    assert (
        signed_in_browser.post(f"/ui{address}/rename", data={"name": " <digits> "}).headers["location"]
        == f"/ui{address}"
    )
    assert "<h1>&lt;digits&gt;</h1>" in signed_in_browser.get(f"/ui{address}").text
    assert client.get(address).json()["name"] == "<digits>"
    assert client.patch(address, json={"name": None}).json()["name"] is None
    assert signed_in_browser.post(f"/ui{address}/delete").headers["location"] == "/ui/comparisons"
    assert client.get(address).status_code == 404
    assert len(client.get("/jobs").json()["jobs"]) == 2, "the jobs stay"


def test_pareto_fronts_are_drawn_and_said(signed_in_browser, client, train):
    made = submit(client, metric="accuracy", target=0.8).json()
    assert "front" not in signed_in_browser.get(f"/ui/comparisons/{made['id']}").text, "nothing is measured yet"
    train(2, [0.5, 0.7, 0.8, 0.9])
    train(1, [0.5, 0.7, 0.8, 0.95])
    cpu, v100 = made["rows"]
    page = signed_in_browser.get(f"/ui/comparisons/{made['id']}").text
    charts = json.loads(html.unescape(re.search(r"data-curves='([^']*)'", page)[1]))
    assert [chart["title"] for chart in charts] == [
        "Cost to 0.8 by running time to 0.8",
        "accuracy by running time",
        "accuracy by cost",
    ]
    texts = [
        f"V100 (3.0 s for {dollars(v100, 3)}), CPU (6.0 s for {dollars(cpu, 6)})",
        "V100 (0.95 in 4.0 s)",
        f"CPU (0.9 for {dollars(cpu, 8)}), V100 (0.95 for {dollars(v100, 4)})",
    ]
    front = "Pareto front"
    for chart, text, on_front in zip(charts, texts, (2, 1, 2), strict=True):
        marks = [series for series in chart["series"] if series["kind"] == "marks"]
        [steps] = [series for series in chart["series"] if series["kind"] == "steps"]
        assert (len(marks), sum(mark["filled"] for mark in marks)) == (2, on_front)
        assert (steps["name"], steps["text"], len(steps["x"])) == (front, text, on_front)
        assert f'<th scope="row" class="name">{front}</th><td>{text}</td>' in page, "without scripts, too"
    assert [series["label"] for series in charts[0]["series"] if series["label"]] == ["CPU, 0.9", "V100, 0.95"]
    [line, _] = [series for series in charts[1]["series"] if series["kind"] == "line"]
    assert (line["y"], line["min"], line["max"]) == ([0.5, 0.7, 0.8, 0.9], 0.5, 0.9)
    assert "On the Pareto front of accuracy and cost, of time and cost<" in page
    assert "On the Pareto front of accuracy and time, of accuracy and cost, of time and cost<" in page


def test_the_page_says_which_machine_and_how_its_jobs_spread(signed_in_browser, client, train):
    """One sentence, a picture with intervals, and `simulated` once; the list has the same machine and cost."""
    made = submit(client, metric="accuracy", target=0.9, repeats=3).json()
    assert "Nothing is decided yet" in signed_in_browser.get(f"/ui/comparisons/{made['id']}").text
    assert "none yet" in signed_in_browser.get("/ui/comparisons").text
    for seconds in (2.0, 0.5, 2.1, 0.52, 1.9, 0.49):
        train(seconds, [0.5, 0.9])
    page = signed_in_browser.get(f"/ui/comparisons/{made['id']}").text
    cost = re.search(r'class="verdict">CPU is best [^$]*\$([\d.]+) and 4.0 s to accuracy 0.9', page)[1]
    charts = json.loads(html.unescape(re.search(r"data-curves='([^']*)'", page)[1]))
    intervals = {series["name"]: series for series in charts[0]["series"] if series["kind"] == "interval"}
    assert intervals["CPU, all jobs"]["x"] == [3.8, 4.2]
    for said in ("filled on the Pareto front", "A slanted stroke", "count until 0.9 is reached"):
        assert said in page, "what the marks are, and why a chart by cost goes on"
    price = made["rows"][0]["pricePerHour"] / 3600
    assert intervals["CPU, all jobs"]["y"] == [pytest.approx(seconds * price) for seconds in (3.8, 4.2)]
    shown = re.sub(
        r"<details.*?</details>|<noscript>.*?</noscript>|<[^>]*>", "", page[page.index("verdict") :], flags=re.DOTALL
    )
    assert shown.count("simulated") == 1
    listed = " ".join(re.sub("<[^>]*>", " ", signed_in_browser.get("/ui/comparisons").text).split())
    assert f"CPU, V100 CPU simulated cheapest to accuracy 0.9 4.0 s ${cost} 6 of 6 ended" in listed


def dollars(row, seconds):
    return f"${row['pricePerHour'] * seconds / 3600:.4f}"


MISSED = "No machine type reached accuracy 0.99 in every job; the best final value, the median of the last fifth, is"


@pytest.mark.parametrize(
    ("target", "values", "verdict"),
    [
        (
            0.99,
            [0.5, 0.9],
            f"{MISSED} 0.95, on V100.",
        ),
        (
            0.99,
            [0.5, 0.95],
            f"{MISSED} 0.95, on CPU and ",
        ),
        (0.92, [0.5, 0.9], "Only V100 reached accuracy 0.92 in every job: $0.0017 and 2.0 s."),
        (0.1, [{"lr": 0.1}], "Nothing is decided: fewer than two machine types have figures."),
    ],
)
def test_a_target_that_was_missed_is_the_verdict(client, signed_in_browser, train, target, values, verdict):
    made = submit(client, metric="accuracy", target=target).json()
    assert made["verdict"] == "Nothing is decided yet: fewer than two machine types have figures."
    train(1, values)
    train(1, [0.5, 0.95])
    found = client.get(f"/comparisons/{made['id']}").json()
    assert found["decision"] is None
    assert found["verdict"].startswith(verdict)
    assert found["verdict"] in signed_in_browser.get(f"/ui/comparisons/{made['id']}").text


def test_the_name_of_a_metric_is_text_on_the_page(signed_in_browser, client, train):
    made = submit(client, metric="<q>").json()
    for seconds in (2, 1):
        train(seconds, [0.5, 0.7])
    page = signed_in_browser.get(f"/ui/comparisons/{made['id']}").text
    assert "On the Pareto front of time and cost" in page
    assert "Left out" not in page, "nobody reported it"
    assert "<q>" not in page


def test_all_jobs_of_a_comparison_may_be_gone(signed_in_browser, client):
    made = submit(client).json()
    for row in made["rows"]:
        client.delete(f"/jobs/{row['members'][0]['jobId']}")
    assert "were deleted" in signed_in_browser.get(f"/ui/comparisons/{made['id']}").text


def test_estimates_are_shown_with_their_intervals(signed_in_browser, client, train, database):
    submit(client)
    job_id = train(1, [0.5, 0.7, 0.8, 0.9])
    assert 'id="prediction"' not in signed_in_browser.get(f"/ui/jobs/{job_id}").text, "there is nothing to estimate"
    values = {"flops_per_step": 1e12, "bytes_per_step": 1e10, "input_wait_share": 0.9}
    with database.write() as session:
        where = {"job_id": job_id, "attempt": 1, "source": "job", "offset": 99}
        metrics.add(session, [where | {"step": 50.0, "at": datetime.now(UTC), "values": values}])
    assert 'id="prediction"' in signed_in_browser.get(f"/ui/jobs/{job_id}").text
    shown = signed_in_browser.get(f"/ui/jobs/{job_id}/prediction", params={"precision": "mixed"}).text
    assert "Bound by input" in shown
    assert "Estimates by the roofline model" in shown
    assert "V100" in shown
    assert "<strong>mixed</strong>" in shown
    assert signed_in_browser.get("/ui/jobs/jnosuch0000000/prediction").status_code == 404


def without_clock(page):
    """The page without the server's time, by which it tells ages."""
    return re.sub(r' data-now="[^"]*"', "", page)


def test_ended_jobs_are_measured_once(signed_in_browser, client, train, database):
    made = submit(client, metric="accuracy", target=0.8).json()
    ids = [train(2, [0.5, 0.7, 0.8, 0.9]), train(1, [0.5, 0.7, 0.8, 0.9])]
    page = f"/ui/comparisons/{made['id']}"
    just_ended = without_clock(signed_in_browser.get(page).text)
    with database.write() as session:
        for job_id in ids:
            queries.get_row(session, job_id).finished_at -= timedelta(hours=1)
    shown = []
    for _ in range(2):
        with record_requests(database) as statements:
            shown.append(without_clock(signed_in_browser.get(page).text))
    assert [sentence for sentence, _ in statements if "FROM metrics" in sentence] == []
    assert shown == [just_ended, just_ended]
    assert client.get(f"/comparisons/{made['id']}").json()["rows"][0]["final"]["median"] == 0.9
