"""The job that a process belongs to, with processes beside it that declare or open too much."""

import os
import socket
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager

import pytest
from support.declared_environment import declared_environment

from core.formatting import MIB
from core.ids import new_id
from core.settings import Settings
from worker.statsd import sender_lookup
from worker.statsd.metrics_writer import Sender
from worker.statsd.sender_lookup import LOOPBACK, ProcessSenderLookup

pytestmark = pytest.mark.integration

SOCKETS = """
import socket, sys, time
opened = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(sys.argv[1]))]
for one in opened:
    one.bind(("127.0.0.1", 0))
print(opened[0].getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def lookup(tmp_path):
    return ProcessSenderLookup(Settings(home=tmp_path))


@contextmanager
def sending(home, count=1):
    """Yield a job of this server, whose process has this many sockets, and the address of one."""
    job = new_id("j")
    (home / "attempts" / f"{job}-1").mkdir(parents=True)
    env = os.environ | {"GRADIENT_JOB_ID": job, "GRADIENT_ATTEMPT": "1"}
    with subprocess.Popen([sys.executable, "-c", SOCKETS, str(count)], env=env, stdout=subprocess.PIPE) as process:
        try:
            yield Sender(job, 1), (LOOPBACK, int(process.stdout.readline()))
        finally:
            process.kill()


def test_a_process_that_declares_much_memory_as_its_environment_takes_none_of_the_servers(lookup, tmp_path):
    with sending(tmp_path) as (sender, address), declared_environment(64 * MIB):
        tracemalloc.start()
        try:
            assert lookup.find_senders([address]) == {address: sender}
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()


def test_a_process_with_many_sockets_does_not_keep_those_of_others_from_being_found(lookup, tmp_path, monkeypatch):
    monkeypatch.setattr(sender_lookup, "_MAX_DESCRIPTORS", 50)
    monkeypatch.setattr(sender_lookup, "_MAX_SOCKETS", 100)
    with sending(tmp_path, 200), sending(tmp_path) as (sender, address):
        assert lookup.find_senders([address]) == {address: sender}
        assert len(lookup._by_inode) <= 51


def test_a_socket_of_no_job_has_no_sender(lookup):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((LOOPBACK, 0))
        assert lookup.find_senders([own.getsockname()]) == {}
