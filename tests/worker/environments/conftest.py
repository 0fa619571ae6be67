"""A package index and an empty cache of environments."""

import pytest
from support.servers.package_index import PackageIndex

from core.settings import Settings
from worker.environments.cache import EnvironmentCache


@pytest.fixture
def index(tmp_path, monkeypatch):
    served = PackageIndex(tmp_path / "index")
    monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
    yield served
    served.close()


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.slow)])
def cache(request, tmp_path):
    """With the isolation of jobs, and without."""
    return EnvironmentCache(Settings(home=tmp_path / "home", process={"sandbox": request.param}))
