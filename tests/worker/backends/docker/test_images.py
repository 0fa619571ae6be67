"""Pulling, with the engine's messages as Docker sends them."""

import pytest

from core.settings import DockerSettings
from worker.backends.base import BackendError
from worker.backends.docker.engine import EngineRefused
from worker.backends.docker.images import Images, Layers

MESSAGES = [
    {"status": "Pulling from library/python", "id": "3.12-slim"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "aaa"},
    {"status": "Already exists", "progressDetail": {}, "id": "bbb"},
    {"status": "Downloading", "progressDetail": {"current": 1_000_000, "total": 4_000_000}, "id": "aaa"},
    {"status": "Downloading", "progressDetail": {"current": 3_000_000, "total": 4_000_000}, "id": "aaa"},
]
END = [
    {"status": "Download complete", "progressDetail": {}, "id": "aaa"},
    {"status": "Extracting", "progressDetail": {"current": 1, "total": 4_000_000}, "id": "aaa"},
    {"status": "Pull complete", "progressDetail": {}, "id": "aaa"},
    {"status": "Digest: sha256:abc"},
]


class Registry:
    """An engine that has nothing until it has pulled it."""

    def __init__(self, messages=(), *, here=False, refuses=None):
        self.here, self.pulls = here, []
        self._messages, self._refuses = messages, refuses

    def call(self, action):
        return action(self)

    def stream(self, action):
        yield from action(self)

    def inspect_image(self, reference):
        if not self.here:
            raise EngineRefused(404, f"No such image: {reference}")
        return {"Id": "sha256:1"}

    def pull(self, repository, *, tag, stream, decode, auth_config=None):
        assert stream
        assert decode
        self.pulls.append((repository, tag, *((auth_config,) if auth_config else ())))
        if self._refuses:
            raise EngineRefused(500, self._refuses)
        yield from self._messages
        self.here = True


def have(registry, reference="python", auth=None, **settings):
    told = []
    found = Images(registry, DockerSettings(**settings)).have(reference, lambda *what: told.append(what), auth=auth)
    return found, told


def test_layers_and_bytes_are_counted():
    layers = Layers()
    assert str(layers) == "0 of 0 layers, 0.0 of 0.0 MB"
    for message in MESSAGES:
        layers.note(message)
    assert str(layers) == "1 of 2 layers, 3.0 of 4.0 MB"
    for message in END:
        layers.note(message)
    assert str(layers) == "2 of 2 layers, 4.0 of 4.0 MB"


def test_an_image_that_is_here_is_not_pulled():
    registry = Registry(here=True)
    assert have(registry) == ("sha256:1", [])
    assert registry.pulls == []


def test_a_missing_image_is_pulled_in_a_phase_of_its_own():
    registry = Registry(MESSAGES + END)
    found, told = have(registry)
    assert found == "sha256:1"
    assert registry.pulls == [("python", "latest")], "without a tag Docker would pull all of them"
    assert told == [("pulling", "python"), ("provisioning", "python is here")]


def test_always_asks_the_registry_again():
    registry = Registry(MESSAGES + END, here=True)
    have(registry, "host:5000/org/image:tag", pull="always")
    assert registry.pulls == [("host:5000/org/image", "tag")]


def test_the_registry_is_told_who_asks():
    registry = Registry(MESSAGES + END)
    who = {"username": "alice", "password": "open"}
    have(registry, "host:5000/org/image", auth=who)
    assert registry.pulls == [("host:5000/org/image", "latest", who)]


@pytest.mark.parametrize(
    ("registry", "settings", "says"),
    [
        (Registry(), {"pull": "never"}, "never to pull"),
        (Registry(refuses="no such host"), {}, "no such host"),
        (Registry([{"error": "manifest unknown"}]), {}, "manifest unknown"),
        (Registry(MESSAGES), {"pull_seconds": 0}, "not pulled within 0 seconds"),
    ],
)
def test_an_image_that_cannot_be_had_says_why(registry, settings, says):
    with pytest.raises(BackendError, match=says) as refused:
        have(registry, **settings)
    assert refused.value.reason == "image_pull"
    assert "python" in refused.value.detail


def test_a_pull_can_be_given_up():
    class Stopped(Exception):
        pass

    def progress(*_):
        raise Stopped

    with pytest.raises(Stopped):
        Images(Registry(MESSAGES), DockerSettings()).have("python", progress)
