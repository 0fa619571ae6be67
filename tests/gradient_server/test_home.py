"""A host whose GRADIENT_HOME is not the one of the others runs no job, and says so."""

import json
import re
import subprocess

import pytest
from support.deployment import Deployment


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/gradient.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def service(tmp_path, database_url):
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=database_url)
    deployment.migrate()
    yield deployment
    deployment.stop()


@pytest.fixture
def unmounted(tmp_path):
    folder = tmp_path / "unmounted"
    folder.mkdir(mode=0o700)
    return folder


def run(service, *arguments, **settings):
    """Run a command of the server; return its exit code and what it said."""
    process = service.start(*arguments, **settings)
    return process.wait(), process.read_log()


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker"],
        ["api", "--port", "0"],
        ["migrate"],
        *(pytest.param(one, marks=pytest.mark.slow) for one in (["reconcile"], ["prune"], ["secrets", "rotate"])),
    ],
)
def test_nothing_works_in_a_home_that_is_not_mounted(service, unmounted, arguments):
    code, said = run(service, *arguments, GRADIENT_HOME=str(unmounted))
    assert code == 1
    mark = (service.home / "home-mark").read_text().strip()
    [error] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert f"The folder {unmounted} of this host" in error
    assert "has no mark" in error
    assert f"with the mark {mark}" in error


def test_the_home_of_another_installation_is_refused(service, tmp_path, postgres):
    other = Deployment(tmp_path / "other", GRADIENT_DATABASE__URL=postgres.new_database())
    other.migrate()
    code, said = run(service, "worker", GRADIENT_HOME=str(other.home))
    assert code == 1
    for home in (service.home, other.home):
        assert (home / "home-mark").read_text().strip() in said
    [shown] = json.loads(run(service, "workers", "--json")[1])
    assert (shown["state"], f"error: {shown['refusal']}\n") == ("refusing", said)


def test_the_remedy_that_the_error_names_is_one(service, unmounted):
    _, refused = run(service, "reconcile", GRADIENT_HOME=str(unmounted))
    subprocess.run(["sh", "-c", re.search("`(echo .+)`", refused)[1]], check=True)
    assert run(service, "reconcile", GRADIENT_HOME=str(unmounted))[0] == 0


def test_a_job_runs_in_the_shared_home_by_whatever_path(service, tmp_path):
    (tmp_path / "mounted").symlink_to(service.home)
    service.start_api()
    service.start_worker(GRADIENT_HOME=str(tmp_path / "mounted"))
    job = service.submit("echo here")
    service.wait_ended(job)
    assert service.raw_log(job) == b"here\n"


def test_a_worker_marks_no_home(tmp_path, postgres, unmounted):
    """The API's host decides; a worker that is started first may be the one without the mount."""
    service = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=postgres.new_database())
    service.migrate()
    with_mark = (service.home / "home-mark").read_text()
    new = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=postgres.new_database())
    code, said = run(new, "worker", GRADIENT_HOME=str(unmounted))
    assert code == 1
    assert "gradient-server migrate" in said
    new.migrate()
    assert (service.home / "home-mark").read_text() == with_mark, "a new database takes the mark that is there"
    assert not (unmounted / "home-mark").exists()


def test_of_two_first_starts_in_different_homes_one_wins(tmp_path, postgres):
    url = postgres.new_database()
    homes = [Deployment(tmp_path / name, GRADIENT_DATABASE__URL=url) for name in ("one", "two")]
    codes = [one.wait() for one in [home.start("migrate") for home in homes]]
    assert sorted(codes) == [0, 1]
