"""A host without a supervisor, and the attempts that it claims."""

import pytest

from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.settings import Settings
from worker.context import WorkerContext


@pytest.fixture
def host(database, tmp_path):
    return WorkerContext.open(Settings(home=tmp_path / "home"), database, worker_name="w1", hostname="here")


@pytest.fixture
def claim(host, submit):
    def make(command, **spec):
        submit(command, **spec)
        return host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("process",))))

    return make
