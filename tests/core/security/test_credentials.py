"""Secrets and sign-ins for registries in the record: who gets which, and until when."""

import pytest
from sqlalchemy import func, select

from core.catalogue.registry_hosts import parse_host, registry_host
from core.db.models.credentials import JobRegistryPassword, Secret
from core.errors import SecretUnreadable, SpecInvalid
from core.jobs import lifecycle
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings import Settings

PRIVATE = {"container": "registry.example/team/image:1", "registry_username": "alice"}


@pytest.fixture
def vault(tmp_path):
    return Vault(Settings(home=tmp_path / "home"))


@pytest.fixture
def put(database, vault):
    def put(name, value, project_id=ALL_PROJECTS):
        with database.write() as session:
            return credentials.put_secret(session, vault, project_id, name, value)[1]

    return put


def values(database, vault, job):
    with database.read() as session:
        return credentials.resolve_env(session, vault, job)


def login(database, vault, job, image="registry.example/team/image:1", *, push=False):
    with database.read() as session:
        found = credentials.registry_login_for(session, vault, job, image, push=push)
    return found and (found.host, found.username, found.password)


def test_a_projects_own_goes_before_everybodys_and_another_ones_is_not_seen(database, vault, put, submit):
    job = submit(env_vars={"A": "secret:a", "B": "secret:b", "C": "plain"})
    other = submit(project="other").project_id
    assert [put("a", "all"), put("a", "own", job.project_id), put("b", "all"), put("b", "theirs", other)] == [True] * 4
    assert values(database, vault, job) == {"A": "own", "B": "all", "C": "plain"}
    assert put("a", "own, changed", job.project_id) is False
    assert values(database, vault, job)["A"] == "own, changed"
    with database.write() as session:
        credentials.delete_secret(session, job.project_id, "a")
    assert values(database, vault, job)["A"] == "all"
    with database.read() as session:
        assert [secret.name for secret in credentials.secrets_of(session, ALL_PROJECTS)] == ["a", "b"]
        assert "own" not in "".join(secret.sealed for secret in session.scalars(select(Secret)))


def test_a_value_moved_to_another_name_is_of_no_use(database, vault, put, submit):
    """Somebody who can write to the database cannot read another project's secret through a job of their own."""
    job = submit(env_vars={"A": "secret:mine"})
    put("mine", "x")
    put("theirs", "their value", "prother")
    with database.write() as session:
        theirs = session.scalars(select(Secret).where(Secret.name == "theirs")).one()
        session.scalars(select(Secret).where(Secret.name == "mine")).one().sealed = theirs.sealed
    with pytest.raises(SecretUnreadable, match="secret mine"):
        values(database, vault, job)


@pytest.mark.parametrize("value", ["secret:", "secret:a b", "secret:9"])
def test_nothing_but_a_name_follows_the_prefix(value):
    with pytest.raises(SpecInvalid, match="begins with secret:"):
        JobSpec(machine_type="CPU", command="true", env_vars={"A": value})


def test_a_variable_that_the_service_shows_is_no_secret():
    with pytest.raises(SpecInvalid, match="shows its value"):
        JobSpec(machine_type="CPU", command="true", env_vars={"SIMULATE_START_FAILURE": "secret:a"})


def test_everything_is_sealed_again_but_what_cannot_be_read(database, vault, put, submit, tmp_path):
    job = submit(env_vars={"A": "secret:a"})
    put("a", "value")
    with database.write() as session:
        credentials.put_registry(session, vault, ALL_PROJECTS, "registry.example", "bob", "stored")
        lost = Vault(Settings(home=tmp_path / "lost"))
        credentials.put_secret(session, lost, ALL_PROJECTS, "b", "x")
    before = (tmp_path / "home" / "secrets.key").read_text()
    vault.add_key()
    with database.write() as session:
        done, failed = credentials.reencrypt_all(session, vault)
    assert (done, [problem.split(":")[0] for problem in failed]) == (2, ["secret b"])
    (tmp_path / "home" / "secrets.key").write_text(vault.keys()[0])
    assert values(database, vault, job) == {"A": "value"}
    assert login(database, vault, job) == ("registry.example", "bob", "stored")
    assert vault.keys()[0] not in before


# ---- Registries


def test_a_jobs_own_word_goes_before_what_is_stored_and_ends_with_it(database, vault, submit):
    plain, own = submit(), submit(max_attempts=2, **PRIVATE)
    with database.write() as session:
        assert credentials.put_registry(session, vault, ALL_PROJECTS, "https://Registry.Example/", "bob", "stored")[1]
        credentials.save_job_login(session, vault, own.id, "brought along")
    assert login(database, vault, plain) == ("registry.example", "bob", "stored")
    assert login(database, vault, plain, "other.example/image") is None
    assert login(database, vault, plain, "image") is None
    assert login(database, vault, own) == ("registry.example", "alice", "brought along")
    ended(database)
    assert kept(database) == 1
    job = ended(database, "exit_nonzero", 1)
    assert (job.id, job.state) == (own.id, "queued")
    assert kept(database) == 1, "another attempt needs it"
    with database.write() as session:
        lifecycle.request_stop(session, own.id)
    assert kept(database) == 0
    assert login(database, vault, own) is None


def ended(database, reason="completed", code=0):
    with database.write() as session:
        job = claims.claim(session, WorkerOffer("w", "h", ("process",)))
        job = lifecycle.mark_finishing(session, lifecycle.mark_running(session, job, {}), reason, exit_code=code)
        return lifecycle.finish(session, job, artifacts_state="none")


def kept(database):
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(JobRegistryPassword))


@pytest.mark.parametrize(
    ("reference", "host"),
    [
        ("python:3.12", "docker.io"),
        ("library/python", "docker.io"),
        ("docker.io/library/python", "docker.io"),
        ("index.docker.io/team/image", "docker.io"),
        ("localhost/image", "localhost"),
        ("ghcr.io/team/image:1", "ghcr.io"),
        ("127.0.0.1:5000/team/image@sha256:abc", "127.0.0.1:5000"),
    ],
)
def test_a_references_registry_is_the_one_that_docker_asks(reference, host):
    assert registry_host(reference) == host
    assert parse_host(host) == host


def test_a_projects_account_serves_no_other_project_and_goes_before_everybodys(database, vault, submit):
    job, stranger = submit(), submit(project="other")
    with database.write() as session:
        credentials.put_registry(session, vault, job.project_id, "registry.example", "own", "secret")
    assert login(database, vault, job) == ("registry.example", "own", "secret")
    assert login(database, vault, stranger) is None
    with database.write() as session:
        credentials.put_registry(session, vault, ALL_PROJECTS, "registry.example", "bob", "shared")
        assert [one.host for one in credentials.registries(session, job.project_id)] == ["registry.example"]
    assert login(database, vault, job)[1] == "own"
    assert login(database, vault, stranger)[1] == "bob"
    with database.write() as session:
        credentials.delete_registry(session, job.project_id, "registry.example")
    assert login(database, vault, job)[1] == "bob"


def test_an_account_that_was_stored_for_pulls_pushes_nothing(database, vault, submit):
    job, own = submit(), submit(**PRIVATE)
    with database.write() as session:
        credentials.put_registry(session, vault, job.project_id, "registry.example", "reader", "r")
        credentials.save_job_login(session, vault, own.id, "brought along")
    assert login(database, vault, job, push=True) is None
    with database.write() as session:
        credentials.put_registry(session, vault, ALL_PROJECTS, "registry.example", "writer", "w", push=True)
    assert (login(database, vault, job)[1], login(database, vault, job, push=True)[1]) == ("reader", "writer")
    assert login(database, vault, own, push=True)[1] == "alice", "the job's own word is for its own image"
