"""Data sets in a bucket: of jobs on the service's machine, and on a host that has no keys of the bucket."""

import hashlib
import os
import re
import signal
from datetime import timedelta

import pytest
from support.deployment import Deployment, wait_until
from support.far_worker import FarWorker
from support.live_folder import find
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def network(s3):
    """The way of everybody to the bucket."""
    proxy = TcpProxy(s3.proxy.port)
    yield proxy
    proxy.cut()


@pytest.fixture
def in_bucket(s3, network):
    return s3.settings | {"AWS_ENDPOINT_URL": network.url}


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path / "home", GRADIENT_WORKER__SWEEP_SECONDS="0.5")
    yield deployment
    deployment.stop()


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "small").write_text("first\n")
    (folder / "large").write_bytes(os.urandom(20_000_000))
    return folder


def read(deployment, command):
    job_id = deployment.submit(f"cd $GRADIENT_STORAGE_DIR; {command}")
    assert deployment.wait_ended(job_id)["state"] == "Stopped", deployment.raw_log(job_id)
    return deployment.raw_log(job_id).decode()


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() + "  -\n"


def stored(s3):
    return {hashlib.sha256(content).hexdigest() for content in s3.read_objects("storage/").values()}


def paths(deployment):
    return deployment.cli("storage", "ls", "--recursive").stdout.split()


def prune(deployment, in_bucket):
    pruning = deployment.start("prune", **in_bucket)
    assert pruning.wait() == 0, pruning.read_log()


def test_jobs_of_one_machine_have_what_is_in_the_bucket(deployment, in_bucket, s3, data, tmp_path):
    deployment.start_up(**in_bucket)
    deployment.cli("storage", "put", str(data))
    assert stored(s3) == {hashlib.sha256((data / name).read_bytes()).hexdigest() for name in ("small", "large")}
    assert [path for path in find(deployment.home / "storage", "*") if path.is_file()] == [], "the service keeps none"
    command = "cat set/small; sha256sum <set/large; echo own >set/own; echo mine >set/small"
    assert read(deployment, command) == "first\n" + digest(data / "large")
    assert {"set/large", "set/own", "set/small"} <= set(paths(deployment))
    deployment.cli("storage", "get", "set/small", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "mine\n", "what a job wrote takes its place"
    assert deployment.cli("storage", "put", str(data / "large"), "set/large").stderr.count("unchanged") == 1

    (data / "small").write_text("second\n")
    deployment.cli("storage", "put", str(data))
    assert len(s3.read_objects("storage/")) == 2, "the replaced object is gone"
    assert read(deployment, "cat set/small set/own; sha256sum <set/large") == "second\nown\n" + digest(data / "large")
    shown = deployment.start("disk", **in_bucket)
    assert shown.wait() == 0
    assert re.search(rf"in s3://{s3.name}/some/prefix:\n(?s:.*) 20.0 MB +2 +storage\n", shown.read_log())
    deployment.cli("storage", "rm", "--yes", "set/small")
    assert read(deployment, "ls set") == "large\nown\n"
    deployment.cli("storage", "rm", "--yes", "--recursive", "set")
    assert s3.read_objects("storage/") == {}
    assert read(deployment, "ls") == "datasets\n"


def test_a_bucket_that_is_away_or_refuses_loses_nothing(deployment, in_bucket, network, s3, data):
    deployment.start_up(**in_bucket)
    s3.proxy.fail(503, 2, "/storage/")
    deployment.cli("storage", "put", str(data))
    assert s3.proxy.failures == 0
    (data / "small").write_text("second\n")
    network.cut()
    refused = deployment.cli("storage", "put", str(data), code=None)
    assert refused.returncode != 0
    assert "bucket" in refused.stderr
    assert {"set/large", "set/small"} <= set(paths(deployment))
    job_id = deployment.submit("cd $GRADIENT_STORAGE_DIR; cat set/small")
    wait_until(lambda: "The bucket" in (deployment.job(job_id)["phaseDetail"] or ""), "the job to wait for the bucket")
    network.connect()
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    assert deployment.raw_log(job_id) == b"first\n"

    s3.proxy.fail(403, 1, f"PUT /{s3.name}/some/prefix/storage/")
    assert "403" in deployment.cli("storage", "put", str(data)).stderr, "the client says why it tries again"
    assert read(deployment, "cat set/small") == "second\n"
    s3.proxy.fail(403, 2, f"POST /{s3.name}?delete")
    deployment.cli("storage", "rm", "--yes", "--recursive", "set")
    assert "set/small" not in paths(deployment)
    assert s3.read_objects("storage/") != {}
    prune(deployment, in_bucket)
    assert s3.read_objects("storage/") == {}, "pruning deletes what the bucket kept"


def test_a_host_without_keys_fetches_from_the_bucket(deployment, in_bucket, network, s3, data, tmp_path):
    deployment.start_api(**in_bucket)
    far = FarWorker(deployment, tmp_path / "far", deployment.cli_json["url"], AWS_ACCESS_KEY_ID="none")
    far.start()
    deployment.cli("storage", "put", str(data))
    began, size = network.sent, 20_000_000
    network.cut_at = began + size // 2
    job_id = deployment.submit("cd $GRADIENT_STORAGE_DIR; cat set/small; sha256sum <set/large; echo mine >set/mine")
    wait_until(lambda: network.is_cut, "the line to the bucket to break off")
    wait_until(lambda: "The bucket" in (deployment.job(job_id)["phaseDetail"] or ""), "the job to wait for the bucket")
    network.cut_at = None
    s3.proxy.late = timedelta(minutes=16)
    network.connect()
    wait_until(lambda: "status 403" in (deployment.job(job_id)["phaseDetail"] or ""), "its URL to have expired")
    s3.proxy.late = timedelta()
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    assert deployment.raw_log(job_id).decode() == "first\n" + digest(data / "large")
    assert network.sent - began < size * 1.4, "what has arrived is not sent again"
    fetched = [one for one in s3.proxy.requests if one.startswith("GET ") and "/storage/" in one]
    assert len(fetched) > 2
    assert all("X-Amz-Signature=" in one for one in fetched), "the service reads nothing for others"

    (data / "small").write_text("second\n")
    deployment.cli("storage", "put", str(data))
    assert read(deployment, "cat set/small set/mine") == "second\nmine\n"
    deployment.cli("storage", "rm", "--yes", "--recursive", "set")
    assert read(deployment, "ls set") == "mine\n", "what jobs wrote stays"


def test_what_was_stored_before_there_was_a_bucket_stays(deployment, in_bucket, s3, data):
    before = deployment.start_up()
    deployment.cli("storage", "put", str(data / "small"), "set/small")
    before.signal(signal.SIGTERM)
    before.wait()
    deployment.start_up(**in_bucket)
    assert "set/small" in paths(deployment)
    deployment.cli("storage", "put", str(data / "large"), "set/large")
    assert read(deployment, "cat set/small; sha256sum <set/large") == "first\n" + digest(data / "large")
    (data / "small").write_text("second\n")
    deployment.cli("storage", "put", str(data / "small"), "set/small")
    assert read(deployment, "cat set/small") == "second\n"
    assert len(s3.read_objects("storage/")) == 2
