"""Images that a registry gave to an account are not run by jobs that do not have it, though they lie on the host."""

import base64
import os

import pytest
from support.servers.private_docker_engine import build_layer

from worker.backends.base import LaunchError

ALICE = {"username": "alice", "password": "canary-of-alice"}
MALLORY = {"username": "mallory", "password": "canary-of-mallory"}


def basic(auth):
    return "Basic " + base64.b64encode(f"{auth['username']}:{auth['password']}".encode()).decode()


@pytest.fixture
def private(registry):
    """An image that its registry gives to alice alone."""
    reference, _ = registry.add_image("team/private:1", [build_layer({"weights": os.urandom(1000)})])
    registry.configure(require=basic(ALICE))
    return reference


@pytest.mark.parametrize(
    "auth", [pytest.param(None, marks=pytest.mark.slow), MALLORY], ids=["nobody", "another account"]
)
def test_what_was_pulled_by_an_account_runs_for_nobody_else(private, make_image_store, auth):
    host = make_image_store()
    found = host.have(private, auth=ALICE)
    for reference in (private, found.id, found.digest):
        for policy in (None, "IfNotPresent", "Never", "Always"):
            with pytest.raises(LaunchError) as error:
                host.have(reference, policy=policy, auth=auth)
            assert error.value.reason == "image_pull"
    assert host.images.find(private) == found, "it is still there"


def test_what_the_registry_gives_to_everybody_runs_for_everybody(private, make_image_store, registry):
    host = make_image_store()
    found = host.have(private, auth=ALICE)
    registry.configure()
    assert host.have(private) == found, "the registry was asked anew"
    registry.configure(require=basic(ALICE))
    assert host.have(private, auth=MALLORY) == found


def test_no_password_can_be_read_from_what_is_remembered(private, make_image_store):
    host = make_image_store()
    host.have(private, auth=ALICE)
    kept = b"".join(file.read_bytes() for file in (host.settings.root / "images").iterdir())
    assert ALICE["password"].encode() not in kept
