"""Real processes that keep artifacts in a bucket: a job runs twice, what it left is fetched, then removed."""

import hashlib
import io
import zipfile

import pytest
from support.deployment import Deployment, wait_until
from support.live_folder import find


class InGcs:
    def __init__(self, gcs):
        self._gcs = gcs
        self._name = gcs.new_bucket()
        self.settings = {
            "GRADIENT_STORE__URL": f"gs://{self._name}/some/prefix",
            "GRADIENT_GCS__ENDPOINT": gcs.simulator.url,
        }

    def read_objects(self):
        return {
            name.removeprefix("some/prefix/artifacts/"): found
            for name, found in self._gcs.read_objects(self._name).items()
        }


@pytest.fixture(params=["s3", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gcs", "azure"))])
def bucket(request):
    found = request.getfixturevalue(request.param)
    return InGcs(found) if request.param == "gcs" else found


@pytest.fixture
def service(bucket, tmp_path):
    deployment = Deployment(tmp_path / "home")
    deployment.start_up(
        **bucket.settings,
        GRADIENT_WORKER__SYNC_SECONDS="0.2",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
    )
    yield deployment
    deployment.stop()


def test_what_a_job_leaves_is_in_the_bucket_and_comes_from_there(bucket, service, tmp_path):
    command = (
        'cd "$GRADIENT_ARTIFACTS_DIR"; if [ "$GRADIENT_ATTEMPT" = 1 ]; then mkdir sub; echo hello > sub/a.txt; '
        "head -c 3000000 /dev/urandom > big; ln -s /etc/passwd link; mkdir none; chmod 750 big none; "
        "touch -d @1500000000 big none; exit 1; fi; echo again >> sub/a.txt; "
        "env | grep -E '^(AWS|GOOGLE)_'; stat -c '%n %a %Y' big none; head -1 sub/a.txt"
    )
    job_id = service.submit(command, maxAttempts=2)
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"], job["artifactsState"]) == ("Stopped", 2, "complete")
    log = service.raw_log(job_id)
    # The second attempt found what the first had left, as it had left it.
    assert log.endswith(b"big 750 1500000000\nnone 750 1500000000\nhello\n")
    assert b"AWS_" not in log
    page = service.artifacts(job_id)
    assert [(file["path"], file["size"]) for file in page["files"]] == [("big", 3_000_000), ("sub/a.txt", 12)]
    assert [(folder["path"], folder["mode"]) for folder in page["folders"]] == [("none", 0o750), ("sub", 0o755)]
    for file in page["files"]:
        content = service.artifact(job_id, file["path"])
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert bucket.read_objects()[f"{job_id}/2/files/{file['path']}"] == content
    part = service.request("GET", f"/jobs/{job_id}/artifacts/file/sub/a.txt", headers={"Range": "bytes=6-"})
    assert (part.status_code, part.content) == (206, b"again\n")
    packed = zipfile.ZipFile(io.BytesIO(service.request("GET", f"/jobs/{job_id}/artifacts.zip").content))
    assert packed.read(f"{job_id}/sub/a.txt") == b"hello\nagain\n"
    assert [path for path in find(tmp_path / "home" / "artifacts", "*") if path.is_file()] == []
    assert service.request("DELETE", f"/jobs/{job_id}").status_code == 204
    wait_until(lambda: bucket.read_objects() == {}, "the sweep emptied the bucket")
