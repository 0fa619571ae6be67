"""The runner on a TPU VM, where the network or a worker fails it."""

import contextlib
import http.client
import io
import json
import os
import tarfile
import time
import urllib.error
from types import SimpleNamespace

import pytest

from worker.backends.tpu.vm.on_vm import __main__ as module
from worker.backends.tpu.vm.on_vm import bucket, deletion, launchers
from worker.runner.folder_sender import FolderSender
from worker.runner.job_runner import BOOT, JobFailed
from worker.runner.stores import PART_BYTES

CUT_OFF = http.client.IncompleteRead(b"half of it")


@pytest.fixture
def make_runner(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_VM_RUN", "process")
    monkeypatch.setattr(module, "read_rank", lambda: 1)

    def make(**settings):
        given = {
            "slice": False,
            "prefix": "p/",
            "model": "m/",
            "workspace": "w/",
            "bucket": "b",
            "token_url": "",
            "seconds": 0.01,
        }
        given |= {
            "abandoned_seconds": 0.0,
            "collect_seconds": 0.0,
            "resources": ["the node"],
            "job_id": "j1",
            "statsd_port": 0,
            "outputs": [],
            "max_bytes": None,
        }
        (tmp_path / "vm.json").write_text(json.dumps(given | settings))
        return module.VmRunner(tmp_path)

    return make


def test_a_host_of_a_slice_whose_job_never_came_deletes_the_node(make_runner, monkeypatch):
    """Its worker died between the creation of the node and the delivery of the job."""
    deleted = []
    monkeypatch.setattr(module, "delete_vm", deleted.append)
    runner = make_runner(slice=True)
    runner.over.set()  # not to wait for the outputs
    runner.guard()
    assert deleted == [["the node"]]


def test_a_vm_reports_that_its_command_has_ended_while_it_sends_artifacts(make_runner, monkeypatch, tmp_path):
    """So that a worker that stops the job meanwhile lets it finish."""
    runner = make_runner()
    reports = [dict(runner.report)]
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text("0\n")
    monkeypatch.setattr(runner.artifacts, "send", lambda: reports.append(dict(runner.report)))
    assert runner.monitor()["code"] == 0
    assert [(report["collecting"], report["end"]) for report in reports] == [(False, None), (True, None)]


class MemoryBucket(bucket.Objects):
    """Objects in memory; `errors` are raised by the next uploads of an object."""

    def __init__(self):
        super().__init__("b", lambda: "")
        self.objects, self.errors, self.tries = {}, {}, []

    def _request(self, method, _url, content=b"", _headers=None):
        name = self.name
        if method == "POST":
            self.tries.append(name)
        if errors := self.errors.get(name):
            raise errors.pop(0)
        if method == "POST":
            self.objects[name] = content if isinstance(content, bytes) else b"".join(content)
        else:
            del self.objects[name]
        return io.BytesIO()

    def put(self, name, content, size):
        self.name = name
        super().put(name, content, size)

    def remove(self, name):
        self.name = name
        super().remove(name)

    def sizes(self, prefix):
        return {name: len(content) for name, content in self.objects.items() if name.startswith(prefix)}


def http_error(code):
    return urllib.error.HTTPError("https://storage", code, "no", {}, io.BytesIO())


@pytest.fixture
def make_sender(tmp_path):
    """A sender of these files; `sub/kept` comes after those of the folder itself."""

    def make(*names):
        (tmp_path / "sub").mkdir()
        for name in (*names, "sub/kept"):
            (tmp_path / name).write_text(name)
        memory = MemoryBucket()
        return FolderSender(memory, tmp_path, "m/"), memory

    return make


def test_a_link_is_sent_as_the_file_that_it_leads_to_if_that_is_among_the_artifacts(make_sender, tmp_path):
    sender, memory = make_sender()
    for name, target in (("last", "sub/kept"), ("out", "/etc/passwd"), ("itself", "itself")):
        (tmp_path / name).symlink_to(target)
    sender.send()
    assert memory.objects == {"m/sub/kept": b"sub/kept", "m/last": b"sub/kept"}


@pytest.mark.parametrize(("code", "tries"), [(400, 2), (403, 2), (412, 2), (401, 3), (408, 3), (429, 3), (503, 3)])
def test_an_artifact_is_sent_again_only_if_that_can_help(make_sender, code, tries):
    sender, memory = make_sender("bad")
    memory.errors["m/bad"] = [http_error(code) for _ in range(3)]
    for _ in range(2):
        with contextlib.suppress(OSError):
            sender.send()
    sender.forget_refused()
    with contextlib.suppress(OSError):
        sender.send()
    assert memory.tries.count("m/bad") == tries
    assert memory.objects == {"m/sub/kept": b"sub/kept"}
    assert (sender.refused() == "") == (tries == 3)
    memory.errors.clear()
    sender.forget_refused()
    sender.send()
    assert memory.objects["m/bad"] == b"bad"


def test_an_object_that_may_not_be_removed_is_kept_and_nothing_is_missing(make_sender, tmp_path):
    """As by a retention policy of the bucket."""
    sender, memory = make_sender("kept", "gone")
    sender.send()
    memory.errors["m/kept"], memory.errors["m/gone"] = [http_error(403)], [http_error(503)]
    for name in ("kept", "gone"):
        (tmp_path / name).unlink()
    for _ in range(2):
        with contextlib.suppress(urllib.error.HTTPError):
            sender.send()
    assert sorted(memory.objects) == ["m/kept", "m/sub/kept"]
    sender.send()
    assert sender.refused() == ""


def test_a_file_that_becomes_shorter_while_it_is_sent_holds_up_no_other(make_sender, tmp_path):
    sender, memory = make_sender("busy")
    put = memory.put

    def shorten(name, content, size):
        (tmp_path / "busy").write_text("")
        return put(name, content, size)

    memory.put = shorten
    with pytest.raises(OSError, match="1 of the artifacts: 'busy': the file became shorter"):
        sender.send()
    assert list(memory.objects) == ["m/sub/kept"]
    memory.put = put
    sender.send()
    assert sorted(memory.objects) == ["m/busy", "m/sub/kept"]


def test_artifacts_that_the_bucket_refuses_are_reported_with_the_end(make_runner, tmp_path):
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text("0\n")
    runner = make_runner(collect_seconds=60.0)
    runner.artifacts.store = MemoryBucket()
    (tmp_path / "artifacts").mkdir()
    for number in range(1000):
        (tmp_path / "artifacts" / f"{number}\n").touch()
    end = runner.monitor()
    assert end["code"] == 0
    assert end["missing"].startswith("refused by the bucket: 1000 of the artifacts: ")
    assert len(end["missing"]) < 2000, "the worker reads no more than 64 KiB of the report"


def test_an_engine_that_restarts_does_not_end_the_job(tmp_path, monkeypatch):
    engine, answer = tmp_path / "docker", tmp_path / "answer"
    engine.write_text(f"#!/bin/sh\n. {answer}\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    container = launchers.Container(tmp_path)
    for silence in (0.0, launchers.ENGINE_SECONDS):
        answer.write_text("echo true")
        assert container.running()
        answer.write_text("echo 'Cannot connect to the Docker daemon'; exit 1")
        with pytest.raises(OSError, match="Cannot connect"):
            container.running()
        assert container.code() is None
        container.silent_since -= silence
    assert not container.running()
    answer.write_text("echo 'Error: No such object: gradient-job'; exit 1")
    assert not container.running()


def test_a_container_that_ends_before_its_command_began_is_told_at_once(make_runner, tmp_path, monkeypatch):
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\ncase $2 in *ExitCode*) echo 127;; esac\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    runner = make_runner()
    runner.launcher = launchers.Container(tmp_path)
    job = {
        "command": "true",
        "disks": [],
        "image": "i",
        "pull": "IfNotPresent",
        "login": None,
        "options": [],
        "env": {},
    }
    packed = io.BytesIO()
    tarfile.open(fileobj=packed, mode="w:gz").close()
    monkeypatch.setattr(runner, "send_report", lambda: None)
    monkeypatch.setattr(
        runner, "_read_job", lambda: job | {"working_dir": None, "stop_grace": 1, "stop_signal": None, "warning": None}
    )
    monkeypatch.setattr(
        runner, "store", SimpleNamespace(open=lambda _: io.BytesIO(packed.getvalue()), get=lambda _: None)
    )
    monkeypatch.setattr(runner.artifacts, "fetch", lambda _: None)
    with pytest.raises(JobFailed, match="exit code 127 before the command began") as failed:
        runner.start({})
    assert failed.value.reason == "launch_failed"


@pytest.mark.parametrize(("exit_file", "shutting_down", "end"), [("3\n", False, 3), ("   ", True, None)])
def test_an_engine_that_is_gone_for_good_does_not_keep_the_end_back(
    make_runner, monkeypatch, tmp_path, exit_file, shutting_down, end
):
    """The job has ended, or the VM stops its services."""

    def fail():
        raise OSError("Cannot connect to the Docker daemon")

    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text(exit_file)
    if shutting_down:
        (tmp_path / "shutting-down").touch()
    runner = make_runner()
    monkeypatch.setattr(runner.launcher, "running", fail)
    monkeypatch.setattr(runner.artifacts, "send", lambda: None)
    found = runner.monitor()
    assert (found["code"], found["reason"]) == (end, "shut_down" if shutting_down else None)


OTHER_BOOT, ASKED = "of an earlier start", "asked to end\n"


@pytest.mark.parametrize(
    ("stopping", "boot", "exit_file", "end"),
    [
        ("shut down\n", OTHER_BOOT, "0\n", (None, "shut_down")),
        ("shut down\n", None, "0\n", (None, "shut_down")),
        (None, OTHER_BOOT, "143\n", (None, "restarted")),
        (None, OTHER_BOOT, "137\n", (None, "restarted")),
        (None, OTHER_BOOT, "", (None, "restarted")),
        (None, OTHER_BOOT, "0\n", (0, None)),
        (None, OTHER_BOOT, "1\n", (1, None)),
        (None, None, "137\n", (137, None)),
        (ASKED, OTHER_BOOT, "0\n", (0, None)),
    ],
)
def test_a_job_that_a_shutdown_ended_is_lost_also_for_the_runner_after_it(
    make_runner, tmp_path, stopping, boot, exit_file, end
):
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "exit").write_text(exit_file)
    (tmp_path / "boot-id").write_text(boot or BOOT.read_text())
    if stopping is not None:
        (tmp_path / "control" / "stopping").write_text(stopping)
    found = make_runner().monitor()
    assert (found["code"], found["reason"]) == end


def test_a_process_that_has_the_number_of_a_wrapper_that_ended_is_not_the_job_s(tmp_path):
    """Its whole session would get the signals."""
    control = tmp_path / "control"
    control.mkdir()
    (control / "started").write_text(f"{os.getpid()}\n")
    process = launchers.Process(tmp_path)
    assert process.pids() == []
    assert not process.running()


def test_the_runner_does_not_wait_for_pipes_that_the_job_left_in_place_of_files(make_runner, tmp_path):
    (tmp_path / "control").mkdir()
    for name in ("started", "exit", "stopping", "log", "metrics.jsonl"):
        os.mkfifo(tmp_path / "control" / name)
    (tmp_path / "boot-id").write_text(BOOT.read_text())
    found = make_runner().monitor()
    assert (found["code"], found["reason"]) == (None, "process_lost")


def test_a_vm_whose_account_gets_no_token_is_switched_off(monkeypatch):
    commands = []
    monkeypatch.setattr(deletion, "read_token", lambda: (_ for _ in ()).throw(CUT_OFF))
    monkeypatch.setattr(deletion.subprocess, "run", lambda command, **_: commands.append(command[1:]))
    deletion.delete_vm(["the node"])
    assert commands == [["-h", "now"]]


def test_each_runner_continues_where_the_last_one_was_killed(make_runner, tmp_path):
    """Whatever the job puts among the parts."""
    (tmp_path / "control").mkdir()
    memory, log = MemoryBucket(), tmp_path / "control" / "log"
    memory.objects |= {f"p/hosts/0/log/{name}": b"x" * PART_BYTES for name in ("word", "-1", "9" * 5000, "1e3", "")}
    log.touch()
    written = b""
    for size in (3, PART_BYTES - 3, PART_BYTES, 2 * PART_BYTES + 1, 0, 5):
        written += os.urandom(size)
        log.write_bytes(written)
        (tmp_path / "control" / "exit").write_text("0\n")
        runner = make_runner()
        runner.store = memory
        memory.tries.clear()
        runner.monitor()
        count = -(-len(written) // PART_BYTES)
        assert b"".join(memory.objects[f"p/hosts/0/log/{part}"] for part in range(count)) == written
        assert len(memory.tries) <= size // PART_BYTES + 2, "what was sent is not sent again"


def test_a_report_with_a_long_text_is_one_that_the_worker_reads_whole(make_runner):
    runner = make_runner()
    runner.store = memory = MemoryBucket()
    runner.set_phase("failed", "\N{PILE OF POO}" * 1_000_000, "image_pull")
    assert len(memory.objects["p/hosts/0/report"]) < 1 << 16
    assert json.loads(memory.objects["p/hosts/0/report"])["reason"] == "image_pull"


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"{}",
        b"[]",
        b'{"access_token": "x", "expires_at": null}',
        b'{"access_token": 1, "expires_at": "x"}',
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"access_token": "x", "expires_at": 1%s}' % (b"0" * 400), id="large"),
    ],
)
def test_a_token_that_is_none_is_read_again(monkeypatch, content):
    token = {"access_token": "the token", "expires_at": time.time() + 600}
    answers = iter([io.BytesIO(content), io.BytesIO(json.dumps(token).encode())])
    own = bucket.Bucket("b", "p/token", "")
    monkeypatch.setattr(own, "_open_token", lambda: next(answers))
    monkeypatch.setattr(bucket.time, "sleep", lambda _: None)
    assert own.token()[0] == "the token"
