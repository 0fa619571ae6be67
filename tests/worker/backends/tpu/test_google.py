"""TPU jobs with production settings: Google's clients over TLS, a service account's key, no simulator."""

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from support.deployment import wait_until
from support.free_port import free_port
from support.google.production import PROJECT
from support.google.tpu_simulator import expect_launch_error

from core.jobs.reasons import REASONS
from core.settings.cloud import TpuSettings
from worker.backends.tpu import api
from worker.runner.control_files import read_exit_code

pytestmark = pytest.mark.integration

BUCKET = f"{PROJECT}-gradient-us-central1"
WAYS = pytest.mark.parametrize("way", [pytest.param("node", marks=pytest.mark.slow), "queued"])


def made_in(google):
    return [one.partition(" ")[2] for one in google.made()]


def test_a_type_that_no_zone_offers_is_refused_before_anything_is_made(make_google_harness, google):
    place = make_google_harness("TPU v6e", zones=["us-central1-b", "us-west4-a"])
    reason, detail = expect_launch_error(place)
    assert reason == "tpu_denied"
    assert detail == "us-central1-b: does not offer v6e-8; us-west4-a: does not offer v6e-8"
    assert google.made() == []


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


def test_after_an_outage_the_api_is_asked_again_soon(monkeypatch):
    """gRPC itself pauses up to two minutes, in which a device is billed."""
    channels, real = [], grpc.secure_channel
    monkeypatch.setattr(api, "find_credentials", lambda: (AnonymousCredentials(), "p"))
    monkeypatch.setattr(grpc, "secure_channel", lambda *a, **options: channels.append(options) or real(*a, **options))
    api.TpuApi(TpuSettings(project="p")).connect()
    assert dict(channels[0]["options"])["grpc.max_reconnect_backoff_ms"] <= 5000
    assert dict(channels[0]["options"])["grpc.max_receive_message_length"] == -1, "the library's own stay"


def test_a_missing_network_is_a_refusal(make_google_harness, google):
    words = "The resource 'projects/proj/global/networks/gone' was not found"
    google.refuse("CreateQueuedResource", "NOT_FOUND", words)
    assert expect_launch_error(make_google_harness()) == ("tpu_denied", words)


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


@WAYS
def test_a_device_without_an_address_is_not_billed_for_hours(make_google_harness, google, way):
    google.cloud.endpoints = 0
    reason, detail = expect_launch_error(make_google_harness(provisioning=way))
    assert reason == "tpu_unreachable"
    assert "has no address" in detail
    assert google.nodes == []


TPU_ACCOUNT = f"tpu@{PROJECT}.iam.gserviceaccount.com"


def test_an_account_that_the_bucket_refuses_is_named_before_anything_bills(make_google_harness, google):
    place = make_google_harness(service_account=TPU_ACCOUNT)
    place.wait(place.launch(place.spec("true")))  # Google takes minutes to apply a grant; this one is old then
    refusals = (
        ({"method": "UPLOAD", "path": "/.probe-"}, TPU_ACCOUNT),
        ({"path": "/iam"}, f"giving {TPU_ACCOUNT} access"),
        ({"method": "GET", "path": f"/storage/v1/b/{BUCKET}?"}, "looking at it is not allowed"),
    )
    for attempt, (refused, words) in enumerate(refusals, start=2):
        google.storage.faults.clear_faults()
        google.storage.faults.fail(403, 100, **refused)
        reason, detail = expect_launch_error(place, place.spec("true", attempt=attempt))
        assert (reason, len(google.made())) == ("bucket_refused", 1)
        assert words in detail


@WAYS
def test_a_port_that_never_opens_is_paid_for_once(make_google_harness, google, way):
    """Nothing would be different at the next attempt."""
    google.cloud.device = ("127.0.0.1", free_port())
    place = make_google_harness(provisioning=way, probe_seconds=1.0)
    reason, detail = expect_launch_error(place)
    assert (reason, google.nodes) == ("tpu_unreachable", [])
    assert "Connection refused" in detail
    assert not REASONS[reason].retry


RESERVED = {"TPU": "us-east5-a/mine"}


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "GRADIENT_TPU__RESERVATIONS names none for TPU"),
        ({"reservations": {"TPU": "europe-west4-a/mine"}}, "europe-west4-a/mine is not in GRADIENT_TPU__ZONES"),
        ({"reservations": RESERVED, "provisioning": "node"}, "GRADIENT_TPU__PROVISIONING is node"),
        ({"pool": {"TPU": ["us-central1-b/mine"]}}, "leave capacity out"),
    ],
)
def test_reserved_capacity_that_cannot_be_had_is_refused(make_google_harness, google, options, words):
    place = make_google_harness(**options)
    reason, detail = expect_launch_error(place, place.spec("true", capacity="reserved"))
    assert (reason, words in detail) == ("option_refused", True), detail
    assert google.made() == []
