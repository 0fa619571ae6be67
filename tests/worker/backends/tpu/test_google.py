"""TPU jobs with production settings: Google's clients over TLS, a service account's key, no simulator."""

import socket

import pytest
from support.deployment import wait_until
from support.google.production import PROJECT
from support.google.tpu_simulator import NO_RESOURCES, expect_launch_error

from core.jobs.reasons import REASONS
from worker.backends.base import read_exit_code

pytestmark = pytest.mark.integration

CREATE = "CreateNode", "CreateQueuedResource"
BUCKET = f"{PROJECT}-gradient-us-central1"
WAYS = pytest.mark.parametrize("way", ["node", "queued"])


def made_in(google):
    return [one.partition(" ")[2] for one in google.made()]


@WAYS
def test_a_job_gets_its_device_and_the_projects_bucket(make_google_harness, google, way):
    place = make_google_harness(provisioning=way)
    spec = place.spec('echo "$TPU_GRPC_URL $TPU_MODEL_DIR"')
    handle = place.launch(spec)
    assert place.wait(handle).code == 0
    address, port = google.cloud.device
    assert place.output(spec).decode() == f"grpc://{address}:{port} gs://{BUCKET}/jobs/{place.job_id}/model\n"
    assert f"POST /storage/v1/b?project={PROJECT}" in [one.partition("&")[0] for one in google.storage.requests]
    place.backend.destroy(handle)
    assert (google.cloud.remaining_resources(), google.objects()) == (NO_RESOURCES, [])


@WAYS
def test_a_zone_that_lacks_the_type_is_passed_over(make_google_harness, google, way):
    place = make_google_harness("TPU v5e", provisioning=way)
    assert place.wait(place.launch(place.spec("true"))).code == 0
    assert made_in(google) == ["us-west4-a"]
    assert [one.name for one in google.storage.buckets.all() if "central1" in one.name] == []
    asked = [one for one in google.tpus.calls if one.startswith("ListAcceleratorTypes")]
    assert len(asked) == 2, "zones in order, and each once"


def test_a_type_that_no_zone_offers_is_refused_before_anything_is_made(make_google_harness, google):
    place = make_google_harness("TPU v6e", zones=["us-central1-b", "us-west4-a"])
    reason, detail = expect_launch_error(place)
    assert reason == "tpu_denied"
    assert detail == "us-central1-b: does not offer v6e-8; us-west4-a: does not offer v6e-8"
    assert google.made() == []


@WAYS
def test_a_zone_that_is_not_open_to_the_project_is_passed_over(make_google_harness, google, way):
    google.cloud.offered["us-west4-a"].append("v2-8")
    for method in CREATE:
        google.refuse(method, "PERMISSION_DENIED", "Location us-central1-b is not found or access is denied")
    place = make_google_harness(provisioning=way)
    place.launch(place.spec("true"))
    assert made_in(google) == ["us-west4-a"]


def test_a_slice_is_refused_where_jobs_run_beside_their_tpu(make_google_harness, google):
    reason, detail = expect_launch_error(make_google_harness("TPU v5e-16", placement="grpc"))
    assert (reason, "slice of 4 hosts" in detail, google.made()) == ("tpu_denied", True, [])


def test_an_end_after_a_preemption_is_no_success(make_google_harness, google):
    """A program that saves what it has on SIGTERM ends with 0, and has not done its work."""
    place = make_google_harness()
    _, handle = place.running('trap "exit 0" TERM; echo up; while :; do sleep 0.02; done')
    google.preempt()
    exit_ = place.wait(handle)
    assert (exit_.code, exit_.reason) == (0, "preempted")


def test_a_success_before_a_preemption_is_one(make_google_harness, google):
    place = make_google_harness(watch_seconds=600.0)
    spec = place.spec("true")
    handle = place.launch(spec)
    wait_until(lambda: read_exit_code(spec.control) == 0, "the command to end")
    google.preempt()
    assert (place.wait(handle).reason, place.wait(handle).code) == (None, 0)


def test_a_busy_api_does_not_cost_a_place_in_the_queue(make_google_harness, google):
    """A refused creation tells of capacity or quota; a refused look at what was created tells of neither."""
    google.cloud.room = 0
    place, said = make_google_harness(), []

    def progress(_, words):
        if "WAITING_FOR_RESOURCES" in words and not said:
            said.append(words)
            google.refuse("GetQueuedResource", "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
        elif said:
            google.cloud.room = 100

    assert place.wait(place.launch(place.spec("true"), progress=progress)).code == 0
    assert len(google.made()) == 1


def test_a_missing_network_is_a_refusal(make_google_harness, google):
    words = "The resource 'projects/proj/global/networks/gone' was not found"
    google.refuse("CreateQueuedResource", "NOT_FOUND", words)
    assert expect_launch_error(make_google_harness()) == ("tpu_denied", words)


def test_a_quota_is_told_from_capacity(make_google_harness, google):
    words = "Quota limit 'TPUV2PerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-central1-b."
    google.refuse("CreateQueuedResource", "RESOURCE_EXHAUSTED", words)
    reason, detail = expect_launch_error(make_google_harness())
    assert reason == "tpu_quota"
    assert words in detail


def test_a_node_whose_request_is_stuck_is_deleted_by_its_own_name(make_google_harness, google):
    place = make_google_harness()
    handle = place.launch(place.spec("true"))
    google.cloud.stuck.update(one.name for one in google.queued)
    place.wait(handle)
    place.backend.destroy(handle)
    place.backend.remove_orphans(lambda *_: False, lambda _: False)
    assert google.nodes == []
    google.cloud.stuck.clear()
    place.backend.remove_orphans(lambda *_: False, lambda _: False)


def test_a_bucket_keeps_no_deleted_objects_and_a_node_has_its_tags(make_google_harness, google):
    place = make_google_harness(tags=["tpu"])
    place.launch(place.spec("true"))
    assert google.storage.buckets.bucket(BUCKET).fields["softDeletePolicy"]["retentionDurationSeconds"] == 0
    assert list(google.node().tags) == ["tpu"]


def test_a_device_is_given_back_when_the_command_has_ended(make_google_harness, google):
    """Its outputs are collected after that, for as long as it takes."""
    place = make_google_harness()
    spec = place.spec("exit 4")
    handle = place.launch(spec)
    assert place.wait(handle).code == 4
    place.backend.release(handle)
    assert google.cloud.remaining_resources() == NO_RESOURCES
    google.storage.buckets.put(BUCKET, f"jobs/{place.job_id}/model/late", b"kept", {}, {})
    place.backend.destroy(handle)
    assert (spec.artifacts / "late").read_bytes() == b"kept"


@WAYS
def test_a_device_without_an_address_is_not_billed_for_hours(make_google_harness, google, way):
    google.cloud.endpoints = 0
    reason, detail = expect_launch_error(make_google_harness(provisioning=way))
    assert reason == "tpu_unreachable"
    assert "has no address" in detail
    assert google.nodes == []


TPU_ACCOUNT = f"tpu@{PROJECT}.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ({"method": "UPLOAD", "path": "/.probe-"}, TPU_ACCOUNT),
        ({"path": "/iam"}, f"giving {TPU_ACCOUNT} access"),
        ({"method": "GET", "path": f"/storage/v1/b/{BUCKET}?"}, "looking at it is not allowed"),
    ],
)
def test_an_account_that_the_bucket_refuses_is_named_before_anything_bills(make_google_harness, google, refused, words):
    place = make_google_harness(service_account=TPU_ACCOUNT)
    place.wait(place.launch(place.spec("true")))  # Google takes minutes to apply a grant; this one is old then
    google.storage.faults.fail(403, 100, **refused)
    reason, detail = expect_launch_error(place, place.spec("true", attempt=2))
    assert (reason, len(google.made())) == ("bucket_refused", 1)
    assert words in detail


def test_a_worker_that_may_not_act_as_the_tpus_account_goes_on(make_google_harness, google):
    google.storage.faults.fail(403, 100, path=":generateAccessToken")
    place = make_google_harness(service_account=TPU_ACCOUNT)
    assert place.wait(place.launch(place.spec("true"))).code == 0


@WAYS
def test_a_port_that_never_opens_is_paid_for_once(make_google_harness, google, way):
    """Nothing would be different at the next attempt."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        google.cloud.device = closed.getsockname()
    place = make_google_harness(provisioning=way, probe_seconds=1.0)
    reason, detail = expect_launch_error(place)
    assert (reason, google.nodes) == ("tpu_unreachable", [])
    assert "Connection refused" in detail
    assert not REASONS[reason].retry


RESERVED = {"TPU": "us-east5-a/mine"}


@WAYS
@pytest.mark.parametrize(("setting", "option"), [(True, None), (False, "spot"), (True, "spot")])
def test_spot_capacity_is_chosen_by_setting_or_job(make_google_harness, google, way, setting, option):
    place = make_google_harness(provisioning=way, spot=setting)
    place.wait(place.launch(place.spec("true", capacity=option)))
    assert google.node().scheduling_config.spot
    assert ["spot" in one for one in google.queued] == ([True] if way == "queued" else [])


@WAYS
def test_a_job_can_refuse_spot_capacity(make_google_harness, google, way):
    place = make_google_harness(provisioning=way, spot=True)
    place.wait(place.launch(place.spec("true", capacity="standard")))
    assert not google.node().scheduling_config.spot
    assert not any("spot" in one for one in google.queued)


@pytest.mark.parametrize("option", [None, "reserved"])
def test_a_reservation_is_used_in_its_zone_alone(make_google_harness, google, option):
    google.cloud.offered["us-east5-a"].append("v2-8")
    place = make_google_harness(spot=True, reservations=RESERVED)
    place.wait(place.launch(place.spec("true", capacity=option)))
    assert made_in(google) == ["us-east5-a"]
    (queued,) = google.queued
    assert queued.reservation_name == f"projects/{PROJECT}/locations/us-east5-a/reservations/mine"
    assert ("guaranteed" in queued, "spot" in queued) == (True, False)
    scheduling = google.node().scheduling_config
    assert (scheduling.reserved, scheduling.spot) == (True, False)


def test_a_job_need_not_use_the_reservation_of_its_type(make_google_harness, google):
    place = make_google_harness(reservations=RESERVED)
    place.wait(place.launch(place.spec("true", capacity="spot")))
    (queued,) = google.queued
    assert (queued.reservation_name, "spot" in queued, made_in(google)) == ("", True, ["us-central1-b"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "GRADIENT_TPU__RESERVATIONS names none for TPU"),
        ({"reservations": {"TPU": "europe-west4-a/mine"}}, "europe-west4-a/mine is not in GRADIENT_TPU__ZONES"),
        ({"reservations": RESERVED, "provisioning": "node"}, "GRADIENT_TPU__PROVISIONING is node"),
        ({"provisioning": "pool", "pool": {"TPU": ["us-central1-b/mine"]}}, "leave capacity out"),
    ],
)
def test_reserved_capacity_that_cannot_be_had_is_refused(make_google_harness, google, options, words):
    place = make_google_harness(**options)
    reason, detail = expect_launch_error(place, place.spec("true", capacity="reserved"))
    assert (reason, words in detail) == ("tpu_denied", True), detail
    assert google.made() == []
