"""A TPU job's files in Cloud Storage: created before anything is billed, downloaded at the end, then deleted."""

import json
import sys

import pytest
from support.deployment import wait_until
from support.google.tpu_simulator import running_simulator
from support.google.tpu_vm_deployment import nothing_left, served

WRITE = """
import os
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

for name in ("TPU_MODEL_DIR", "TPU_DATA_DIR"):
    place = os.environ[name].removeprefix("gs://")
    bucket, _, prefix = place.partition("/")
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    client._http.headers["Authorization"] = "Bearer " + os.environ["GRADIENT_BUCKET_TOKEN"]
    bucket = client.bucket(bucket)
    if name == "TPU_MODEL_DIR":
        bucket.blob(prefix + "/ckpt/weights").upload_from_string(b"weights")
        print("written", place)
    else:
        print("read", sorted(blob.name for blob in bucket.list_blobs(prefix=prefix + "/") if blob.size))
"""


@pytest.fixture(scope="module")
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture(scope="module")
def service(simulator, storage, tmp_path_factory):
    with served(simulator, storage, tmp_path_factory.mktemp("service"), "grpc") as deployment:
        yield deployment


def test_what_a_job_writes_to_its_bucket_is_among_its_artifacts_and_the_bucket_is_empty(service, simulator, storage):
    data_set = service.home / "storage" / "datasets" / "numbers"
    data_set.mkdir(parents=True)
    (data_set / "digits").write_bytes(b"0123")
    (data_set / "link").symlink_to("digits")
    (service.home / "write.py").write_text(WRITE)
    job_id = service.submit(
        f"'{sys.executable}' '{service.home}/write.py'",
        machineType="TPU",
        envVars={"TPU_STAGE": "/storage/datasets/numbers"},
    )
    job = service.wait_ended(job_id)
    said = service.raw_log(job_id).decode()
    assert job["state"] == "Stopped", said
    assert f"/jobs/{job_id}/model" in said
    assert f"read ['jobs/{job_id}/data/digits']" in said
    assert service.artifact(job_id, "ckpt/weights") == b"weights"
    assert [file["path"] for file in service.artifacts(job_id)["files"]] == ["ckpt/weights"]
    said = "not copied to the bucket: 'link': a symbolic link is not followed"
    assert any(said in json.dumps(event) for event in service.events(job_id))
    assert nothing_left(simulator, storage)


@pytest.mark.parametrize("named", ["/storage/nothing", "../../etc", "data"])
def test_a_data_set_that_is_not_there_is_the_users_to_mend(service, simulator, named):
    simulator.cloud.record.clear()
    job = service.wait_ended(service.submit("true", machineType="TPU", envVars={"TPU_STAGE": named}, maxAttempts=3))
    assert (job["reason"], job["attempt"]) == ("data_missing", 1)
    assert named in job["message"]
    assert simulator.cloud.record == []


def test_what_a_crash_left_in_the_bucket_is_swept_and_others_jobs_are_not(service, storage):
    ended = service.submit("true", machineType="TPU")
    service.wait_ended(ended)
    (bucket,) = storage.buckets.all()
    for job_id in (ended, "janother00000000"):
        storage.buckets.put(bucket.name, f"jobs/{job_id}/model/late", b"late", {}, {})
    others = f"gs://{bucket.name}/jobs/janother00000000/model/late"
    wait_until(lambda: storage.objects() == [others], "what is ours to be gone")
    storage.buckets.drop(bucket.name)


def test_a_later_attempt_finds_in_the_bucket_what_the_one_before_wrote(service, simulator, storage):
    (service.home / "write.py").write_text(WRITE)
    command = f"'{sys.executable}' '{service.home}/write.py'; [ $GRADIENT_ATTEMPT = 2 ] || exit 1; sleep 600"
    job_id = service.submit(command, machineType="TPU", maxAttempts=2)
    wait_until(lambda: service.job(job_id)["attempt"] == 2, "the first attempt to fail")
    wait_until(lambda: service.job(job_id)["state"] == "Running", "the second attempt")
    assert any(name.endswith(f"/jobs/{job_id}/model/ckpt/weights") for name in storage.objects())
    service.request("POST", f"/jobs/{job_id}/stop")
    service.wait_ended(job_id)
    assert nothing_left(simulator, storage)
