"""Images built from a workspace's Dockerfile by a real engine, and pushed to a real registry."""

import threading

import pytest
from support.backend_harness import BackendHarness
from support.constants import set_constants
from support.deployment import wait_until
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer

from core.settings.docker import ImageSettings
from worker.backends.base import ImageBuild, LaunchError
from worker.backends.docker.images import build
from worker.backends.docker.images.build import built_name

DOCKERFILE = f"""FROM {SHELL_IMAGE}
COPY greeting.txt /greeting.txt
RUN echo building; cat /greeting.txt; echo made >/made
"""


@pytest.fixture
def place(clean_engine, tmp_path):
    docker = clean_engine.settings(pull="missing", network="none")
    made = BackendHarness("docker", tmp_path, docker, images=ImageSettings(builds=True))
    yield made
    made.clear()


def workspace(place, dockerfile=DOCKERFILE, *, name="Dockerfile", target=None, command="cat /made", **files):
    spec = place.spec(command, build=ImageBuild(name, target))
    for path, content in {name: dockerfile, "greeting.txt": "hello\n", **files}.items():
        file = spec.workspace / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return spec


def left(server):
    with server.client() as client:
        return client.containers(all=True)


def refused(place, spec, reason="image_build"):
    with pytest.raises(LaunchError) as error:
        place.launch(spec)
    assert error.value.reason == reason
    return error.value.detail


def tags(server):
    with server.client() as client:
        return {tag for one in client.images() for tag in one["RepoTags"] or []}


def test_a_build_that_was_done_is_not_done_again(place):
    spec = workspace(place)
    first = place.backend.build(spec, lambda *_: None)
    printed = place.output(spec)
    assert place.backend.build(spec, lambda *_: None) == first
    assert place.output(spec) == printed


def test_a_failed_step_is_in_the_log_and_leaves_no_container(place, clean_engine):
    spec = workspace(place, f"FROM {SHELL_IMAGE}\nRUN echo one >/one\nRUN echo before; exit 3\n")
    assert "returned a non-zero code: 3" in refused(place, spec)
    output = place.output(spec).decode()
    assert "before\n" in output
    assert "returned a non-zero code: 3" in output
    assert left(clean_engine) == []
    assert built_name(spec) not in tags(clean_engine)


def test_what_a_failed_build_came_to_goes_like_any_built_image(place, clean_engine):
    spec = workspace(place, f"FROM {SHELL_IMAGE}\nRUN echo {place.job_id} >/one\nRUN exit 3\n")
    with clean_engine.client() as client:
        before = {one["Id"] for one in client.images(all=True)}
        refused(place, spec)
        assert {one["Id"] for one in client.images(all=True)} != before, "kept as a cache for the next try"
        set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0})
        assert len(place.backend.prune_images(everything=True)) == 1
        assert {one["Id"] for one in client.images(all=True)} == before


def test_a_failed_build_never_takes_what_it_began_with(place, clean_engine):
    refused(place, workspace(place, f"FROM {SHELL_IMAGE}\nCOPY nothing-there /x\n"))
    set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0})
    place.backend.prune_images(everything=True)
    assert SHELL_IMAGE in tags(clean_engine)


@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [("FROM\n", "FROM"), ("", "empty"), ("FROM 127.0.0.1:1/none\n", "127.0.0.1:1"), ("NONSENSE\n", "NONSENSE")],
)
def test_a_dockerfile_that_will_not_do_says_why(place, dockerfile, says):
    assert says in refused(place, workspace(place, dockerfile))


def test_a_dockerfile_has_to_be_a_file_of_the_workspace(place, tmp_path):
    assert "is not in the workspace" in refused(place, place.spec("true", build=ImageBuild("docker/Dockerfile")))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "Dockerfile").write_text("FROM secrets\n")
    spec = place.spec("true", build=ImageBuild("link"))
    (spec.workspace / "link").symlink_to(outside / "Dockerfile")
    assert "not a regular file in the workspace" in refused(place, spec)
    (spec.workspace / "folder").symlink_to(outside)
    assert "not a regular file in the workspace" in refused(
        place, place.spec("true", build=ImageBuild("folder/Dockerfile"))
    )


def test_a_build_has_a_time_limit(place, clean_engine, monkeypatch):
    monkeypatch.setattr(build, "BUILD_SECONDS", 2.0)
    spec = workspace(place, f"FROM {SHELL_IMAGE}\nRUN echo up; sleep 600\n")
    assert "it was not built within 2 seconds" in refused(place, spec)
    wait_until(lambda: left(clean_engine) == [], "its step to be ended")


def test_no_step_of_a_dockerfile_runs_unless_an_administrator_opened_builds(clean_engine, tmp_path):
    """As root, with the engine's usual capabilities: a worker refuses it too, whatever the service let in."""
    closed = BackendHarness("docker", tmp_path, clean_engine.settings(network="none"))
    spec = workspace(closed, f"FROM {SHELL_IMAGE}\nRUN grep -E 'Uid|CapEff|NoNewPrivs' /proc/self/status\n")
    assert "GRADIENT_IMAGES__BUILDS" in refused(closed, spec, "option_refused")
    assert closed.output(spec) == b""
    assert left(clean_engine) == []


def test_a_build_has_the_limits_of_its_job(place):
    reads = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null; ulimit -c; df -k /dev/shm"
    spec = place.spec("true", build=ImageBuild("Dockerfile"), cpus=0.5, shared_mem_mb=96)
    (spec.workspace / "Dockerfile").write_text(f"FROM {SHELL_IMAGE}\nRUN {reads}\n")
    place.backend.build(spec, lambda *_: None)
    output = place.output(spec).decode()
    assert "50000" in output
    assert "\n0\n" in output
    assert str(96 * 1024) in output


def test_a_build_ends_when_it_fills_the_engines_disk(place, clean_engine, monkeypatch):
    monkeypatch.setattr(build, "MAX_DISK_PERCENT", 0.001)
    spec = workspace(place, f"FROM {SHELL_IMAGE}\nRUN echo up; sleep 600\n")
    assert "% full; builds are stopped at" in refused(place, spec)
    wait_until(lambda: left(clean_engine) == [], "its step to be ended")


def test_a_build_has_a_memory_limit(place):
    spec = place.spec("true", build=ImageBuild("Dockerfile"), memory_mb=32)
    (spec.workspace / "Dockerfile").write_text(f"FROM {SHELL_IMAGE}\nRUN tail /dev/zero\n")
    assert "non-zero code: 137" in refused(place, spec)


def test_what_it_is_built_upon_is_pulled_and_goes_later(place, registry, clean_engine):
    with clean_engine.client() as client:
        made = client.create_container(SHELL_IMAGE, ["/none"])["Id"]
        content = b"".join(client.export(made))
        client.remove_container(made)
    base, _ = registry.add_image("team/base:1", [content, build_layer({place.job_id: b""})])
    spec = workspace(place, f"FROM {base}\nRUN echo on it\n")
    place.backend.build(spec, lambda *_: None)
    assert base in tags(clean_engine)
    set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0})
    gone = [one.reference for one in place.backend.prune_images(everything=True)]
    gone += [one.reference for one in place.backend.prune_images(everything=True)]  # what another stood on
    assert {base, built_name(spec)} <= set(gone)
    assert base not in tags(clean_engine)


def test_a_push_cannot_take_the_name_of_another_image(place, clean_engine):
    """Else the next job that names it would run what somebody else had built."""
    assert "another image" in refused(place, workspace(place, target=SHELL_IMAGE), "image_push")
    assert SHELL_IMAGE in tags(clean_engine)


def test_nobody_takes_the_name_for_the_registrys_while_it_is_pushed(registry, make_image_store):
    target = f"{registry.host}/team/result:3"
    waiting = make_image_store()
    ledger = waiting.images.records()
    ended = threading.Event()

    def have():
        with pytest.raises(LaunchError):
            waiting.have(target, policy="Never")
        ended.set()

    with ledger.keep_name(target):
        thread = threading.Thread(target=have)
        thread.start()
        wait_until(lambda: waiting.progress, "it to say that it waits")
        assert not ended.is_set()
    thread.join()
    assert ended.is_set()
    assert "is being pushed" in waiting.progress[0][1]
