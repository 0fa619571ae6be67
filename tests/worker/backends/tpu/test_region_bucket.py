"""The bucket of TPU jobs: created or refused, opened to one account and one prefix, downloaded, emptied."""

import os
import time

import pytest
from google.api_core.exceptions import Forbidden
from google.cloud import storage
from google.oauth2.credentials import Credentials
from support.constants import set_constants

from core.errors import JobNotFound, StoreUnavailable
from core.settings import Settings
from core.settings.cloud import BucketSettings
from core.storage.artifacts.store import Closing, DirectoryStore
from worker.attempt.scratch import read_missing, record_missing
from worker.backends.tpu.storage.errors import BucketRefused
from worker.backends.tpu.storage.region_bucket import open_bucket

JOB = "jabc123"
TPU = "tpu-worker@project.iam.gserviceaccount.com"
MANAGED = "service-12345@cloud-tpu.iam.gserviceaccount.com"
REGION = "us-central1"


@pytest.fixture
def opened(gcs, tmp_path):
    """A bucket of its own, ready."""
    return given(gcs, tmp_path, make_bucket(gcs))


def make_bucket(gcs, location=REGION):
    name = gcs.new_bucket(location)
    gcs.simulator.buckets.bucket(name).fields["iamConfiguration"] = {"uniformBucketLevelAccess": {"enabled": True}}
    return name


def given(gcs, tmp_path, name, **options):
    settings = Settings(home=tmp_path, gcs=gcs.settings, bucket=BucketSettings(name=name, **options))
    return open_bucket(settings, REGION)


@pytest.fixture
def artifacts(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def into(artifacts):
    folder = artifacts / "model"
    folder.mkdir()
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(call, *arguments, **options):
    with pytest.raises(BucketRefused) as refused:
        call(*arguments, **options)
    return refused.value


# ---- The bucket itself


def test_a_bucket_is_made_closed_to_the_public_and_to_old_age(gcs, tmp_path):
    settings = Settings(home=tmp_path, gcs=gcs.settings, tpu={"project": "mine"})
    bucket = open_bucket(settings, "europe-west4")
    for _ in range(2):
        paths = bucket.prepare(JOB)
    assert paths.model_dir == f"gs://mine-gradient-europe-west4/jobs/{JOB}/model"
    assert paths.data_dir == f"gs://mine-gradient-europe-west4/jobs/{JOB}/data"
    made = gcs.client.get_bucket("mine-gradient-europe-west4")
    assert made.location == "EUROPE-WEST4"
    assert made.iam_configuration.uniform_bucket_level_access_enabled
    assert made.iam_configuration.public_access_prevention == "enforced"
    (rule,) = made.lifecycle_rules
    assert rule["condition"] == {"age": 30, "matchesPrefix": ["jobs/"]}


@pytest.mark.parametrize("location", ["europe-west4", "EU", "us-east1"])
def test_a_bucket_in_another_region_is_refused(gcs, tmp_path, location):
    error = refusal(given(gcs, tmp_path, make_bucket(gcs, location)).prepare, JOB)
    assert error.reason == "bucket_region"
    assert location.lower() in error.detail
    assert REGION in error.detail


def test_a_bucket_that_is_not_there_is_refused(gcs, tmp_path):
    error = refusal(given(gcs, tmp_path, "nobody-made-this").prepare, JOB)
    assert (error.reason, "GRADIENT_BUCKET__NAME" in error.detail) == ("bucket_missing", True)
    assert "nobody-made-this" not in [one.name for one in gcs.simulator.buckets.all()]


def test_a_bucket_that_may_not_be_made_is_refused(gcs, tmp_path):
    gcs.simulator.faults.fail(403, method="POST", path="/storage/v1/b?")
    settings = Settings(home=tmp_path, gcs=gcs.settings, tpu={"project": "poor"})
    error = refusal(open_bucket(settings, REGION).prepare, JOB)
    assert (error.reason, "roles/storage.admin" in error.detail) == ("bucket_refused", True)


def test_a_bucket_whose_objects_have_rules_of_their_own_is_refused(gcs, tmp_path):
    error = refusal(given(gcs, tmp_path, gcs.new_bucket()).prepare, JOB)
    assert (error.reason, "uniform" in error.detail) == ("bucket_refused", True)


def test_job_ids_that_lead_elsewhere_are_refused(opened):
    for bad in ("..", "a/b", ""):
        with pytest.raises(JobNotFound):
            opened.prepare(bad)
        with pytest.raises(JobNotFound):
            opened.remove(bad)


# ---- Who may what


def test_a_jobs_token_opens_its_own_prefix_and_nothing_else(gcs, opened):
    mine, other = opened.prepare(JOB), opened.prepare("jother")
    gcs.put_object(opened.name, "jobs/jother/model/secret")
    token = mine.credentials["GOOGLE_AUTH_TOKEN_FOR_TESTING"]
    assert token != other.credentials["GOOGLE_AUTH_TOKEN_FOR_TESTING"]
    client = storage.Client("p", Credentials(token), client_options={"api_endpoint": gcs.simulator.url})
    bucket = client.bucket(opened.name)
    bucket.blob(f"jobs/{JOB}/model/a").upload_from_string(b"mine")
    assert bucket.blob(f"jobs/{JOB}/model/a").download_as_bytes() == b"mine"
    assert len(list(client.list_blobs(opened.name, prefix=f"jobs/{JOB}/"))) == 4
    for forbidden in (
        bucket.blob("jobs/jother/model/secret").download_as_bytes,
        lambda: bucket.blob("jobs/jother/model/new").upload_from_string(b"x"),
        lambda: bucket.blob(f"jobs/{JOB}x").upload_from_string(b"x"),
        lambda: list(client.list_blobs(opened.name, prefix="jobs/")),
        bucket.get_iam_policy,
        bucket.delete,
    ):
        with pytest.raises(Forbidden):
            forbidden()
    assert time.time() < opened.token(JOB).expires_at <= time.time() + 3600


def test_an_inspection_changes_nothing(gcs, opened, tmp_path):
    policy = dict(gcs.simulator.buckets.bucket(opened.name).policy)
    found = opened.inspect(TPU)
    assert (found.proved, TPU in found.statement) == (True, True)
    assert not opened.inspect(None).proved
    assert (gcs.simulator.buckets.bucket(opened.name).policy, gcs.read_objects(opened.name)) == (policy, {})
    with pytest.raises(BucketRefused, match="gs://absent-bucket does not exist"):
        given(gcs, tmp_path, "absent-bucket").inspect(TPU)
    assert "absent-bucket" not in [bucket.name for bucket in gcs.simulator.buckets.all()]


def test_the_tpus_account_gets_the_least_and_proves_it(gcs, opened):
    opened.prepare(JOB)
    trial = opened.probe(TPU)
    assert trial.proved
    bindings = gcs.simulator.buckets.bucket(opened.name).policy["bindings"]
    assert sorted((one["role"], one["members"], "condition" in one) for one in bindings) == [
        ("roles/storage.legacyBucketReader", [f"serviceAccount:{TPU}"], False),
        ("roles/storage.objectUser", [f"serviceAccount:{TPU}"], True),
    ]
    assert opened.probe(TPU).proved
    assert len(gcs.simulator.buckets.bucket(opened.name).policy["bindings"]) == 2
    assert not any(".probe" in name for name in gcs.read_objects(opened.name))


def test_a_policy_that_others_change_at_the_same_time_is_changed_after_them(gcs, opened):
    opened.prepare(JOB)
    gcs.simulator.faults.fail(412, 4, method="PUT", path="/iam")
    assert opened.probe(TPU).proved


@pytest.mark.parametrize("account", [MANAGED, None])
def test_where_nothing_can_be_proved_that_is_said(opened, account):
    opened.prepare(JOB)
    trial = opened.probe(account)
    assert not trial.proved
    assert "could not be tested" in trial.statement or "not known" in trial.statement


# ---- Bringing outputs home


def test_outputs_follow_the_bucket_and_inputs_stay_there(gcs, opened, into):
    opened.prepare(JOB)
    for name in ("model/ckpt-1", "model/deep/er/x", "data/train.bin"):
        gcs.put_object(opened.name, f"jobs/{JOB}/{name}", name.encode())
    (into / "local.txt").write_bytes(b"the job's own")
    first = opened.mirror(JOB, into)
    assert (first.files, first.skipped, first.changing) == (2, (), 0)
    own = {"local.txt": b"the job's own"}
    assert contents(into) == own | {"ckpt-1": b"model/ckpt-1", "deep/er/x": b"model/deep/er/x"}
    gcs.put_object(opened.name, f"jobs/{JOB}/model/ckpt-2", b"two")
    gcs.put_object(opened.name, f"jobs/{JOB}/model/deep/er/x", b"changed")
    gcs.client.bucket(opened.name).blob(f"jobs/{JOB}/model/ckpt-1").delete()
    opened.mirror(JOB, into)
    assert contents(into) == own | {"ckpt-2": b"two", "deep/er/x": b"changed"}
    asked = len(gcs.simulator.requests)
    assert opened.complete(JOB, into).files == 2
    assert [one for one in gcs.simulator.requests[asked:] if "alt=media" in one] == []


HOSTILE = {
    "../../escape": "its name leads out of its folder",
    "a/../../escape": "its name leads out of its folder",
    "./dot": "its name leads out of its folder",
    "/etc/escape": "its name begins with a slash",
    "//two": "its name begins with a slash",
    "x//y": "its name has two slashes in a row",
    "holds-something/": "its name ends with a slash, so it would be a folder",
    "n" * 256: "a part of it is over 255 bytes long",
    "both": "other objects use it as a folder",
}
FINE = ["both/inside", "Name", "name", "caf\u00e9", "cafe\u0301", "a b\t#?%2F", "-rf", ".hidden", "...", "C:\\x"]


def test_hostile_names_never_leave_the_folder_and_are_listed(gcs, opened, artifacts, into, tmp_path):
    opened.prepare(JOB)
    for name in [*HOSTILE, *FINE, "marker/"]:
        gcs.put_object(opened.name, f"jobs/{JOB}/model/{name}", b"" if name == "marker/" else name.encode())
    (tmp_path / "outside").mkdir()
    (into / "linked").symlink_to(tmp_path / "outside")
    gcs.put_object(opened.name, f"jobs/{JOB}/model/linked/passwd", b"root")
    done = opened.complete(JOB, into)
    expected = HOSTILE | {"linked/passwd": "something else with that name is in the artifacts folder"}
    assert dict(done.skipped) == expected
    assert contents(into) == {name: name.encode() for name in FINE}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*escape*")} == set()
    assert list((tmp_path / "outside").iterdir()) == []
    assert [path.name for path in artifacts.iterdir()] == ["model"]
    record_missing(artifacts, done.skipped)
    manifest = DirectoryStore(tmp_path / "store").close(JOB, 1, artifacts, Closing(read_missing(artifacts)[0]))
    assert (manifest.state, manifest.files) == ("partial", len(FINE))
    told = dict(manifest.skipped)
    assert {path: told[path] for path in expected} == expected


@pytest.mark.parametrize("made", ["link", "file"])
def test_a_folder_that_the_job_replaced_is_not_followed(gcs, opened, artifacts, tmp_path, made):
    opened.prepare(JOB)
    gcs.put_object(opened.name, f"jobs/{JOB}/model/passwd", b"root")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"kept")
    for name in ("model", "model.arriving"):
        if made == "link":
            (artifacts / name).symlink_to(tmp_path / "outside")
        else:
            (artifacts / name).write_bytes(b"a file")
    done = opened.complete(JOB, artifacts / "model")
    assert (done.files, [skipped.path for skipped in done.skipped]) == (0, ["model"])
    assert contents(tmp_path / "outside") == {"kept": b"kept"}


def test_a_spoiled_word_of_what_was_lost_says_nothing(artifacts):
    for spoiled in ("", "{", "[1]", '{"a": 1}', "null"):
        artifacts.with_name("lost.json").write_text(spoiled)
        assert read_missing(artifacts) == ([], [])


def test_a_file_where_a_folder_is_wanted_is_kept(gcs, opened, into):
    opened.prepare(JOB)
    (into / "a").write_bytes(b"the job's own")
    (into / "b").mkdir()
    for name in ("a/inside", "b"):
        gcs.put_object(opened.name, f"jobs/{JOB}/model/{name}")
    assert [skipped.path for skipped in opened.complete(JOB, into).skipped] == ["a/inside", "b"]
    assert contents(into) == {"a": b"the job's own"}


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_more_objects_than_two_pages_of_a_listing(gcs, opened, into):
    opened.prepare(JOB)
    for number in range(2_500):
        gcs.put_object(opened.name, f"jobs/{JOB}/model/part-{number:05d}", b"%d" % number)
    assert opened.complete(JOB, into).files == 2_500
    assert (into / "part-02222").read_bytes() == b"2222"
    opened.remove(JOB)
    assert gcs.read_objects(opened.name) == {}


def test_what_is_broken_off_goes_on_from_there(gcs, opened, into):
    opened.prepare(JOB)
    for number in range(20):
        gcs.put_object(opened.name, f"jobs/{JOB}/model/{number}", b"content")
    gcs.simulator.faults.fail(400, 3, path="alt=media")
    gcs.simulator.faults.fail(400, 3, path="media")
    with pytest.raises(StoreUnavailable):
        opened.mirror(JOB, into)
    gcs.simulator.faults.clear_faults()
    before = len(contents(into))
    assert before >= 14
    asked = len(gcs.simulator.requests)
    assert opened.complete(JOB, into).files == 20
    assert len([one for one in gcs.simulator.requests[asked:] if "alt=media" in one]) == 20 - before


def test_an_object_that_changes_while_it_is_fetched_is_fetched_again(gcs, opened, into):
    opened.prepare(JOB)
    name = f"jobs/{JOB}/model/busy"
    gcs.put_object(opened.name, name, b"old")
    real, left = gcs.simulator.buckets.names, [2]

    def changing(bucket):
        found = real(bucket)
        if left[0]:
            left[0] -= 1
            gcs.put_object(opened.name, name, b"new %d" % left[0])
        return found

    gcs.simulator.buckets.names = changing
    try:
        assert opened.mirror(JOB, into).changing == 1
        assert opened.complete(JOB, into).changing == 0
    finally:
        del gcs.simulator.buckets.names
    assert contents(into) == {"busy": b"new 0"}


# ---- Staging and removal


def stage(bucket, source):
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return bucket.stage(JOB, source.name, descriptor)
    finally:
        os.close(descriptor)


def test_a_data_set_is_staged_once_and_without_what_links_lead_to(gcs, opened, tmp_path):
    source = tmp_path / "dataset"
    (source / "deep").mkdir(parents=True)
    (source / "a.bin").write_bytes(os.urandom(300_000))
    (source / "deep" / "b").write_bytes(b"b")
    (source / "link").symlink_to("/etc/hostname")
    (source / "Icon\r").touch()  # macOS writes such files; Cloud Storage refuses the name
    opened.prepare(JOB)
    assert stage(opened, source) == (
        ("Icon\r", "the name has a line break, or is too long for Cloud Storage"),
        ("link", "a symbolic link is not followed"),
    )
    data = {name: content for name, content in gcs.read_objects(opened.name).items() if "/data/" in name and content}
    assert data == {
        f"jobs/{JOB}/data/a.bin": (source / "a.bin").read_bytes(),
        f"jobs/{JOB}/data/deep/b": b"b",
    }
    (source / "deep" / "b").write_bytes(b"B")
    asked = len(gcs.simulator.requests)
    stage(opened, source)
    assert len([one for one in gcs.simulator.requests[asked:] if one.startswith("POST")]) == 1
    stage(opened, source / "a.bin")
    assert gcs.read_objects(opened.name)[f"jobs/{JOB}/data/deep/b"] == b"B"


def test_data_sets_that_cannot_be_staged_are_refused(gcs, tmp_path):
    opened = given(gcs, tmp_path, make_bucket(gcs))
    set_constants({"worker.backends.tpu.storage.data_set_upload.MAX_BYTES": 10})
    (tmp_path / "large").write_bytes(bytes(11))
    os.mkfifo(tmp_path / "fifo")
    assert "at most 10 are copied" in refusal(stage, opened, tmp_path / "large").detail
    assert "neither a file nor a folder" in refusal(stage, opened, tmp_path / "fifo").detail
    assert gcs.read_objects(opened.name) == {}


def test_a_jobs_prefix_goes_and_others_stay(gcs, opened):
    for job in (JOB, "jother"):
        opened.prepare(job)
        gcs.put_object(opened.name, f"jobs/{job}/model/x")
    assert opened.jobs() == [JOB, "jother"]
    for _ in range(2):
        opened.remove(JOB)
    assert opened.jobs() == ["jother"]
    gcs.simulator.buckets.drop(opened.name)
    opened.remove("jother")
    assert opened.name not in [one.name for one in gcs.simulator.buckets.all()]
