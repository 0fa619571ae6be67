"""Jobs on a Slurm cluster in containers: by a real Apptainer, and by stand-ins for what cannot be installed here."""

import base64
import os
import shutil
import threading
import time

import pytest
from support.backend_harness import BackendHarness
from support.servers.image_registry import Registry
from support.servers.private_docker_engine import build_layer, list_busybox_commands, read_busybox
from support.servers.private_registry import IMAGE_NAME, IMAGE_TAG, PrivateRegistryServer
from support.slurm_cluster import CLUSTER_TYPE

from core.catalogue.registry_hosts import RegistryCredentials
from core.settings import Settings
from core.settings.slurm import SlurmSettings
from core.settings.worker import MachineSettings
from worker.backends.base import LaunchError
from worker.backends.slurm.commands import Commands
from worker.backends.slurm.containers import Containers
from worker.backends.slurm.images import find_image
from worker.runner.streams import ExecRequest, Terminal

pytestmark = pytest.mark.integration

PASSWORD = "canary of alice"
NODE_WITHOUT_FUSE = """#!/bin/sh
case $1 in
    --silent) exec unshare --mount sh -c 'mount --bind /dev/null /dev/fuse; exec "$0" "$@"' {apptainer} "$@" ;;
    *) exec {apptainer} "$@" ;;
esac
"""
# It says what it was started with, and ends as the wrapper does in a container.
SRUN = """#!/bin/sh
case $1 in --help) echo '      --container-image=IMAGE'; exit ;; esac
for word; do echo "$word"; done >{folder}/srun.words
for word; do case $word in --container-mounts=*) mounts=$word ;; esac; done
control=${{mounts%%:/.gradient/control*}} control=${{control##*[,=]}}
echo $$ 1<>"$control/started"
echo 7 1<>"$control/exit"
exit 7
"""


@pytest.fixture
def registry(tmp_path):
    registry = Registry(tmp_path / "registry", [])
    yield registry
    registry.stop()


@pytest.fixture
def image(registry):
    programs = {"bin/busybox": read_busybox(), "tmp/": None, "etc/": None, "opt/": None}
    layer = build_layer(programs, links=list_busybox_commands())
    return registry.add_image("team/shell:1", [layer], Env=["PATH=/bin:/opt", "FROM=the image", "WHO=the image"])


@pytest.fixture
def make_place(tmp_path, slurm):  # noqa: ARG001 - where its jobs run
    places = []

    def make(**settings):
        file = tmp_path / "machines.toml"
        file.write_text(CLUSTER_TYPE)
        slurm = SlurmSettings(enabled=True, **settings)
        home = tmp_path / "home"
        places.append(
            BackendHarness("slurm", home, slurm=slurm, machines=MachineSettings(file=file), machine_type="cluster")
        )
        return places[-1]

    yield make
    for place in places:
        place.clear()


def write_program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_a_job_runs_in_its_image_which_is_pulled_once(make_place, registry, image):
    place, (reference, digest) = make_place(), image
    assert place.backend.has_containers()
    command = 'pwd; echo "$FROM; $WHO; $PATH; $HOME; $SLURM_JOB_PARTITION"; cat in.txt >/artifacts/a; touch /x; exit 3'
    phases = []
    for attempt in (1, 2):
        spec = place.spec(command, container=reference, attempt=attempt, env={"WHO": "it's a $job"})
        (spec.workspace / "in.txt").write_text("kept")
        (spec.storage / "datasets" / "set").touch()
        handle = place.launch(spec, progress=lambda phase, _: phases.append(phase))
        assert place.wait(handle).code == 3, (spec.control / "slurm_output").read_text()
        folder, variables = place.output(spec).decode().splitlines()
        assert folder == "/paperspace"
        source, who, path, home, partition = variables.split("; ")
        assert (source, who, home, partition) == ("the image", "it's a $job", os.environ["HOME"], "main")
        assert path.startswith("/bin:/opt")
        assert (spec.artifacts / "a").read_text() == "kept"
        assert handle["image"] == digest
    assert phases.count("pulling") > 0
    assert len([line for line in registry.read_requests() if "GET" in line and "/blobs/" in line]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_a_stopped_job_saves_within_its_grace_period(make_place, image):
    place = make_place()
    spec, handle = place.running(
        "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done",
        container=image[0],
        env={"TMPDIR": "/tmp"},
    )
    place.backend.signal(handle, grace=True)
    assert place.wait(handle).code == 0
    assert place.output(spec).endswith(b"\nsaved\n")
    spec, handle = place.running("trap '' TERM; echo up; while :; do sleep 0.1; done", container=image[0], attempt=2)
    place.backend.signal(handle, grace=False)
    assert place.wait(handle).code == 137


@pytest.mark.slow
@pytest.mark.usefixtures("apptainer")
@pytest.mark.parametrize("terminal", [None, Terminal(24, 99, "xterm")])
def test_a_command_is_run_in_the_jobs_container(make_place, image, slurm, terminal):
    place = make_place()
    _, handle = place.running("echo made >/here; echo up; sleep 600", container=image[0], env={"WHO": "it's"})
    command = 'cat /here; echo "$FROM $WHO $SLURM_JOB_ID $PWD"; exit 3'
    stream = place.backend.run_in_job(handle, ExecRequest("s1", ("sh", "-c", command), terminal))
    output = b"".join(data for number, data in stream.outputs() if number == 1).decode().splitlines()
    assert output == ["made", f"the image it's {slurm.run('squeue', '-h', '-o', '%A')} /paperspace"]
    assert stream.exit_code() == 3
    stream.close()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_node_that_cannot_mount_image_files_unpacks_them(make_place, image, tmp_path, apptainer):
    program = write_program(tmp_path / "bin" / "apptainer", NODE_WITHOUT_FUSE.format(apptainer=apptainer))
    place = make_place(container_program=str(program))
    spec = place.spec("echo in $FROM", container=image[0])
    assert place.wait(place.launch(spec)).code == 0, (spec.control / "slurm_output").read_text()
    assert place.output(spec) == b"in the image\n"


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_job_with_gpus_gets_the_drivers_of_its_node(make_place, image, tmp_path, apptainer):
    program = recording(tmp_path, apptainer)
    for attempt, options in ((1, []), (2, ["--gres=gpu:1"])):
        place = make_place(container_program=str(program), options=options)
        assert place.wait(place.launch(place.spec("true", container=image[0], attempt=attempt))).code == 0
    *_, without, with_gpu = (tmp_path / "words").read_text().splitlines()
    assert ("--nv" in without.split(), "--nv" in with_gpu.split()) == (False, True)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_what_keeps_a_container_from_starting_is_said(make_place, registry):
    reference, _ = registry.add_image("team/bare:1", [build_layer({"etc/": None})])
    place = make_place()
    end = place.wait(place.launch(place.spec("true", container=reference)))
    assert end.reason == "launch_failed"
    assert "/bin/sh" in end.detail


def recording(folder, apptainer):
    """Return an Apptainer that notes what it is called with."""
    return write_program(
        folder / "bin" / "apptainer", f'#!/bin/sh\necho "$@" >>{folder}/words; exec {apptainer} "$@"\n'
    )


def refusal(place, **options):
    with pytest.raises(LaunchError) as error:
        place.launch(place.spec("true", **options))
    assert error.value.reason == "image_pull"
    return error.value.detail


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_login_is_used_and_left_nowhere(make_place, registry, image, tmp_path, apptainer):
    program = recording(tmp_path, apptainer)
    registry.configure(require=f"Basic {base64.b64encode(f'alice:{PASSWORD}'.encode()).decode()}")
    place, (reference, _) = make_place(container_program=str(program)), image
    assert "registries set 127.0.0.1" in refusal(place, container=reference)
    logins = [RegistryCredentials(registry.host, "alice", password) for password in ("wrong", PASSWORD)]
    wrong, right = [lambda _, login=login, **__: login for login in logins]
    assert "did not accept the login of 'alice'" in refusal(place, container=reference, login=wrong)
    assert place.wait(place.launch(place.spec("true", container=reference, login=right))).code == 0
    # What is here already is given to nobody else.
    assert "unauthorized" in refusal(place, container=reference, attempt=2)
    assert "pull" in (tmp_path / "words").read_text()
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.parent != registry.folder]
    assert not [file for file in files if PASSWORD.encode() in file.read_bytes()]


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_images_that_cannot_be_had(make_place, registry, image):
    place, (reference, _) = make_place(), image
    assert "imagePullPolicy is Never" in refusal(place, container=reference, image_pull_policy="Never")
    assert "no such image" in refusal(place, container=f"{registry.host}/team/other:1")
    for blob in (registry.folder / "blobs").iterdir():
        blob.unlink()
    assert reference in refusal(place, container=reference)
    registry.stop()
    assert "does not answer" in refusal(place, container=reference)
    assert not [path for path in (place.settings.root / "images").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_a_pull_is_given_up_with_its_job(make_place, registry, image):
    class Stopped(Exception):
        pass

    registry.configure(bytes_per_second=1000)
    place, until = make_place(), time.monotonic() + 3

    def check():
        if time.monotonic() > until:
            raise Stopped

    with pytest.raises(Stopped):
        place.launch(place.spec("true", container=image[0], check=check))
    registry.configure()
    assert not list((place.settings.root / "images" / "slurm").rglob("*.sif"))


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "apptainer")
def test_images_above_the_bound_are_deleted_unless_a_job_uses_them(make_place, registry, image):
    place = make_place(images_mb=0)
    other, _ = registry.add_image("team/other:1", [build_layer({"bin/busybox": read_busybox()}, links=["sh"])])
    _, handle = place.running("echo up; sleep 600", container=image[0])
    place.wait(place.launch(place.spec("true", container=other, attempt=2)))
    (place.root / "attempts" / f"{place.job_id}-2" / "image").unlink()
    assert place.backend.prune_images(everything=True) == [], "both have just been used"
    for file in (place.settings.root / "images" / "slurm").rglob("*.sif"):
        os.utime(file, (0, 0))
    (listed,) = place.backend.prune_images(everything=False, dry_run=True)
    (removed,) = place.backend.prune_images(everything=False)
    assert listed == removed
    assert removed.reference.partition("@")[0] == other.rpartition(":")[0]
    (kept,) = (place.settings.root / "images" / "slurm").rglob("*.sif")
    assert kept == place.settings.root / "images" / "slurm" / f"{handle['image']}.sif"


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_pyxis_gets_the_image_by_digest_and_the_folders(make_place, image, tmp_path):
    programs = write_program(tmp_path / "bin" / "srun", SRUN.format(folder=tmp_path)).parent
    for name in ("sbatch", "scancel", "scontrol", "squeue"):
        (programs / name).symlink_to(shutil.which(name))
    reference, digest = image
    place = make_place(bin=programs, container_program="pyxis", container_mounts=["/opt"])
    spec = place.spec("true", container=reference)
    handle = place.launch(spec)
    assert place.wait(handle).code == 7, (spec.control / "slurm_output").read_text()
    assert handle["image"] == digest
    words = (tmp_path / "srun.words").read_text().splitlines()
    host, _, name = digest.partition("/")
    assert f"--container-image=docker://{host}#{name}" in words
    assert {"--export=ALL", "--container-mount-home", "--cpus-per-task=1", "--no-container-entrypoint"} <= {*words}
    (mounts,) = [word.partition("=")[2].split(",") for word in words if word.startswith("--container-mounts=")]
    assert {f"{spec.workspace}:/paperspace", f"{spec.storage}:/storage", "/opt:/opt"} <= {*mounts}
    assert not (place.settings.root / "images").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_cluster_without_containers_says_so(make_place, image):
    place = make_place(container_program="/nowhere/apptainer")
    assert not place.backend.has_containers()
    with pytest.raises(LaunchError) as error:
        place.launch(place.spec("true", container=image[0]))
    assert error.value.reason == "option_refused"
    assert not make_place(container_program="pyxis").backend.has_containers(), "its srun has no such option"


def test_a_cluster_that_does_not_answer_is_not_said_to_lack_containers(tmp_path):
    srun = write_program(tmp_path / "bin" / "srun", "#!/bin/sh\necho srun: error: Socket timed out >&2; exit 1\n")
    settings = Settings(slurm=SlurmSettings(enabled=True, bin=srun.parent, container_program="pyxis"))
    containers = Containers(settings, Commands(settings.slurm))
    with pytest.raises(LaunchError, match="Socket timed out") as error:
        containers.find_program()
    assert error.value.reason == "launch_failed", "which is tried again"
    write_program(srun, SRUN)
    assert containers.find_program() == str(srun)


@pytest.mark.parametrize("scheme", ["basic", "token"])
def test_the_digest_of_a_private_image_is_asked_for_with_the_login(scheme):
    server = PrivateRegistryServer(("127.0.0.1", 0), f"alice:{PASSWORD}", scheme, b"layer")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        reference = f"127.0.0.1:{server.server_address[1]}/{IMAGE_NAME}:{IMAGE_TAG}"
        found = find_image(reference, {"username": "alice", "password": PASSWORD})
        assert any(path.endswith(found.name.rpartition("@")[2]) for path in server.content)
        for login in (None, {"username": "alice", "password": "wrong"}):
            with pytest.raises(LaunchError, match="unauthorized"):
                find_image(reference, login)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
