"""A real service, and a user's folder from which the SDK submits to it."""

import pytest
from support.deployment import Deployment

import gradient_jobs


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", GRADIENT_WORKER__SLOTS="4")
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.fixture
def folder(service, tmp_path, monkeypatch):
    """The current folder, with the service configured as a user would."""
    for name, value in (("HOME", tmp_path / "home"), ("XDG_CACHE_HOME", tmp_path / "cache")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GRADIENT_URL", service.cli_json["url"])
    monkeypatch.setenv("GRADIENT_API_KEY", service.cli_json["apiKey"])
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def client(folder):
    assert folder.is_dir()
    with gradient_jobs.Client() as client:
        yield client
