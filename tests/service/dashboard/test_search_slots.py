"""Pages that read much hold a slot of their key, so that many of them occupy no other requests' threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.live_service import make_job_body, wait_until

from core.settings.limits import LimitSettings
from service.auth.authentication import ListSlot, SearchSlot
from service.auth.per_key_limits import Limits
from service.main import ROUTE_MODULES


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"limits": LimitSettings(searches=2)})


@pytest.fixture(autouse=True)
def _short_wait(stores, settings):
    stores.limits = Limits(settings.limits, wait_seconds=0.2)


@pytest.fixture
def ids(client, worker, stores, tmp_path):
    """Ids of an ended job with files, and of a comparison."""
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    running = worker.start()
    (tmp_path / "left").mkdir()
    for name in ("a.md", "x.tfevents.1"):
        (tmp_path / "left" / name).write_bytes(b"x")
    stores.artifacts.close(job_id, 1, tmp_path / "left")
    worker.end(running, exit_code=0)
    made = client.post("/comparisons", json=make_job_body(machineType="CPU,V100")).json()
    return {"job": job_id, "comparison": made["id"], "other": made["rows"][0]["members"][0]["jobId"]}


@pytest.mark.parametrize(
    ("path", "slow"),
    [
        ("/ui/jobs/{job}/artifacts/view?path=a.md", "service.dashboard.outputs.artifact_pages.read_preview"),
        ("/comparisons/{comparison}", "core.comparison.comparisons.measure"),
        ("/ui/comparisons/{comparison}", "core.comparison.comparisons.measure"),
        ("POST /comparisons/from-jobs", "core.comparison.comparisons.measure"),
        ("/jobs/artifactsList?jobId={job}&links=true", "service.original.routes.artifacts._file_shapes"),
        ("/jobs/artifactsListV2?jobId={job}&links=true", "service.original.routes.artifacts._file_shapes"),
    ],
)
def test_a_key_asks_for_few_of_them_at_once(client, ids, monkeypatch, path, slow):
    go_on, began = threading.Event(), threading.Semaphore(0)

    def wait(*_args):
        began.release()
        assert go_on.wait(60)
        raise ValueError("not read")

    monkeypatch.setattr(slow, wait)
    method, _, address = path.format(**ids).rpartition(" ")
    body = {"json": {"jobs": [ids["other"], ids["job"]]}} if method else {}

    def ask(_):
        return client.request(method or "GET", address, headers={"Accept": "text/html"}, timeout=60, **body)

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, number) for number in range(6)]
        try:
            for _ in range(2):
                assert began.acquire(timeout=30)
            wait_until(lambda: sum(one.done() for one in asked) == 4)
            assert client.get("/jobs").status_code == 200
        finally:
            go_on.set()
        answers = [one.result(30) for one in asked]
    assert sorted(answer.status_code for answer in answers) == [429, 429, 429, 429, 500, 500]
    refused = [answer for answer in answers if answer.status_code == 429]
    for answer in refused:
        assert "GRADIENT_LIMITS__SEARCHES" in answer.text
        assert "Try again in 5 seconds" in answer.text
        assert ("<h1>A limit has been reached</h1>" in answer.text) == path.startswith("/ui/")


def test_lists_without_a_short_end_hold_a_slot():
    slots = {SearchSlot.dependency, ListSlot.dependency}
    without = {
        route.path
        for module in ROUTE_MODULES
        for route in module.router.routes
        if route.name.startswith("list_") and "{" not in route.path
        if not slots & {one.dependency for one in route.dependencies}
    }
    assert without == {"/images", "/keys", "/machine-types", "/notifications", "/registries", "/secrets"}
