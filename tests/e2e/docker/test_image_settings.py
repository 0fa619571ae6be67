"""Settings of an image that a job obeys, and notes on the rest: from the client to the engine and back."""

import io
import json

import pytest
from support.deployment import wait_until
from support.servers.private_docker_engine import build_layer, list_busybox_commands, read_busybox

SCRIPT = b'#!/bin/sh\necho banner\nexport TOOL=yes\nif [ $# = 0 ]; then exec sh; else exec "$@"; fi\n'
SERVER = b'#!/bin/sh\nexec server "$@"\n'


@pytest.fixture(scope="module")
def service_settings(docker_server):
    return docker_server.service_settings


@pytest.fixture
def make_image(docker_server):
    """Makes an image with a shell and two scripts, from instructions of a Dockerfile."""
    names = ["gradient-test:settings"]

    def make(*instructions):
        name = f"{names[0]}-{len(names)}"
        dockerfile = "\n".join([f"FROM {names[0]}", *instructions]).encode()
        with docker_server.client() as client:
            for said in client.build(fileobj=io.BytesIO(dockerfile), tag=name, rm=True, decode=True):
                assert "error" not in said, said
        names.append(name)
        return name

    files = {"bin/busybox": read_busybox(), "tmp/": None, "app/": None, "bin/entry": SCRIPT, "bin/serve": SERVER}
    layer = build_layer(files, links=list_busybox_commands())
    with docker_server.client() as client:
        client.import_image_from_data(layer, repository="gradient-test", tag="settings", changes=["ENV PATH=/bin"])
    yield make
    with docker_server.client() as client:
        for name in reversed(names):
            client.remove_image(name, force=True)


def run(service, image, command, *options):
    """Run a job by the client; return its log and its notes."""
    create = ["jobs", "create", "-m", "CPU", "--workspace", "none", "-d", "-c", image, "--command", command, *options]

    job_id = service.cli(*create).stdout.split()[-1]
    job = service.wait_ended(job_id)
    shown = json.loads(service.cli("jobs", "show", job_id, "--json").stdout)
    assert job["exitCode"] == 3, service.raw_log(job_id)
    return service.raw_log(job_id).decode(), shown["notes"]


@pytest.mark.parametrize(
    "entrypoint",
    [
        '["tini","-g","--","entry"]',
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ('["/bin/entry"]', '["entry"]', '["/bin/sh","/bin/entry"]', '["env","TOOL=no","entry"]')
        ),
    ],
)
def test_an_entrypoint_that_runs_a_command_runs_the_jobs(service, make_image, entrypoint):
    log, notes = run(service, make_image(f"ENTRYPOINT {entrypoint}"), "echo TOOL=$TOOL in $PWD; exit 3")
    assert (log, notes) == ("banner\nTOOL=yes in /paperspace\n", [])


def test_an_entrypoint_may_be_left_out(service, make_image):
    image = make_image('ENTRYPOINT ["/bin/entry"]')
    assert run(service, image, "echo TOOL=$TOOL; exit 3", "--ignoreEntrypoint") == ("TOOL=\n", [])


@pytest.mark.slow  # worker/backends/docker/container/test_image_settings.py has them
@pytest.mark.parametrize("entrypoint", ['["/bin/serve"]', '["/bin/busybox"]', '["/none"]', '["/bin/sh","-c","serve"]'])
def test_any_other_entrypoint_is_told(service, make_image, entrypoint):
    log, notes = run(service, make_image(f"ENTRYPOINT {entrypoint}"), "echo TOOL=$TOOL; exit 3")
    assert log == "TOOL=\n"
    assert [note.partition("(")[0] for note in notes] == ["The image's ENTRYPOINT "]


def test_what_else_of_an_image_is_not_obeyed_is_told(service, make_image):
    image = make_image("USER 33", "WORKDIR /app", "VOLUME /data", "HEALTHCHECK CMD true")
    _, notes = run(service, image, "exit 3")
    assert [
        any(word in note for note in notes) for word in ("USER (33)", "--workingDirectory /app", "(/data)", "HEALTH")
    ] == [True] * 4
    log, notes = run(service, image, "id -u; pwd; exit 3", "--user", "33:33", "--workingDirectory", "/app")
    assert log == "33\n/app\n"
    assert len(notes) == 2


@pytest.mark.parametrize(("name", "number"), [("SIGRTMIN+3", 37), pytest.param("SIGINT", 15, marks=pytest.mark.slow)])
def test_a_stop_begins_with_the_signal_of_the_image(service, make_image, name, number):
    """SIGINT is SIGTERM here: an image without bash has its programs ignore it."""
    image = make_image(*([f"STOPSIGNAL {name}"] if name else []))
    traps = "; ".join(f"trap 'echo got {one}; exit 0' {one}" for one in (2, 10, 15, 37))
    job_id = service.submit(f"{traps}; echo up; while :; do sleep 0.1; done", container=image)
    wait_until(lambda: b"up" in service.raw_log(job_id), "its first line")
    service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    assert (job["state"], job["exitCode"]) == ("Cancelled", 0)
    assert service.raw_log(job_id).endswith(f"\ngot {number}\n".encode())
