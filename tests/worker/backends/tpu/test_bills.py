"""The bill of a TPU as Google writes it, against the one that the service tells."""

import threading
import time

import pytest
from support.deployment import wait_until
from support.google.tpu_simulator import LATE_SECONDS, billed

from worker.backends.base import LaunchError

pytestmark = pytest.mark.integration

WAYS = pytest.mark.parametrize("way", [pytest.param("node", marks=pytest.mark.slow), "queued"])


def no_owner(*_):
    return False


@WAYS
def test_it_ends_when_the_deletion_has_ended(make_google_harness, google, way):
    """The answer to the request only says that the deletion has begun."""
    google.cloud.delete_seconds = 2.0
    place = make_google_harness(provisioning=way)
    handle = place.launch(place.spec("true"))
    place.wait(handle)
    place.backend.release(handle)
    assert (place.resource_inventory.billing()[1], len(google.nodes)) == (None, 1)
    ours = billed(place, google)
    assert ours[1] - ours[0] >= 1.5


def test_it_goes_on_while_a_deletion_does_not_succeed(make_google_harness, google):
    place = make_google_harness()
    handle = place.launch(place.spec("true"))
    place.wait(handle)
    google.cloud.stuck.update(one.name for one in google.queued)
    place.backend.release(handle)
    time.sleep(1.5)
    assert place.resource_inventory.billing()[1] is None
    place.backend.remove_orphans(no_owner, no_owner)
    billed(place, google)
    google.cloud.stuck.clear()
    place.backend.remove_orphans(no_owner, no_owner)


def test_a_device_without_a_record_is_not_lost_to_its_job(make_google_harness, google):
    """As after the restore of an older database."""
    place = make_google_harness()
    handle = place.launch(place.spec("true"))
    place.wait(handle)
    place.resource_inventory.rows.clear()
    lost_at = time.time()
    place.backend.remove_orphans(no_owner, no_owner)
    wait_until(lambda: place.resource_inventory.billing()[1] is not None, "the end of the bill")
    ((begin, end),) = google.cloud.bills.values()
    since, until, _ = place.resource_inventory.billing()
    assert begin - LATE_SECONDS < since < min(lost_at, begin + LATE_SECONDS)
    assert end <= until < end + LATE_SECONDS


class Stop:
    """A user's stop, as a start sees it."""

    def __init__(self):
        self.requested_at = None

    def request(self):
        self.requested_at = time.monotonic()

    def check(self):
        if self.requested_at is not None:
            raise LaunchError("stopped_by_user", "before it was started")


def expect_stopped(place, spec, progress, *, within=20.0):
    """Launch what a stop must end within some seconds."""
    with pytest.raises(LaunchError) as raised:
        place.launch(spec, progress=progress)
    seconds = time.monotonic() - spec.check.__self__.requested_at
    assert (raised.value.reason, seconds < within) == ("stopped_by_user", True), seconds


def test_a_stop_ends_the_wait_for_a_device(make_google_harness, google):
    google.cloud.room = 0
    place, stop = make_google_harness(poll_seconds=60.0), Stop()
    spec = place.spec("true", check=stop.check)
    expect_stopped(place, spec, lambda phase, _: phase == "waiting" and threading.Timer(0.5, stop.request).start())


@pytest.mark.parametrize("placement", [pytest.param("grpc", marks=pytest.mark.slow), "vm"])
def test_a_stop_ends_the_copy_to_the_bucket(make_google_harness, google, placement):
    for name in ("/data/set", "workspace.tar.gz"):
        google.storage.faults.slow(6.0, method="UPLOAD", path=name)
    place, stop = make_google_harness(placement=placement), Stop()
    spec = place.spec("true", check=stop.check, env={"TPU_STAGE": "set"} if placement == "grpc" else {})
    (spec.workspace / "set").write_bytes(b"x" * 1000)
    folders = 3  # written first
    copying = threading.Thread(
        target=lambda: (wait_until(lambda: len(uploads(google)) > folders, "the copy"), stop.request())
    )
    copying.start()
    expect_stopped(place, spec, lambda *_: None, within=5.0)
    copying.join()
    assert google.made() == []
    wait_until(lambda: google.objects("jobs/") == [], "what was copied to be removed")


def uploads(google):
    return [one for one in list(google.storage.requests) if "upload" in one]


def test_a_copy_in_many_parts_ends_between_two(make_google_harness, google):
    """Nothing is copied on behind the back of a job that has ended."""
    place, stop = make_google_harness(), Stop()
    spec = place.spec("true", check=stop.check, env={"TPU_STAGE": "set"})
    (spec.workspace / "set").mkdir()
    for number in range(200):
        (spec.workspace / "set" / str(number)).write_bytes(b"x")
    google.storage.faults.slow(0.2, method="UPLOAD", path="/data/")
    expect_stopped(place, spec, lambda _, words: "copying set" in words and threading.Timer(1.0, stop.request).start())
    wait_until(lambda: google.objects("jobs/") == [], "what was copied to be removed")
    assert len(uploads(google)) < 150
