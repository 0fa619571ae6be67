"""Private engines, a registry that they pull from, and images to pull."""

import os

import pytest
from support.backend_harness import BackendHarness
from support.servers.image_registry import Registry
from support.servers.private_docker_engine import build_layer, running_engine

from core.settings import Settings
from core.settings.docker import ImageSettings
from worker.backends.docker.engine.client import Engine
from worker.backends.docker.images.pull import TRANSFER_SECONDS, ImageStore


@pytest.fixture
def registry(docker_server, tmp_path):
    """A registry that the shared engine can reach, and nobody else."""
    made = Registry(tmp_path / "registry", docker_server.network)
    yield made
    made.stop()


@pytest.fixture
def make(docker_server, tmp_path):
    places = []

    def place(server=docker_server, **settings):
        made = BackendHarness("docker", tmp_path, server.settings(**settings))
        if server is docker_server:  # another one takes all that it has with it
            places.append(made)
        return made

    yield place
    for one in places:
        one.clear()


@pytest.fixture
def killable_engine():
    """An engine to be killed, apart from the one that other tests use."""
    with running_engine() as server:
        yield server


@pytest.fixture
def clean_engine(docker_server):
    """The shared engine; images that a test leaves are gone afterwards."""
    with docker_server.client() as client:
        before = {one["Id"] for one in client.images()}
    yield docker_server
    with docker_server.client() as client:
        for one in client.images():
            if one["Id"] not in before:
                client.remove_image(one["Id"], force=True)


@pytest.fixture
def make_unique_layers():
    """Layers that no other test has: what an engine has it does not pull again."""

    def make(count=1, size=1000):
        return [build_layer({f"data-{number}": os.urandom(size)}) for number in range(count)]

    return make


class EngineImages:
    """The images of one engine under one GRADIENT_HOME."""

    def __init__(self, server, home, images=None, seconds=TRANSFER_SECONDS, **docker):
        self.settings = Settings(
            home=home,
            docker=server.settings(**docker),
            images=ImageSettings(**(images or {})),
        )
        self.engine = Engine(self.settings.docker)
        self.images = ImageStore(self.engine, self.settings, seconds=seconds)
        self.progress = []
        self.client = server.client

    def have(self, reference, **how):
        return self.images.ensure(reference, lambda *what: self.progress.append(what), **how)

    def recorded_names(self):
        with self.images.records().open() as records:
            return sorted(name for names in records.ours.values() for name in names)


@pytest.fixture
def make_image_store(clean_engine, tmp_path):
    def make(images=None, seconds=TRANSFER_SECONDS, **docker):
        return EngineImages(clean_engine, tmp_path / "home", images, seconds, **{"pull": "missing"} | docker)

    return make
