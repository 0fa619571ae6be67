"""A worker that shares no folder with its service, and has no keys of the bucket that its artifacts go to."""

import hashlib
from urllib.parse import urlsplit

import httpx
import pytest
from support.deployment import Deployment, wait_until
from support.far_worker import GATE, FarWorker

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def deployment(s3, tmp_path):
    deployment = Deployment(tmp_path / "home", GRADIENT_WORKER__SWEEP_SECONDS="0.5")
    deployment.start_api(**s3.settings)
    yield deployment
    deployment.stop()


@pytest.fixture
def far(deployment, tmp_path):
    url = deployment.cli_json["url"]
    return FarWorker(deployment, tmp_path / "far", url, AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none")


def test_files_go_to_the_bucket_by_signed_urls_of_their_job_also_after_it_was_away(deployment, far, s3, tmp_path):
    far.start()
    job_id = deployment.submit(
        "cd $GRADIENT_ARTIFACTS_DIR; mkdir many; echo early >early; : >empty; echo gone >gone;"
        "for i in $(seq 30); do echo $i >many/$i; done; echo said; " + GATE.format(name="go") + "; rm gone;"
        "head -c 6000000 /dev/urandom >large; sha256sum <large; echo late >early; : >$GRADIENT_STORAGE_DIR/written"
    )
    wait_until(lambda: deployment.artifacts(job_id)["totalFiles"] == 33, "its files, while it runs")
    assert deployment.artifact(job_id, "many/7") == b"7\n"
    refused_to_others(deployment, far, job_id)

    s3.proxy.refuse()
    far.open_gate()
    wait_until(lambda: deployment.job(job_id)["phase"] == "collecting", "it to end without the bucket")
    s3.proxy.accept()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["attempt"], job["artifactsState"]) == ("Stopped", 1, "complete")

    large = deployment.artifact(job_id, "large")
    assert hashlib.sha256(large).hexdigest().encode() in deployment.raw_log(job_id)
    stored = deployment.artifacts(job_id)
    assert (stored["state"], stored["totalFiles"]) == ("complete", 33)
    for file in stored["files"]:
        assert hashlib.sha256(deployment.artifact(job_id, file["path"])).hexdigest() == file["sha256"]
    assert {name.removeprefix(f"{job_id}/1/files/") for name in s3.read_objects()} == {
        *(file["path"] for file in stored["files"]),
        f"{job_id}/1/manifest.jsonl",
    }
    put = [one for one in s3.proxy.requests if one.startswith("PUT ") and "/files/" in one]
    assert put
    assert all(f"/{job_id}/1/files/" in one and "X-Amz-Signature=" in one for one in put)
    assert list((tmp_path / "home" / "artifacts").glob("*/*/*")) == [], "nothing went through the service's disk"
    assert list((far.home / "artifacts").glob("*/*/*")) == [], "nothing is left on its host"
    before = len(s3.proxy.requests)
    follower = deployment.submit("cat in/many/7; sha256sum <in/large", inputs=[f"{job_id}:in"])
    assert deployment.wait_ended(follower)["state"] == "Stopped"
    assert deployment.raw_log(follower).startswith(b"7\n" + hashlib.sha256(large).hexdigest().encode())
    fetched = [one for one in s3.proxy.requests[before:] if one.startswith("GET ") and "/files/" in one]
    assert len(fetched) == 33
    assert all("X-Amz-Signature=" in one for one in fetched), "its inputs come straight from the bucket"


def refused_to_others(deployment, far, job_id):
    """URLs are signed for the worker that holds the attempt, for this attempt, and for files below it."""
    token = (far.home / "worker-token").read_text().strip()
    url = f"{deployment.cli_json['url']}/worker/jobs"

    def ask(attempt, paths, whose=token):
        headers = {"Authorization": f"Bearer {whose}"}
        return httpx.post(f"{url}/{attempt}/artifacts/uploads", json=paths, headers=headers)

    allowed = ask(f"{job_id}/1", ["a/b"])
    [[signed, _headers]] = allowed.json()["uploads"]
    assert urlsplit(signed).path.endswith(f"/some/prefix/artifacts/{job_id}/1/files/a/b")
    assert ask(f"{job_id}/2", ["a/b"]).status_code == 409
    assert ask(f"{job_id}/1", ["../../other"]).status_code == 404
    assert ask(f"{job_id}/1", ["a/b"], "gw_unknown").status_code == 401
