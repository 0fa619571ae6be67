"""The default environment: installed in the background, waited for, retried; and the list of its packages."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.deployment import wait_until

from core.catalogue.default_packages import LOCKED
from core.settings import Settings
from worker.environments import default_environment
from worker.environments.cache import EnvironmentCache
from worker.environments.default_environment import DefaultEnvironment, service_python

ROOT = Path(__file__).parents[3]


@pytest.fixture
def make_default(tmp_path):
    made = []

    def make(packages):
        settings = Settings(home=tmp_path / "home", environments={"default": packages})
        made.append(DefaultEnvironment(settings.environments, EnvironmentCache(settings)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def wait(environment):
    steps = []
    return environment.wait(lambda: None, lambda *step: steps.append(step)), steps


def test_its_versions_are_those_that_the_service_is_tested_with():
    """After a change of pyproject.toml, uv.lock or default_packages.in run .ci/lock-default."""
    named = LOCKED.with_suffix(".in").read_text().splitlines()
    asked = [Requirement(one) for one in named if not one.startswith("#")]
    pinned = re.findall(r"(?m)^([a-z0-9-]+)==([^ ;]+)", LOCKED.read_text())
    for one in asked:
        versions = [version for name, version in pinned if name == one.name]
        assert versions, one.name
        assert all(one.specifier.contains(version) for version in versions)
    trainer = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["trainer"]
    assert set(map(Requirement, trainer)) <= set(asked)
    locked = {(one["name"], one["version"]) for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = {name for name, _ in locked}
    assert [pin for pin in pinned if pin[0] in ours and pin not in locked] == []


def test_none_of_its_packages_belongs_to_the_service(make_default):
    wanted = make_default("trainer").wanted(service_python())
    names = {line.partition("==")[0] for line in wanted.lines if "==" in line}
    assert {"numpy", "pandas", "scikit-learn", "matplotlib", "tqdm", "tensorflow-cpu"} <= names
    assert not names & {"fastapi", "sqlalchemy", "pydantic", "celery", "uv", "gradient-jobs"}
    assert [folder.name for folder in wanted.copied] == ["gradient_trainer"]


@pytest.mark.integration
def test_it_is_installed_once_and_its_steps_are_reported(make_default, index):
    index.add_wheel("tiny")
    index.opened.clear()
    environment = make_default(["tiny"])
    environment.start()
    wait_until(lambda: index.requests, "the installation to begin")
    index.opened.set()
    failure, steps = wait(environment)
    assert failure is None
    assert steps[0] == ("installing", "the default packages")
    requests = len(index.requests)
    assert wait(environment)[0] is None
    assert wait(make_default(["tiny"])) == (None, []) or len(index.requests) == requests


@pytest.mark.integration
def test_a_failure_is_explained_and_retried(make_default, index, monkeypatch):
    monkeypatch.setattr(default_environment, "_FIRST_PAUSE_SECONDS", 0.01)
    environment = make_default(["tiny"])
    assert "tiny" in wait(environment)[0]
    index.add_wheel("tiny")
    wait_until(lambda: wait(environment)[0] is None, "the retry")


@pytest.mark.integration
def test_the_end_of_a_worker_ends_the_installation(make_default, index):
    index.opened.clear()
    environment = make_default(["tiny"])
    environment.start()
    wait_until(lambda: index.requests, "the installation to begin")
    environment.stop()
    index.opened.set()


def test_without_packages_nothing_is_installed(make_default):
    environment = make_default([])
    environment.start()
    assert wait(environment) == (None, [])
    assert environment.wanted(Path(sys.executable)).lines == ()


def test_a_fault_of_ours_keeps_no_job_waiting(make_default, monkeypatch):
    def fail(*_):
        raise ModuleNotFoundError("No package metadata was found for pip")

    monkeypatch.setattr(EnvironmentCache, "use", fail)
    why, _ = wait(make_default(["tiny"]))
    assert "No package metadata was found for pip" in why
