from collections.abc import Iterator

import pytest
from support.deployment import Deployment


@pytest.fixture(scope="module")
def service_settings() -> dict[str, str]:
    """Settings of the module's service, of which a module may have its own."""
    return {}


@pytest.fixture(scope="module")
def service(service_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A service for the tests of a module."""
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **service_settings)
    deployment.start_up(SECRET_OF_THE_SERVICE="not for jobs")
    yield deployment
    deployment.stop()
