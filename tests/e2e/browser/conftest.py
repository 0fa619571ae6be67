"""One service for the tests that look at their own jobs alone."""

from collections.abc import Iterator

import pytest
from support.deployment import Deployment


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("browser") / "home")
    deployment.start_up(GRADIENT_WORKER__SYNC_SECONDS="0.2", GRADIENT_WORKER__SLOTS="8")
    yield deployment
    deployment.stop()
