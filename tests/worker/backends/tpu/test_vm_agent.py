"""The agent on a TPU VM, where the network or a worker fails it."""

import http.client
import io
import json
import time

import pytest

from worker.backends.tpu.vm.agent import __main__ as module
from worker.backends.tpu.vm.agent import bucket, deletion, runners

CUT_OFF = http.client.IncompleteRead(b"half of it")


@pytest.fixture
def make_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_VM_RUN", "process")
    monkeypatch.setattr(module, "read_rank", lambda: 1)

    def make(**settings):
        given = {"slice": False, "prefix": "p/", "model": "m/", "bucket": "b", "token_url": "", "seconds": 0.01}
        given |= {"abandoned_seconds": 0.0, "collect_seconds": 0.0, "resources": ["the node"]}
        (tmp_path / "vm.json").write_text(json.dumps(given | settings))
        return module.Agent(tmp_path)

    return make


def test_a_host_of_a_slice_whose_job_never_came_deletes_the_node(make_agent, monkeypatch):
    """Its worker died between the creation of the node and the delivery of the job."""
    deleted = []
    monkeypatch.setattr(module, "delete_vm", deleted.append)
    agent = make_agent(slice=True)
    agent._over.set()  # not to wait for the outputs
    agent._guard()
    assert deleted == [["the node"]]


def test_an_answer_that_is_cut_off_does_not_end_the_signs_of_life(make_agent):
    agent, tries = make_agent(), []

    def beat():
        tries.append(1)
        if len(tries) < 3:
            raise CUT_OFF
        agent._over.set()

    agent._repeat(beat)
    assert len(tries) == 3


def test_outputs_that_cannot_be_sent_keep_the_vm_no_longer_than_allowed(make_agent, monkeypatch, tmp_path):
    agent = make_agent()
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text("3\n")
    tries = iter([CUT_OFF] * 3)

    def refuse():
        raise next(tries)

    monkeypatch.setattr(agent, "_send_artifacts", refuse)
    end = agent._monitor()
    assert end["code"] == 3
    assert "not sent" in end["missing"]


def test_an_engine_that_restarts_does_not_end_the_job(tmp_path, monkeypatch):
    engine, answer = tmp_path / "docker", tmp_path / "answer"
    engine.write_text(f"#!/bin/sh\n. {answer}\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    container = runners.Container(tmp_path)
    for silence in (0.0, runners._ENGINE_SECONDS):
        answer.write_text("echo true")
        assert container.running()
        answer.write_text("echo 'Cannot connect to the Docker daemon'; exit 1")
        with pytest.raises(OSError, match="Cannot connect"):
            container.running()
        assert container.code() is None
        container._silent_since -= silence
    assert not container.running()
    answer.write_text("echo 'Error: No such object: gradient-job'; exit 1")
    assert not container.running()


@pytest.mark.parametrize(("exit_file", "shutting_down", "end"), [("3\n", False, 3), ("   ", True, None)])
def test_an_engine_that_is_gone_for_good_does_not_keep_the_end_back(
    make_agent, monkeypatch, tmp_path, exit_file, shutting_down, end
):
    """The job has ended, or the VM stops its services."""

    def fail():
        raise OSError("Cannot connect to the Docker daemon")

    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text(exit_file)
    if shutting_down:
        (tmp_path / "shutting-down").touch()
    agent = make_agent()
    monkeypatch.setattr(agent._runner, "running", fail)
    monkeypatch.setattr(agent, "_send_artifacts", lambda: None)
    assert agent._monitor() == {"code": end, "reason": "shut_down" if shutting_down else None}


def test_a_token_that_is_cut_off_is_read_again(monkeypatch):
    class CutOff(io.BytesIO):
        def read(self, *_):
            raise CUT_OFF

    token = {"access_token": "the token", "expires_at": time.time() + 600}
    answers = iter([CutOff(), io.BytesIO(json.dumps(token).encode())])
    own = bucket.Bucket("b", "p/token", "")
    monkeypatch.setattr(own, "_open_token", lambda: next(answers))
    monkeypatch.setattr(bucket.time, "sleep", lambda _: None)
    assert own.token()[0] == "the token"


def test_a_vm_whose_account_gets_no_token_is_switched_off(monkeypatch):
    commands = []
    monkeypatch.setattr(deletion, "read_token", lambda: (_ for _ in ()).throw(CUT_OFF))
    monkeypatch.setattr(deletion.subprocess, "run", lambda command, **_: commands.append(command[1:]))
    deletion.delete_vm(["the node"])
    assert commands == [["-h", "now"]]
