"""The sweep of a host's images."""

import pytest

from core.settings import Settings
from worker.backends.base import LaunchError
from worker.context import WorkerContext
from worker.maintenance.job_sweep import Sweep


class Keeper:
    """An engine's images, as far as they are asked for here."""

    def __init__(self):
        self.error = None

    def prune_images(self, *, everything, dry_run=False):
        assert (everything, dry_run) == (False, False)
        if self.error:
            raise self.error
        return [1, 2]


@pytest.fixture
def keeper(monkeypatch):
    keeper = Keeper()
    monkeypatch.setattr(WorkerContext, "image_backends", lambda _: [keeper])
    return keeper


@pytest.fixture
def host(sqlite_database, tmp_path):
    return WorkerContext.open(Settings(home=tmp_path / "home"), sqlite_database, worker_name="w", hostname="here")


def test_an_engine_that_is_away_is_no_failure_of_the_sweep(host, keeper):
    assert Sweep(host).prune_images() == 2
    keeper.error = LaunchError("engine_unavailable", "gone")
    assert Sweep(host).prune_images() == 0
