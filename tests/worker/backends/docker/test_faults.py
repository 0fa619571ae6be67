"""Failures of containers and their engine, on a real engine."""

import pytest
import requests
from docker.api.client import APIClient
from docker.errors import APIError
from support.deployment import wait_until

from worker.attempt.scratch import Scratch
from worker.backends.base import ARTIFACTS, Exit, LaunchError
from worker.backends.docker.container import launcher
from worker.backends.docker.engine.client import Engine, EngineRefused
from worker.runner.control_files import read_control

HELD = "until [ -e go ]; do sleep 0.1; done"


def test_a_stop_without_an_engine_reaches_the_job(make, killable_engine):
    place = make(killable_engine)
    spec, handle = place.running("trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done")
    killable_engine.kill()
    place.backend.signal(handle, grace=True)
    wait_until(lambda: read_control(spec.control, "exit"), "its end")
    assert place.backend.ended(handle) is None, "whether all of it has ended only the engine knows"
    killable_engine.start()
    assert place.wait(handle) == Exit(3)


def test_a_start_waits_for_an_engine_that_restarts(make, killable_engine):
    place = make(killable_engine)
    killable_engine.kill()
    told = []

    def progress(phase, detail):
        told.append((phase, detail))
        if len(told) == 1:
            killable_engine.start()

    handle = place.backend.launch(place.spec("exit 4"), lambda: None, progress)
    assert place.wait(handle) == Exit(4)
    assert told[0] == ("provisioning", "waiting for the container engine to answer")


def test_a_start_does_not_wait_for_ever(make, killable_engine, monkeypatch):
    monkeypatch.setattr(launcher, "ENGINE_RETRY_SECONDS", 0)
    place = make(killable_engine)
    killable_engine.kill()
    with pytest.raises(LaunchError) as error:
        place.launch(place.spec("exit 4"))
    assert error.value.reason == "engine_unavailable"
    killable_engine.start()


def test_memory_that_runs_out_is_told_from_a_kill(make):
    place = make()
    greedy = place.spec("echo up; tail /dev/zero", memory_mb=64)
    assert place.wait(place.launch(greedy)) == Exit(137, "out_of_memory", "64 MiB", 64 * 1024**2)
    killed = place.spec("kill -9 $$", attempt=2)
    assert place.wait(place.launch(killed)) == Exit(137)


def test_an_engine_that_forgot_its_start_gets_a_new_container(make, monkeypatch):
    place, start, refusals = make(), APIClient.start, []

    def refuse(client, container):
        if not refusals:
            refusals.append(container)
            response = requests.Response()
            response.status_code = 500
            raise APIError("500", response=response, explanation='task "x" already exists')
        return start(client, container)

    monkeypatch.setattr(APIClient, "start", refuse)
    confirmed = []
    handle = place.launch(place.spec("exit 6"), lambda: confirmed.append(1))
    assert place.wait(handle) == Exit(6)
    assert refusals != [handle["container"]]
    assert len(confirmed) == 2, "the lease is looked at again before each start"


def test_who_has_lost_the_lease_takes_nothing_from_who_holds_it(make):
    """Both have found the container and not started it; the zombie goes first."""

    class Lost(Exception):
        pass

    def lose():
        raise Lost

    place, confirmed = make(), []
    spec = place.spec("exit 9")

    def confirm():
        confirmed.append(1)
        with pytest.raises(Lost):
            place.launch(spec, lose)

    handle = place.launch(spec, confirm)
    assert place.wait(handle) == Exit(9)
    assert confirmed == [1], "it had to be made but once"


def test_a_container_that_goes_before_its_shell_is_looked_for_is_made_again(make, docker_server, monkeypatch):
    place, has_file, removed = make(), Engine.has_file, []

    def remove_first(engine, container, path):
        if not removed:
            removed.append(container)
            with docker_server.client() as client:
                client.remove_container(container)
        return has_file(engine, container, path)

    monkeypatch.setattr(Engine, "has_file", remove_first)
    assert place.wait(place.launch(place.spec("exit 6"))) == Exit(6)


def test_a_stop_reaches_a_job_whose_engine_refuses_everything(make, monkeypatch):
    place = make()
    spec, handle = place.running("trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done")

    def refuse(*_):
        raise EngineRefused(500, "the engine is in trouble")

    with monkeypatch.context() as trouble:
        trouble.setattr(Engine, "call", refuse)
        place.backend.signal(handle, grace=True)
        wait_until(lambda: read_control(spec.control, "exit"), "its end")
    assert place.wait(handle) == Exit(3)


def test_a_container_that_ran_is_not_run_again(make, docker_server):
    """An engine that crashed during a start may start the container again."""
    place = make()
    spec = place.spec('echo run >>"$PWD/runs"; exit 8')
    handle = place.launch(spec)
    assert place.wait(handle) == Exit(8)
    name = f"gradient-{spec.name}"
    with docker_server.client() as client:
        client.wait(name)
        client.start(name)
        assert client.wait(name)["StatusCode"] == 97
    assert place.backend.ended(handle) == Exit(8)
    assert (spec.workspace / "runs").read_text() == "run\n"


def test_what_still_saves_after_its_shell_is_gone_is_waited_for(make):
    place = make()
    spec = place.spec(
        f"setsid sh -c 'trap \"{HELD}; echo saved; exit\" TERM; echo up; while :; do sleep 0.1; done' & wait"
    )
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    place.backend.signal(handle, grace=True)
    wait_until(lambda: read_control(spec.control, "exit"), "the shell's end")
    assert place.backend.ended(handle) is None
    (spec.workspace / "go").touch()
    assert place.wait(handle).code == 143
    assert place.output(spec).endswith(b"saved\n")


def test_a_container_without_room_for_one_more_process_can_be_stopped(make):
    place = make(pids=64)
    spec = place.spec("i=0; while [ $i -lt 58 ]; do sleep 600 & i=$((i+1)); done; echo up; wait")
    handle = place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its processes")
    assert 58 < wait_until(lambda: place.backend.sample(handle), "a sample")["processes"] <= 64
    place.backend.signal(handle, grace=True)
    code = wait_until(lambda: read_control(spec.control, "exit"), "the shell's end")
    assert code in {"143", "0"}, "0 is that of `wait`: all of its processes ended before the shell got to run"
    place.backend.signal(handle, grace=False)
    assert place.wait(handle).code == int(code)


def test_a_job_may_do_little(make):
    place = make()
    spec = place.spec(
        "cat /proc/self/status; ulimit -c; ls /var/run /run /.gradient; id; unshare -U id; echo x >/.gradient/run.sh"
    )
    assert place.wait(place.launch(spec)).code != 0
    said = place.output(spec).decode()
    facts = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert {int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert "docker.sock" not in said
    assert "uid=0" not in said
    assert "unshare" in said, "no user namespace, in which it would be root"
    assert said.count("uid=") == 1
    assert "Read-only file system" in said


def test_files_belong_to_the_user_of_the_settings_and_can_be_removed(make):
    place = make(user="12345:12346")
    spec = place.spec(f"id; echo model >{ARTIFACTS}/model; mkdir -m 0 closed {ARTIFACTS}/closed; echo $HOME")
    (spec.workspace / "main.py").write_text("")
    handle = place.launch(spec)
    assert place.wait(handle) == Exit(0)
    assert b"uid=12345(gradient) gid=12346" in place.output(spec)
    assert place.output(spec).endswith(b"/home/gradient\n")
    owner = (spec.artifacts / "model").stat()
    assert (owner.st_uid, owner.st_gid) == (12345, 12346)
    place.backend.destroy(handle)
    scratch = Scratch(place.root / "attempts", spec.job_id, spec.attempt)
    scratch.remove()
    assert not scratch.root.exists()
