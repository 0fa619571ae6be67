"""Ends of jobs whose engine was restarted: whether it ended them, or they themselves."""

import signal

import pytest
from support.deployment import wait_until
from support.servers.private_docker_engine import running_engine

from worker.backends.base import Exit
from worker.backends.docker.engine.client import Engine
from worker.runner.control_files import read_control


@pytest.fixture
def unrestored():
    """An engine whose containers end with it."""
    with running_engine(**{"live-restore": False}) as server:
        yield server


@pytest.mark.usefixtures("docker_server")
@pytest.mark.parametrize("crash", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_engine_that_ends_its_containers_is_told_as_the_machine_s_fault(make, unrestored, crash):
    place = make(unrestored)
    spec, handle = place.running("echo up; sleep 600")
    if crash:
        unrestored.kill()
    else:
        unrestored.terminate()
        wait_until(lambda: read_control(spec.control, "exit"), "its end")
    assert place.backend.ended(handle) is None, "nothing is concluded while the engine is away"
    unrestored.start()
    assert place.wait(handle) == Exit(143, "engine_restarted")


@pytest.mark.usefixtures("docker_server")
def test_a_job_that_ends_while_the_restarted_engine_is_asked_for_it_is_told_the_same(make, unrestored, monkeypatch):
    place = make(unrestored)
    spec, handle = place.running("echo up; sleep 600")
    find = Engine.find

    def find_after_restart(engine, name):
        monkeypatch.setattr(Engine, "find", find)
        unrestored.kill()
        unrestored.start()
        wait_until(lambda: read_control(spec.control, "exit"), "its end")
        return find(engine, name)

    monkeypatch.setattr(Engine, "find", find_after_restart)
    assert place.wait(handle) == Exit(143, "engine_restarted")


@pytest.mark.usefixtures("docker_server")
@pytest.mark.parametrize("crash", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_restart_that_turns_live_restore_on_is_told_as_the_machine_s_fault(make, unrestored, crash):
    place = make(unrestored)
    _spec, handle = place.running("echo up; sleep 600")
    if crash:
        unrestored.kill()
        unrestored.start()  # ends its containers as it comes up
        unrestored.set_live_restore(on=True)
        unrestored.signal(signal.SIGHUP)
    else:
        unrestored.terminate()
        unrestored.set_live_restore(on=True)
        unrestored.start()
    assert place.wait(handle) == Exit(143, "engine_restarted")


@pytest.mark.usefixtures("docker_server")
def test_a_sigterm_of_the_job_s_own_under_an_engine_that_came_back_is_its_own(make, killable_engine):
    place = make(killable_engine)
    spec, handle = place.running("echo up; until [ -e go ]; do sleep 0.1; done; kill $$")
    killable_engine.kill()
    killable_engine.start()
    (spec.workspace / "go").touch()
    assert place.wait(handle) == Exit(143)


@pytest.mark.usefixtures("docker_server")
def test_a_sigterm_of_the_job_s_own_is_told_from_one_of_the_engine(make, unrestored):
    place = make(unrestored)
    handle = place.launch(place.spec("kill $$"))
    assert place.wait(handle) == Exit(143)
    _asked, handle = place.running("echo up; sleep 600", attempt=2)
    place.backend.signal(handle, grace=True)
    assert place.wait(handle) == Exit(143)
