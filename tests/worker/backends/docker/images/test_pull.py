"""Images: pulled from a real registry by a real engine, within limits, and reported by digest."""

import threading
import time

import pytest
from support.deployment import wait_until

from worker.backends.base import LaunchError
from worker.backends.docker.images import pull


def refused(make_image_store, reference, **how):
    with pytest.raises(LaunchError) as error:
        make_image_store.have(reference, **how)
    assert error.value.reason == "image_pull"
    assert reference in error.value.detail
    return error.value.detail


def manifests(registry):
    return [line for line in registry.read_requests() if "/manifests/" in line]


def test_an_image_that_is_here_is_not_asked_for_again_unless_always(registry, make_image_store, make_unique_layers):
    reference, first = registry.add_image("team/model:latest", make_unique_layers())
    place = make_image_store()
    place.have(reference)
    asked = manifests(registry)
    assert place.have(reference).digest == first
    assert manifests(registry) == asked
    _, second = registry.add_image("team/model:latest", make_unique_layers())
    assert place.have(reference, policy="IfNotPresent").digest == first
    assert place.have(reference, policy="Never").digest == first
    assert place.have(reference, policy="Always").digest == second != first


def test_a_jobs_policy_goes_before_the_hosts(registry, make_image_store, make_unique_layers):
    reference, digest = registry.add_image("team/model:1", make_unique_layers())
    place = make_image_store(pull="never")
    assert "settings forbid" in refused(place, reference)
    assert "imagePullPolicy is Never" in refused(make_image_store(), reference, policy="Never")
    assert registry.read_requests() == []
    assert place.have(reference, policy="IfNotPresent").digest == digest


def test_a_pull_has_a_time_limit_also_while_the_registry_says_nothing(registry, make_image_store, make_unique_layers):
    reference, _ = registry.add_image("team/model:1", make_unique_layers())
    registry.configure(stall=True)
    began = time.monotonic()
    assert "the pull took more than 2 seconds" in refused(make_image_store(seconds=2.0), reference)
    assert time.monotonic() - began < 20
    registry.configure()


def test_a_pull_can_be_given_up_while_the_registry_says_nothing(registry, make_image_store, make_unique_layers):
    class Stopped(Exception):
        pass

    reference, _ = registry.add_image("team/model:1", make_unique_layers())
    registry.configure(stall=True)
    place, asked = make_image_store(), threading.Event()

    def progress(*_):
        if any("/manifests/" in line for line in registry.read_requests()):
            asked.set()
            raise Stopped

    with pytest.raises(Stopped):
        place.images.ensure(reference, progress)
    assert asked.is_set()
    registry.configure()
    assert place.have(reference).digest, "the next one pulls it"


def test_a_pull_that_breaks_off_goes_on_when_the_registry_mends(
    registry, make_image_store, make_unique_layers, monkeypatch
):
    monkeypatch.setattr(pull, "REPORT_SECONDS", 0.0)
    reference, digest = registry.add_image("team/model:1", make_unique_layers(size=300_000))
    registry.configure(break_after=100_000)
    place = make_image_store()

    def mend():
        wait_until(lambda: any("retrying" in (detail or "") for _, detail in place.progress), "the engine to say so")
        registry.configure()

    mending = threading.Thread(target=mend)
    mending.start()
    assert place.have(reference).digest == digest
    mending.join()
    assert any("retrying in" in (detail or "") for _, detail in place.progress)


@pytest.mark.parametrize(
    ("how", "says"),
    [({}, "manifest unknown"), ({"require": "Basic YTpi"}, "no basic auth credentials")],
)
def test_an_image_that_cannot_be_had_says_why(registry, make_image_store, how, says):
    registry.configure(**how)
    place = make_image_store()
    assert says in refused(place, f"{registry.host}/team/none:1")
    assert place.images.find(f"{registry.host}/team/none:1") is None


def test_a_registry_that_is_not_there_is_named(make_image_store):
    assert "127.0.0.1:1" in refused(make_image_store(), "127.0.0.1:1/x:1")
