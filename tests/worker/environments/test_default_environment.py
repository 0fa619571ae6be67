"""The default environment: installed in the background, or by the first job that needs it; its packages."""

import re
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from support.deployment import wait_until

from core.catalogue.default_packages import DEFAULT, TRAINER
from core.settings import Settings
from worker.environments import default_environment
from worker.environments.cache import EnvironmentCache
from worker.environments.default_environment import DefaultEnvironment, service_python
from worker.environments.installer import UvError
from worker.environments.requirement_faults import explain

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


def use(environment):
    steps = []
    wanted = environment.wanted(service_python())
    return environment.use(wanted, None, lambda *step: steps.append(step), lambda: None), steps


def names_of(wanted):
    return {line.partition("==")[0] for line in wanted.lines if "==" in line}


def asked_for():
    lines = [line for file in (DEFAULT, TRAINER) for line in file.with_suffix(".in").read_text().splitlines()]
    return [Requirement(one) for one in lines if not one.startswith(("#", "-r"))]


def test_its_versions_are_those_that_the_service_is_tested_with():
    """After a change of pyproject.toml, uv.lock or the .in files run .ci/lock-default."""
    pinned = re.findall(r"(?m)^([a-z0-9-]+)==([^ ;]+)", DEFAULT.read_text() + TRAINER.read_text())
    for one in asked_for():
        versions = [version for name, version in pinned if name == one.name]
        assert versions, one.name
        assert all(one.specifier.contains(version) for version in versions)
    locked_here = {(one["name"], one["version"]) for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = {name for name, _ in locked_here}
    assert [pin for pin in pinned if pin[0] in ours and pin not in locked_here] == []


def test_the_trainer_finds_all_that_it_requires():
    trainer = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["trainer"]
    assert set(map(Requirement, trainer)) <= set(asked_for())


def test_tensorflow_and_the_trainer_are_only_where_they_are_needed(make_default):
    small = make_default("trainer").wanted(service_python())
    whole = make_default("trainer").wanted(service_python(), trainer=True)
    assert {"numpy", "pandas", "scikit-learn", "matplotlib", "tqdm"} <= names_of(small) < names_of(whole)
    assert "tensorflow-cpu" in names_of(whole) - names_of(small)
    assert not names_of(whole) & {"fastapi", "sqlalchemy", "pydantic", "celery", "uv", "gradient-jobs"}
    assert tuple([folder.name for folder in one.copied] for one in (small, whole)) == ([], ["gradient_trainer"])


def test_an_index_that_fails_for_all_of_many_requirements_is_reported_once(make_default):
    lines = make_default("trainer").wanted(service_python()).lines
    assert not [line for line in lines if line.startswith(("-", "#")) or line.endswith("\\")]
    output = "error: Failed to fetch: `https://pypi.org/simple/`\n  cause: invalid peer certificate: UnknownIssuer\n"
    told = explain(output, [{"line": line, "output": output} for line in lines[1:]], lines)
    assert told.startswith(f"{len(lines) - 1} of {len(lines)} requirements cannot be installed: Failed to fetch")
    assert told.count("UnknownIssuer") == 1


def test_packages_that_an_administrator_names_stand_alone(make_default):
    environment = make_default(["tiny"])
    assert environment.wanted(service_python()) == environment.wanted(service_python(), trainer=True)
    assert environment.wanted(service_python()).lines == ("tiny",)
    assert make_default([]).wanted(service_python()).commands == ()


@pytest.mark.integration
def test_a_job_waits_for_the_installation_that_has_started(make_default, index):
    index.add_wheel("tiny")
    index.opened.clear()
    environment = make_default(["tiny"])
    environment.start()
    wait_until(lambda: index.requests, "the installation to begin")
    threading.Timer(0.5, index.opened.set).start()
    folder, steps = use(environment)
    assert list(folder.glob("lib/*/site-packages/tiny.py"))
    assert steps[0] == ("installing", "the default packages (another job is installing the same packages)")
    requests = len(index.requests)
    assert use(environment) == (folder, [])
    assert len(index.requests) == requests


@pytest.mark.integration
def test_a_failure_is_explained_not_repeated_at_once_and_retried(make_default, index, monkeypatch):
    environment = make_default(["tiny"])
    with pytest.raises(UvError, match="tiny"):
        use(environment)
    requests = len(index.requests)
    index.add_wheel("tiny")
    with pytest.raises(UvError, match="tiny"):
        use(environment)
    assert len(index.requests) == requests, "no job waits for what has just failed"
    later = time.monotonic() + 3600
    monkeypatch.setattr(default_environment, "time", SimpleNamespace(monotonic=lambda: later))
    assert use(environment)[0].is_dir()


@pytest.mark.integration
def test_the_end_of_a_worker_ends_the_installation(make_default, index):
    index.opened.clear()
    environment = make_default(["tiny"])
    environment.start()
    wait_until(lambda: index.requests, "the installation to begin")
    environment.stop()
    index.opened.set()


@pytest.mark.integration
def test_the_environment_without_packages_is_made_first(make_default, index):
    index.opened.clear()
    environment = make_default(["tiny"])
    environment.start()
    wait_until(lambda: index.requests, "the installation to begin")
    bare = default_environment.Wanted(python=service_python())
    assert environment.cache.folder_of(bare).is_dir()
    index.opened.set()
