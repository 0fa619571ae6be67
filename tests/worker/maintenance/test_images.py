"""A worker's report of its host's images."""

import pytest
from sqlalchemy import select

from core.db.models.jobs import HostImage
from core.settings import Settings
from worker.backends.base import LaunchError
from worker.context import WorkerContext
from worker.maintenance.job_sweep import ImageSweep


class Keeper:
    """An engine's images, as far as they are asked for here."""

    def __init__(self):
        self.here = ("b:1", "a:1")
        self.error = None

    def images(self):
        return self.here

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


def held(host):
    with host.database.read() as session:
        return {(one.host, one.reference) for one in session.scalars(select(HostImage))}


def test_what_is_here_is_told_and_told_again_when_it_changes(host, keeper, monkeypatch):
    shelves, writes = ImageSweep(host), []
    monkeypatch.setattr(
        WorkerContext, "write", lambda self, action, write=WorkerContext.write: writes.append(1) or write(self, action)
    )
    shelves.report()
    assert held(host) == {("here", "a:1"), ("here", "b:1")}
    keeper.here = ("a:1", "b:1")
    shelves.report()
    assert len(writes) == 1, "the order alone is no news"
    keeper.here = ()
    shelves.report()
    assert held(host) == set()


def test_an_engine_that_does_not_tell_leaves_the_report_as_it_was(host, keeper):
    shelves = ImageSweep(host)
    shelves.report()
    keeper.here = None
    shelves.report()
    assert len(held(host)) == 2


def test_an_engine_that_is_away_is_no_failure_of_the_sweep(host, keeper):
    assert ImageSweep(host).prune() == 2
    keeper.error = LaunchError("engine_unavailable", "gone")
    assert ImageSweep(host).prune() == 0
