"""What the doctor says of the container engine."""

from core.settings import DockerSettings, MachineSettings, Settings
from gradient_server.checks import containers
from gradient_server.checks.finding import Status


def settings(tmp_path, url, *, simulate=False):
    return Settings(home=tmp_path, machines=MachineSettings(simulate=simulate), docker=DockerSettings(url=url))


def test_an_engine_that_answers(docker_server, tmp_path):
    docker, cards = containers.check(settings(tmp_path, docker_server.url))
    assert (docker.check, docker.status) == ("docker", Status.OK)
    assert (cards.check, cards.status) == ("cards", Status.OK)


def test_an_engine_that_is_not_there(tmp_path):
    (found,) = containers.check(settings(tmp_path, f"unix://{tmp_path}/none.sock"))
    assert found.status is Status.WARNING
    assert "GRADIENT_DOCKER__URL" in found.fix


def test_simulated_machines_need_none(tmp_path):
    assert list(containers.check(settings(tmp_path, f"unix://{tmp_path}/none.sock", simulate=True))) == []


def test_an_engine_whose_restart_ends_jobs_is_a_problem():
    found = containers.engine_found({"ServerVersion": "27.1", "LiveRestoreEnabled": False})
    assert (found.status, "live-restore" in found.fix) == (Status.PROBLEM, True)


def test_cards_that_cannot_be_handed_over_are_a_problem():
    assert containers.cards(("0",), {"Runtimes": {"runc": {}}}).status is Status.PROBLEM
    assert containers.cards(("0", "1"), {"Runtimes": {"nvidia": {}}}).message.startswith("2 NVIDIA cards")
    assert containers.cards((), {}).status is Status.OK
