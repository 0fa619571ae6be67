"""Real processes that keep artifacts in a bucket: a job runs twice, what it left is fetched, then removed."""

import hashlib
import io
import zipfile

import pytest
from support.deployment import Deployment, wait_until
from support.live_folder import find


@pytest.fixture
def kept_in(gcs):
    return gcs.new_bucket()


@pytest.fixture
def service(gcs, kept_in, tmp_path):
    deployment = Deployment(tmp_path / "home")
    deployment.start_up(
        GRADIENT_ARTIFACTS__URL=f"gs://{kept_in}/of/jobs",
        GRADIENT_GCS__ENDPOINT=gcs.simulator.url,
        GRADIENT_GCS__CA=str(gcs.simulator.ca),
        GRADIENT_WORKER__SYNC_SECONDS="0.2",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
    )
    yield deployment
    deployment.stop()


def test_what_a_job_leaves_is_in_the_bucket_and_comes_from_there(gcs, kept_in, service, tmp_path):
    command = (
        'cd "$GRADIENT_ARTIFACTS_DIR"; if [ "$GRADIENT_ATTEMPT" = 1 ]; then mkdir sub; echo hello > sub/a.txt; '
        "head -c 3000000 /dev/urandom > big; ln -s /etc/passwd link; exit 1; fi; cat sub/a.txt; echo again >> sub/a.txt"
    )
    job_id = service.submit(command, maxAttempts=2)
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"], job["artifactsState"]) == ("Stopped", 2, "complete")
    assert service.raw_log(job_id).endswith(b"hello\n")  # the second attempt found what the first had left
    page = service.artifacts(job_id)
    assert [(file["path"], file["size"]) for file in page["files"]] == [("big", 3_000_000), ("sub/a.txt", 12)]
    for file in page["files"]:
        content = service.artifact(job_id, file["path"])
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert gcs.read_objects(kept_in)[f"of/jobs/{job_id}/2/files/{file['path']}"] == content
    part = service.request("GET", f"/jobs/{job_id}/artifacts/file/sub/a.txt", headers={"Range": "bytes=6-"})
    assert (part.status_code, part.content) == (206, b"again\n")
    packed = zipfile.ZipFile(io.BytesIO(service.request("GET", f"/jobs/{job_id}/artifacts.zip").content))
    assert packed.read(f"{job_id}/sub/a.txt") == b"hello\nagain\n"
    assert [path for path in find(tmp_path / "home" / "artifacts", "*") if path.is_file()] == []
    assert service.request("DELETE", f"/jobs/{job_id}").status_code == 204
    wait_until(lambda: gcs.read_objects(kept_in) == {}, "the sweep emptied the bucket")
