"""Flex-start capacity with production settings: requested over HTTPS, and deleted by Google after its run duration."""

import pytest
from support.deployment import wait_until
from support.google.tpu_simulator import billed, expect_launch_error

from core.jobs.reasons import REASONS

pytestmark = pytest.mark.integration


def flex_start(place, command="true", time_limit=3600, stop_grace=5, **options):
    return place.spec(command, capacity="flex-start", time_limit=time_limit, stop_grace=stop_grace, **options)


@pytest.mark.parametrize("placement", ["grpc", "vm"])
def test_the_end_of_the_run_duration_has_its_own_reason(make_google_harness, google, placement):
    vm = {"vm_poll_seconds": 0.05, "unhealthy_seconds": 20.0, "probe_seconds": 60.0} if placement == "vm" else {}
    place = make_google_harness(placement=placement, **vm)
    spec = flex_start(place, 'trap "exit 0" TERM; echo up; while :; do sleep 0.02; done', stop_grace=1)
    handle = place.launch(spec)
    wait_until(lambda: place.backend.ended(handle) or place.output(spec), "its first line")
    google.cloud.suspend(google.queued[0].name.rpartition("/")[2], by_user=False)
    exit_ = place.wait(handle)
    assert (exit_.reason, "is SUSPENDED" in exit_.detail) == ("tpu_expired", True), exit_
    assert not REASONS["tpu_expired"].retry, "another attempt would be paid for, and end in the same way"
    billed(place, google)


def test_it_is_billed_at_its_own_price(make_google_harness, tmp_path, monkeypatch):
    prices = tmp_path / "machines.toml"
    prices.write_text('["TPU"]\nflex_start_price_per_hour = 0.75\n')
    for override, price in ((None, None), (prices, 0.75)):
        place = make_google_harness()
        catalogue = type(place.backend.catalogue).load(override_path=override)
        monkeypatch.setattr(place.backend, "catalogue", catalogue)
        handle = place.launch(flex_start(place))
        assert place.resource_inventory.billing()[2] == price
        place.backend.destroy(handle)


@pytest.mark.parametrize("options", [{"provisioning": "node"}, {"pool": {"TPU": ["us-central1-b/mine"]}}])
def test_it_needs_queued_resources(make_google_harness, google, options):
    place = make_google_harness(**options)
    reason, detail = expect_launch_error(place, flex_start(place))
    assert (reason, "queued resources" in detail or "pool" in detail, google.made()) == ("option_refused", True, [])
