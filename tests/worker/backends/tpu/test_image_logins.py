"""The login with which a TPU VM pulls its image: the job's own, or that of its account at Google's registries alone."""

import stat
from pathlib import Path

import pytest

from worker.backends.tpu.vm.on_vm import launchers
from worker.backends.tpu.vm.on_vm.launchers import Container
from worker.runner.job_runner import JobFailed

DOCKER = """#!/bin/sh
printf '%s\\n' "$*" >>{folder}/calls
case "$*" in
    "image inspect"*) exit 1 ;;
    *login*) cat >>{folder}/passwords; echo >"$2/config.json"; [ ! -e {folder}/refuse ] || {{ echo denied; exit 1; }} ;;
    *pull*) ls "$2" >{folder}/logins; [ ! -e {folder}/absent ] || {{ echo not found; exit 1; }} ;;
esac
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(launchers, "read_token", lambda: "ya29.of-the-vm")
    return tmp_path


def pull(engine, image, login=None):
    Container(engine).prepare({"image": image, "login": login, "pull": "Always"})
    passwords = engine / "passwords"
    return passwords.read_text() if passwords.exists() else None


@pytest.mark.parametrize(
    "host", ["us-central1-docker.pkg.dev", "europe-docker.pkg.dev", "gcr.io", "eu.gcr.io", "us.gcr.io"]
)
def test_googles_registries_get_a_token_of_the_account(engine, host):
    assert pull(engine, f"{host}/proj/repo/image:1") == "ya29.of-the-vm"
    calls = (engine / "calls").read_text()
    assert f"login --username oauth2accesstoken --password-stdin {host}\n" in calls
    assert "ya29" not in calls
    (config,) = {line.split()[1] for line in calls.splitlines() if line.startswith("--config")}
    assert (engine / "logins").read_text() == "config.json\n", "it is pulled with that login"
    assert not Path(config).exists(), "the login is gone before the job starts"


@pytest.mark.parametrize(
    "image",
    [
        "debian:12",
        "docker.io/library/debian:12",
        "docker.pkg.dev.evil.example/a/b",
        "evil-docker.pkg.dev.example/a/b",
        "evil.example/us-docker.pkg.dev/a",
        "gcr.io.evil.example/a",
        "evilgcr.io/a",
        "us-docker.pkg.dev:443@evil.example/a",
    ],
)
def test_no_other_registry_gets_a_token(engine, image):
    assert pull(engine, image) is None
    assert "login" not in (engine / "calls").read_text()


def test_a_login_of_the_job_that_is_refused_ends_the_start(engine):
    (engine / "refuse").touch()
    login = {"host": "gcr.io", "username": "alice", "password": "secret"}
    with pytest.raises(JobFailed, match=r"gcr\.io rejected the login of alice: denied"):
        pull(engine, "gcr.io/proj/image", login)


def test_a_public_image_needs_no_account(engine, monkeypatch):
    def no_account():
        raise OSError("404")

    monkeypatch.setattr(launchers, "read_token", no_account)
    assert pull(engine, "us-docker.pkg.dev/proj/repo/image") is None


def test_a_refused_login_of_the_account_is_told_if_the_image_cannot_be_pulled(engine):
    (engine / "refuse").touch()
    assert pull(engine, "gcr.io/proj/public") == "ya29.of-the-vm"
    (engine / "absent").touch()
    with pytest.raises(
        JobFailed, match=r"gcr.io/proj/private: not found; gcr.io rejected the login of oauth2accesstoken: denied"
    ):
        pull(engine, "gcr.io/proj/private")
