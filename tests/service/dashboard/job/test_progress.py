"""The progress in a job's header: what its log or its metrics say, or nothing."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import Job
from core.jobs.tracking import metrics

BAR = " 10%%|█         | 400/4000 [%s<12:00,  5.0it/s]"


@pytest.fixture
def shown_progress(client, worker, stores, signed_in_browser):
    """Run a job for 100 s that prints lines, one a second until now, and return what its header says of progress."""

    def show(*lines, partial="", steps=(), **options):
        job_id = client.post("/jobs", json=make_job_body(**options)).json()["id"]
        job = worker.start()
        with stores.database.write() as session:
            began = job.started_at - timedelta(seconds=100)
            session.execute(update(Job).where(Job.id == job_id).values(started_at=began))
            rows = []
            for number, step in enumerate(steps, 1):
                at = job.started_at - timedelta(seconds=10 * (len(steps) - number))
                row = {"job_id": job_id, "attempt": 1, "source": "job", "offset": number}
                rows.append(row | {"step": step, "at": at, "values": {"loss": 1.0}})
            metrics.add(session, rows)
        now_ms = int(job.started_at.timestamp() * 1000)
        with stores.logs.open_writer(job_id, 1) as log:
            for number, line in enumerate(lines):
                log.append(f"{line}\n".encode(), now_ms - 1000 * (len(lines) - 1 - number))
            log.append(partial.encode(), now_ms)
        page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
        line = re.sub(r"<[^>]*>", "", page[page.index('data-part="line">') :].partition("</p>")[0])
        progress = re.search(r"(?:\w+ )?\d+/\d+", line)
        left = re.search(r"(?:about|at most) [\d]+ (?:h|min|s)", line)
        home = re.search(r'data-label="Time left"[^>]*>(.*?)</td>', signed_in_browser.get("/ui").text)
        told = re.sub(r"<[^>]*>", "", home[1])
        assert told.startswith(left[0].rpartition(" ")[0][:-1]) if left else told == "unknown", (
            "the first page says it too"
        )
        return progress and progress[0], left and left[0]

    return show


def check(shown, progress, left):
    assert (shown[0], shown[1] and re.fullmatch(left or "", shown[1]) is not None) == (progress, left and True)


@pytest.mark.parametrize(
    ("lines", "partial", "progress", "left"),
    [
        (
            ["step 100/4000 loss 1", "step 200/4000 loss 1", "step 400/4000 loss 1"],
            "",
            "step 400/4000",
            "about 2[0-4] s",
        ),
        (["Iteration 1,000 of 802,000", "Iteration 2,000 of 802,000"], "", "iteration 2000/802000", "about 1[23] min"),
        (["step 400/4000"], "", "step 400/4000", None),
        (["Epoch [3/10], Step [400/4000], Loss: 0.1"], "", "epoch 3/10", None),
        (["step 400/4000 of epoch 3"], "", None, None),
        (["step 400/4000", "validation step 3/10"], "", "step 400/4000", None),
        (["step 4000/400", "see step 3/10/2024", "ratio 3/10"], "", None, None),
        (["\x1b[32mstep\x1b[0m 400/4000"], "", "step 400/4000", None),
        ([], BAR % "01:20", "step 400/4000", "about 12 min"),
        ([], BAR % "00:03", None, None),
        ([], "Downloading" + BAR % "01:20", None, None),
        ([], "Epoch 0:" + BAR % "01:20", None, None),
        ([], "Epoch 3/10:" + BAR % "01:20", "epoch 3/10", None),
    ],
)
def test_the_log_tells_it_or_nothing_is_said(shown_progress, lines, partial, progress, left):
    check(shown_progress(*lines, partial=partial), progress, left)


@pytest.mark.parametrize(
    ("params", "steps", "progress", "left"),
    [
        ({"max_steps": 1000}, (0, 5, 10), "step 10/1000", "about 3[123] min"),
        ({"steps": 1000}, (10,), "step 10/1000", None),
        ({"steps": 1000, "epochs": 3}, (0, 10), None, None),
        ({"max_steps": 5}, (0, 10), None, None),
        ({"lr": 1000}, (0, 10), None, None),
    ],
)
def test_the_steps_of_the_metrics_tell_it_with_a_parameter_of_their_number(
    shown_progress, params, steps, progress, left
):
    check(shown_progress(steps=steps, params=params), progress, left)


def test_the_time_limit_is_said_if_it_ends_first(shown_progress):
    lines = ["step 1/4000", "step 2/4000"]
    check(shown_progress(*lines, timeLimit=1000), "step 2/4000", "at most 1[45] min")
