"""Jobs whose image or processes attack the commands that the worker runs in their container to stop them."""

import signal
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from support.deployment import wait_until
from support.job_insertion import insert_job
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer, list_busybox_commands, read_busybox

from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.jobs import projects, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.jobs.submission import NewJob
from core.settings import Settings
from core.settings.worker import MachineSettings
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import run_attempt
from worker.backends.docker.container.container_exec import run_in_container
from worker.backends.docker.engine.client import Engine, EngineUnavailable
from worker.context import WorkerContext
from worker.runner.streams import ExecRequest

MIB = 1024**2
FLOOD_MIB = 100
STOP_SECONDS = 30
"""Time for a stop on a busy machine; before the fix it never ended."""

SHELL = """#!/bin/busybox sh
case "$*" in *"{part}"*) {act} ;; esac
exec /bin/busybox sh "$@"
"""
STOP_COMMAND, SIGNAL_COMMAND = "/proc/[0-9]", "kill -s"
"""Parts of the commands that stop a job, and that signal a session."""
HANG = "while :; do sleep 1; done"
FLOOD = f"/bin/busybox head -c {FLOOD_MIB * MIB} /dev/zero; exit 0"
SUSPEND = """
trap "" TERM
i=0; while [ $i -lt 1000 ]; do sleep 300 & i=$((i+1)); done
echo up
last=$!
while :; do
    i=1; while [ $i -le 40 ]; do kill -STOP $((last+i)) 2>/dev/null; i=$((i+1)); done
done
"""
"""Suspends the processes that begin next, the worker's own command among them."""


@pytest.fixture
def hostile_image(docker_server):
    """Make an image whose shell does something else when its arguments contain a text."""
    names = []

    def make(part, act):
        files = {"bin/busybox": read_busybox(), "bin/sh": SHELL.format(part=part, act=act).encode(), "tmp/": None}
        layer = build_layer(files, links=[name for name in list_busybox_commands() if name != "sh"])
        tag = f"hostile{len(names)}"
        with docker_server.client() as client:
            client.import_image_from_data(layer, repository="gradient-test", tag=tag, changes=["ENV PATH=/bin"])
        names.append(f"gradient-test:{tag}")
        return names[-1]

    yield make
    with docker_server.client() as client:
        for name in names:
            client.remove_image(name, force=True)


@contextmanager
def in_thread(function, kill):
    """Run a function in a thread; the test fails if it does not end, and then `kill` lets the thread end."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    try:
        yield thread
        thread.join(STOP_SECONDS)
        assert not thread.is_alive(), "it hangs"
    finally:
        if thread.is_alive():
            kill()
            thread.join(STOP_SECONDS)


def test_a_shell_that_never_answers_does_not_hold_up_a_stop(make, hostile_image):
    place = make()
    spec, handle = place.running(
        "trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done",
        container=hostile_image(STOP_COMMAND, HANG),
    )
    with in_thread(lambda: place.backend.signal(handle, grace=True), lambda: place.backend.signal(handle, grace=False)):
        pass
    assert place.wait(handle).code == 3
    assert b"asked\n" in place.output(spec)


def test_what_a_shell_prints_when_it_is_to_stop_a_job_takes_no_memory(make, hostile_image):
    place = make()
    _spec, handle = place.running("trap '' TERM; echo up; sleep 600", container=hostile_image(STOP_COMMAND, FLOOD))
    process = psutil.Process()
    before, peak = process.memory_info().rss, 0
    with in_thread(
        lambda: place.backend.signal(handle, grace=True), lambda: place.backend.signal(handle, grace=False)
    ) as t:
        while t.is_alive():
            peak = max(peak, process.memory_info().rss - before)
            t.join(0.01)
    assert peak < FLOOD_MIB * MIB / 2


def test_a_session_whose_signals_are_never_delivered_ends(make, hostile_image, docker_server):
    place = make()
    _spec, handle = place.running("echo up; sleep 600", container=hostile_image(SIGNAL_COMMAND, HANG))
    stream = run_in_container(Engine(docker_server.settings()), handle, ExecRequest("s1", ("sleep", "600")))
    wait_until((place.root / "attempts" / handle["name"] / "control" / "session-s1").exists, "the command")
    with in_thread(stream.close, lambda: place.backend.signal(handle, grace=False)):
        pass


def test_a_job_that_suspends_the_commands_of_its_sessions_is_killed(make, docker_server):
    """Its engine waits for the start of such a command without end."""
    place = make()
    _spec, handle = place.running(SUSPEND)
    engine = Engine(docker_server.settings(), timeout=2)

    def start():
        made = engine.call(lambda api: api.exec_create(handle["container"], ["/bin/true"]))
        engine.call(lambda api: api.exec_start(made["Id"], detach=True))

    def suspended():
        try:
            start()
        except EngineUnavailable:
            return True
        return False

    wait_until(suspended, "a command that is suspended before it runs")
    with in_thread(lambda: place.backend.signal(handle, grace=False), lambda: None):
        pass
    began = time.monotonic()
    assert place.wait(handle).code == 137
    assert time.monotonic() - began < STOP_SECONDS


@pytest.mark.parametrize("attack", ["image", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_job_that_attacks_its_stop_ends_at_its_time_limit(
    docker_server, tmp_path, sqlite_database: Database, hostile_image, attack
):
    settings = Settings(
        home=tmp_path / "home", docker=docker_server.settings(), machines=MachineSettings(simulate=False)
    )
    host = WorkerContext.open(settings, sqlite_database, worker_name="w1", hostname="here")
    image = hostile_image(STOP_COMMAND, HANG) if attack == "image" else SHELL_IMAGE
    command = SUSPEND if attack == "processes" else "trap '' TERM; echo up; while :; do sleep 0.1; done"

    def submit(session):
        project, _ = projects.get_or_create(session, "default")
        spec = JobSpec(machine_type="CPU", command=command, container=image, stop_grace=1, time_limit=3)
        machine = Catalogue.load().get("CPU")
        new_job = NewJob(spec=spec, machine=machine, backend="docker", project_id=project.id, submitted_by="t")
        insert_job(session, new_job)

    host.write(submit)
    job = host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", ("docker",))))

    def kill():
        with suppress(Exception), docker_server.client() as client:
            client.kill(f"gradient-{job.id}-{job.attempt}", signal.SIGKILL)

    with in_thread(lambda: run_attempt(host, job, AttemptControl()), kill):
        pass
    with host.database.read() as session:
        row = queries.get_row(session, job.id)
    assert (row.reason, row.exit_code) == ("time_limit", 137)
    assert host.logs.reader(job.id).size > 0
