"""`gradient-server prune --images`, where there is an engine, and where there is none."""

import pytest

from core.errors import StoreUnavailable
from core.settings import Settings
from core.settings.docker import DockerSettings
from core.settings.worker import MachineSettings
from gradient_server.commands.prune import images
from worker.backends.base import UnusedImage
from worker.backends.docker.backend import DockerBackend

UNUSED = [
    UnusedImage("team/old:1", 1_500_000, 0.0, built=False),
    UnusedImage("gradient-jobs/j1:1", 500_000, 60.0, built=True),
]


@pytest.fixture
def settings(tmp_path):
    docker = DockerSettings(url=f"unix://{tmp_path}/none.sock")
    return Settings(home=tmp_path / "home", machines=MachineSettings(simulate=False), docker=docker)


@pytest.fixture
def asked(monkeypatch):
    """An engine with two images to remove; how it was asked."""
    found = []

    def prune(_backend, **how):
        found.append(how)
        return UNUSED

    monkeypatch.setattr(DockerBackend, "prune_images", prune)
    return found


@pytest.mark.parametrize(("dry_run", "verb"), [(True, "Would be removed"), (False, "Removed")])
def test_what_goes_is_listed(settings, asked, capsys, dry_run, verb):
    assert images.run(settings, dry_run=dry_run, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["team/old:1", "1.5", "MB", "1970-01-01", "00:00", "pulling"]
    assert lines[2].split()[-1] == "building"
    assert lines[-1] == f"{verb}: 2 images (2.0 MB)."
    assert asked == [{"everything": True, "dry_run": dry_run}]


def test_without_an_engine_it_says_where_to_run_it(settings):
    with pytest.raises(StoreUnavailable, match=r"Run this on the worker's machine"):
        images.run(settings, dry_run=True, as_json=False)
