"""Refusals, rotated keys, clocks and addresses, with production settings: Google's clients over TLS."""

import json
import os
import shutil
import time

import grpc
import pytest
from support.deployment import wait_until
from support.google.production import PROJECT
from support.google.tpu_faults import TpuFault
from support.google.tpu_simulator import LATE_SECONDS, NO_RESOURCES, expect_launch_error

from core.jobs.reasons import REASONS
from gradient_server.checks import tpus
from gradient_server.checks.finding import Status
from worker.backends.base import LaunchError
from worker.backends.tpu.storage.errors import BucketRefused

pytestmark = pytest.mark.integration

NOT_THERE, DENIED, NO_KEY = (
    TpuFault(grpc.StatusCode.NOT_FOUND, "Location us-central1-b is not found"),
    TpuFault(grpc.StatusCode.PERMISSION_DENIED, "Permission 'tpu.nodes.get' denied"),
    TpuFault(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials."),
)
ON_VM = {"placement": "vm", "vm_poll_seconds": 0.05, "probe_seconds": 60.0, "unhealthy_seconds": 20.0}


def hide_zone(google, zone="us-central1-b"):
    """Have a zone answer as one that does not exist."""
    google.tpus.hidden.add(zone)


def waits_for_capacity(place, google, then):
    """Launch a job that waits in the queue; do something once it waits, and make room after that."""
    google.cloud.room, said = 0, []

    def progress(_, words):
        said.append(words)
        if "WAITING_FOR_RESOURCES" in words and google.cloud.room == 0:
            then()
            google.cloud.room = 100

    return place.launch(place.spec("true"), progress=progress), said


@pytest.mark.parametrize("way", ["node", "queued"])
def test_a_zone_that_google_does_not_know_is_passed_over(make_google_harness, google, way):
    google.cloud.offered["us-west4-a"].append("v2-8")
    hide_zone(google)
    place = make_google_harness(provisioning=way, zones=["us-central1-b", "us-west4-a"])
    handle = place.launch(place.spec("true"))
    assert handle["allocation"]["zone"] == "us-west4-a"
    place.wait(handle)
    place.backend.destroy(handle)  # and does not wait for the zone in which nothing was made
    google.tpus.hidden.clear()


def test_without_any_zone_that_google_knows_it_is_denied(make_google_harness, google):
    hide_zone(google)
    reason, detail = expect_launch_error(make_google_harness(zones=["us-central1-b"]))
    assert (reason, "us-central1-b" in detail, google.made()) == ("tpu_denied", True, [])
    google.tpus.hidden.clear()


def test_a_zone_that_google_does_not_know_does_not_stop_the_sweep_of_others(make_google_harness, google):
    place = make_google_harness(zones=["us-east5-b", "us-central1-b"])
    place.wait(place.launch(place.spec("true")))
    place.resource_inventory.rows.clear()
    hide_zone(google, "us-east5-b")
    place.backend.remove_orphans(lambda *_: False, lambda _: True)
    wait_until(lambda: google.cloud.remaining_resources() == NO_RESOURCES, "the node to be swept")
    google.tpus.hidden.clear()


def test_the_doctor_names_a_zone_that_google_does_not_know(make_google_harness, google):
    hide_zone(google)
    found = list(tpus.check(make_google_harness().settings))
    wrong = [one for one in found if one.check == "tpu-access" and one.status is Status.PROBLEM]
    assert ["us-central1-b" in one.message and "GRADIENT_TPU__ZONES" in one.fix for one in wrong] == [True]
    assert any(one.check == "tpu-access" and one.status is Status.OK for one in found)
    assert len([one for one in found if one.check == "tpu-offer" and one.status is Status.WARNING]) == 1


def test_a_zone_that_is_hidden_while_a_job_runs_says_nothing_of_its_node(make_google_harness, google):
    place = make_google_harness()
    _, handle = place.running("echo up; sleep 1.5; exit 3")
    hide_zone(google)
    exit_ = place.wait(handle)
    assert (exit_.code, exit_.reason) == (3, None)
    with pytest.raises(LaunchError, match="could not be deleted"):
        place.backend.destroy(handle)
    google.tpus.hidden.clear()
    google.tpus.hidden.clear()
    place.backend.destroy(handle)
    assert google.nodes == []


@pytest.mark.parametrize("fault", [DENIED, NO_KEY])
def test_a_refused_look_does_not_cost_a_place_in_the_queue(make_google_harness, google, fault):
    place = make_google_harness()
    handle, said = waits_for_capacity(place, google, lambda: google.tpus.inject("GetQueuedResource", fault))
    assert place.wait(handle).code == 0
    assert len(google.made()) == 1
    assert any(f"requested again, because Google reports: {fault.message}" in one for one in said)


@pytest.mark.parametrize("method", ["GetQueuedResource", "CreateQueuedResource"])
def test_a_role_that_was_just_granted_is_waited_for(make_google_harness, google, method):
    google.tpus.inject(method, TpuFault(DENIED.code, DENIED.message, times=3))
    place, said = make_google_harness(grant_seconds=30.0), []
    handle = place.launch(place.spec("true"), progress=lambda _, words: said.append(words))
    assert place.wait(handle).code == 0
    assert any(f"because Google reports: {DENIED.message} (until " in one for one in said)


@pytest.mark.parametrize(
    ("way", "method"),
    [
        pytest.param("node", "CreateNode", marks=pytest.mark.slow),
        ("queued", "CreateQueuedResource"),
        pytest.param("queued", "GetQueuedResource", marks=pytest.mark.slow),
    ],
)
def test_a_delay_that_google_asks_for_is_waited(make_google_harness, google, way, method):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    google.tpus.inject(method, TpuFault(code, "Too many", reason="RATE_LIMIT_EXCEEDED", delay=1.5))
    place, began = make_google_harness(provisioning=way), time.monotonic()
    handle = place.launch(place.spec("true"))
    assert time.monotonic() - began > 1.5
    assert place.wait(handle).code == 0


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_role_on_the_bucket_that_was_just_granted_is_waited_for_by_every_job(make_google_harness, google, count):
    """Also by a job that did not make the grant, and for the worker's own role."""
    place = make_google_harness(service_account=f"tpu@{PROJECT}.iam.gserviceaccount.com", grant_seconds=30.0)
    place.wait(place.launch(place.spec("true")))
    google.storage.faults.fail(403, count, method="UPLOAD", path="/.probe-" if count == 1 else "/model/")
    assert place.wait(place.launch(place.spec("true", attempt=2))).code == 0


def test_a_queued_resource_that_a_person_deletes_is_asked_for_again_and_said_so(make_google_harness, google):
    place = make_google_harness()
    handle, said = waits_for_capacity(
        place, google, lambda: google.cloud.delete_queued(google.queued[0].name, force=True)
    )
    assert place.wait(handle).code == 0
    assert any("requested again after something other than this service deleted it" in one for one in said)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Quota exceeded for quota metric 'Create requests' and limit 'Requests per minute'", "tpu_api_unavailable"),
        ("Resource has been exhausted (e.g. check quota).", "tpu_api_unavailable"),
        ("Quota limit 'TPUV2sPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0", "tpu_quota"),
        ("There is no more capacity in the zone", "tpu_capacity"),
    ],
)
def test_too_many_requests_are_no_quota_of_tpus(make_google_harness, google, words, reason):
    google.tpus.inject("CreateQueuedResource", TpuFault(grpc.StatusCode.RESOURCE_EXHAUSTED, words, times=0))
    assert expect_launch_error(make_google_harness(api_retry_seconds=0.3))[0] == reason


@pytest.mark.parametrize("told", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_a_slice_runs_on_as_many_hosts_as_it_has(make_google_harness, google, told):
    google.cloud.endpoints = told
    reason, detail = expect_launch_error(make_google_harness("TPU v5e-16", **ON_VM | {"unhealthy_seconds": 0.3}))
    assert (reason, google.nodes) == (("tpu_unhealthy" if told == 3 else "tpu_denied"), [])
    assert str(told) in detail
    assert "4" in detail


def test_a_node_that_comes_back_at_another_address_ends_its_job(make_google_harness, google):
    place = make_google_harness()
    _, handle = place.running("echo up; sleep 600")
    google.node().network_endpoints[0].ip_address = "127.0.0.2"
    exit_ = place.wait(handle)
    assert (exit_.reason, "came back at 127.0.0.2" in exit_.detail) == ("tpu_lost", True)
    place.backend.destroy(handle)
    assert google.nodes == []


def test_a_key_that_is_rotated_at_its_path_is_read_without_a_restart(
    make_google_harness, google, tmp_path, monkeypatch
):
    key = tmp_path / "key.json"
    shutil.copy(os.environ["GOOGLE_APPLICATION_CREDENTIALS"], key)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    place = make_google_harness()
    _, handle = place.running("echo up; sleep 600")
    new = json.loads(key.read_text()) | {"private_key_id": "2", "token_uri": "https://oauth2.googleapis.com/token?new"}
    google.tpus.inject("*", TpuFault(NO_KEY.code, NO_KEY.message, times=3))
    wait_until(
        lambda: (
            place.backend.ended(handle) or "not checked since" in (place.resource_inventory.rows[0]["detail"] or "")
        ),
        "`tpus list` to say so",
    )
    google.tpus.inject("*", NO_KEY)
    place.backend.remove_orphans(lambda *_: True, lambda _: True)
    assert NO_KEY.message in place.resource_inventory.refusal  # for the dashboard, and /readiness
    key.write_text(json.dumps(new))
    renewed = lambda: any(one.endswith("/token?new") for one in google.storage.requests)  # noqa: E731 - it is said twice
    wait_until(lambda: place.backend.ended(handle) or renewed(), "a token of the new key")
    assert (renewed(), place.backend.ended(handle)) == (True, None)
    place.backend.remove_orphans(lambda *_: True, lambda _: True)
    assert place.resource_inventory.refusal is None
    place.backend.signal(handle, grace=True)
    place.wait(handle)
    place.backend.destroy(handle)
    assert google.nodes == []


@pytest.mark.parametrize("ahead", [300.0, pytest.param(-300.0, marks=pytest.mark.slow)])
def test_a_clock_of_googles_that_disagrees_does_not_make_a_node_free(make_google_harness, google, ahead):
    google.cloud.clock_ahead = ahead
    place = make_google_harness(provisioning="node")
    handle = place.launch(place.spec("sleep 2"))
    place.wait(handle)
    place.backend.destroy(handle)
    wait_until(lambda: place.resource_inventory.billing()[1] is not None, "the end of the bill")
    [(begin, end)] = google.cloud.bills.values()
    since, until, _ = place.resource_inventory.billing()
    assert 2 <= until - since < end - begin + LATE_SECONDS


def test_a_job_on_its_vm_ends_without_an_engine_on_the_workers_host(make_google_harness, tmp_path):
    engine = {"url": f"unix://{tmp_path}/no-engine.sock"}
    place = make_google_harness("TPU v5e", runner="docker", docker=engine, **ON_VM)
    spec = place.spec('echo kept >"$GRADIENT_ARTIFACTS_DIR/model"')
    handle = place.launch(spec)
    assert place.wait(handle).code == 0
    place.backend.destroy(handle)
    assert (spec.artifacts / "model").read_text() == "kept\n"


def test_a_pool_without_its_node_is_a_mistake_in_the_settings(make_google_harness):
    pool = {"TPU": ["us-central1-b/gone"]}
    reason, detail = expect_launch_error(make_google_harness(pool=pool))
    assert (reason, "GRADIENT_TPU__POOL" in detail, REASONS[reason].retry) == ("tpu_denied", True, False)


def test_a_node_that_only_the_list_has_is_there(make_google_harness, google):
    """A read of a node can lag behind its creation."""
    google.tpus.inject("GetNode", TpuFault(grpc.StatusCode.NOT_FOUND, "Resource was not found", times=20))
    place = make_google_harness(provisioning="node")
    assert place.wait(place.launch(place.spec("true"))).code == 0
    assert len(google.made()) == 1


@pytest.mark.parametrize("may_sign", [True, False])
def test_an_account_that_may_not_sign_is_named_before_anything_bills(
    make_google_harness, google, monkeypatch, may_sign
):
    """A machine's own account, for which Google signs if it has a role on itself."""
    place = make_google_harness("TPU v5e", **ON_VM)
    bucket = place.backend.open_bucket("us-west4")
    bucket.ensure()
    client = bucket._bucket.client
    monkeypatch.setattr(client, "_credentials", _MachineCredentials(client._credentials))
    if may_sign:
        assert place.wait(place.launch(place.spec("true"))).code == 0
        assert "sign its URLs" in bucket.inspect(None, signs=True).statement
        return
    google.storage.faults.fail(403, 100, path=":signBlob")
    reason, detail = expect_launch_error(place)
    assert (reason, "roles/iam.serviceAccountTokenCreator" in detail, google.made()) == ("bucket_refused", True, [])
    with pytest.raises(BucketRefused, match=r"iam\.serviceAccountTokenCreator"):
        bucket.inspect(None, signs=True)  # as the doctor


class _MachineCredentials:
    """Credentials of a machine, which have no key."""

    service_account_email = "worker@proj.iam.gserviceaccount.com"

    def __init__(self, inner):
        self._inner = inner
        self.valid = True

    def __getattr__(self, name):
        return getattr(self._inner, name)
