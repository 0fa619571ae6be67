"""The backend of `gradient-server up`: what chooses it, what is kept, and what is said about it."""

import io
import os
import pty
import subprocess
import sys

import pytest

from core.settings import Settings
from core.settings.docker import DockerSettings
from core.settings.worker import MachineSettings
from gradient_server import backend_choice
from gradient_server.backend_choice import BackendUnavailable
from gradient_server.checks import engine_access


@pytest.fixture
def settings(tmp_path):
    """Settings whose engine has no socket."""
    return Settings(home=tmp_path / "home", docker=DockerSettings(url=f"unix://{tmp_path}/docker.sock"))


@pytest.fixture
def engine(monkeypatch):
    """An engine that answers."""
    monkeypatch.setattr(backend_choice, "query_engine", lambda _: {"ServerVersion": "27.1"})


class Terminal(io.StringIO):
    """A terminal with what a person types."""

    def isatty(self):
        return True


def answer(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def test_without_an_engine_jobs_are_processes_and_nobody_is_asked(settings, monkeypatch):
    answer(monkeypatch, "y\n")
    chosen = backend_choice.choose(settings, "auto")
    assert chosen.settings.machines.simulate
    assert "docker.sock" in chosen.reason
    assert not (settings.root / "backend").exists()


def test_docker_that_cannot_be_used_is_refused_with_what_is_missing(settings, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendUnavailable, match=r"Docker is not installed.*Install it.*--backend process"):
        backend_choice.choose(settings, "docker")
    assert not (settings.root / "backend").exists()


def test_each_lack_of_the_engine_has_its_own_remedy(settings, tmp_path, monkeypatch):
    (tmp_path / "dockerd").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not running" in engine_access.query_engine(settings.docker).why
    socket = tmp_path / "docker.sock"
    socket.touch()
    monkeypatch.setattr(engine_access.os, "access", lambda *_: False)
    found = engine_access.query_engine(settings.docker)
    assert (found.why, "usermod -aG docker" in found.fix) == (
        f"this user has no access to Docker's socket {socket}",
        True,
    )
    monkeypatch.undo()
    assert "does not answer" in engine_access.query_engine(settings.docker).why


@pytest.mark.usefixtures("engine")
def test_without_a_terminal_nobody_is_asked(settings, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    chosen = backend_choice.choose(settings, "auto")
    assert chosen.settings.machines.simulate
    assert "--backend docker" in chosen.reason


@pytest.mark.usefixtures("engine")
def test_an_argument_counts_more_than_a_setting_and_a_setting_more_than_an_earlier_choice(settings):
    assert not backend_choice.choose(settings, "docker").settings.machines.simulate
    simulated = settings.model_copy(update={"machines": MachineSettings(simulate=True)})
    chosen = backend_choice.choose(simulated, "auto")
    assert (chosen.settings.machines.simulate, chosen.reason) == (True, "GRADIENT_MACHINES__SIMULATE")
    assert backend_choice.with_earlier_choice(simulated).machines.simulate
    assert not backend_choice.with_earlier_choice(settings).machines.simulate
    assert not backend_choice.choose(simulated, "docker").settings.machines.simulate
    assert backend_choice.choose(settings, "process").settings.machines.simulate
    assert backend_choice.with_earlier_choice(settings).machines.simulate


@pytest.mark.integration
def test_a_terminal_gets_the_question_and_docker_starts(tmp_path, docker_server):
    """Asked by the real program, at a real terminal, about a real engine."""
    environment = os.environ | {"GRADIENT_HOME": str(tmp_path / "home"), "GRADIENT_DOCKER__URL": docker_server.url}
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "gradient_server.main", "up", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as server:
        os.close(terminal)
        seen = b""
        try:
            while b"[y/N]" not in seen:
                seen += os.read(main, 4096)
            os.write(main, b"y\n")
            while b"is ready" not in seen or b"Ctrl-C" not in seen:
                seen += os.read(main, 4096)
        finally:
            server.terminate()
            server.wait(60)
            os.close(main)
    assert b"Backend    docker (your answer" in seen
    assert (tmp_path / "home" / "backend").read_text() == "docker\n"
