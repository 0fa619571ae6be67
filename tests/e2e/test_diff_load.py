"""Four differences at once of files that take long to compare, by HTTP, against the list of jobs."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from support.live_service import make_form, make_job_body, make_zip

from core.comparison.workspace_diff import MAX_TEXT_BYTES

AT_ONCE = 4
"""As many as one key may have at once."""


def lines(seed):
    chosen = random.Random(seed)  # noqa: S311 - no secret
    return "".join(f"{chosen.randrange(2)}\n" for _ in range(MAX_TEXT_BYTES // 2 - 1)).encode()


@pytest.fixture
def api(deployment):
    return psutil.Process(deployment.start_api().pid)


def test_the_list_is_answered_while_four_differences_are_made(deployment, api):
    first, second = (
        deployment.request(
            "POST", "/jobs", files=make_form(make_job_body(), make_zip({f"{n}.txt": lines(seed + n) for n in range(4)}))
        ).json()["id"]
        for seed in (10, 20)
    )

    def differ():
        answer = deployment.request("GET", f"/jobs/{first}/diff", params={"other": second})
        return answer.json()["workspace"]["changed"]

    def own_seconds():
        return sum(api.cpu_times()[:2])  # not of the processes that compare

    def listed():
        began = own_seconds()
        assert len(deployment.request("GET", "/jobs").json()["jobs"]) == 2
        return own_seconds() - began

    listed()
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = [threads.submit(differ) for _ in range(AT_ONCE)]
        answered, spent = 0, 0.0
        while not any(one.done() for one in running):
            spent += listed()
            answered += 1
    assert answered >= 10, f"{answered} lists in {time.monotonic() - began:.1f} s"
    assert spent / answered < 0.1  # s of the API, the differences' own share included
    for one in running:
        assert [file["leftOut"] for file in one.result()][-1] == "There are too many changes to compare in time."
