"""A plain service for the tests of a module."""

from collections.abc import Iterator

import pytest
from support.deployment import Deployment


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home")
    deployment.start_up(SECRET_OF_THE_SERVICE="not for jobs")
    yield deployment
    deployment.stop()
