"""The container of a job, as a whole: whatever is added to it has to be added here as well."""

import dataclasses
from pathlib import Path

import pytest

from core.jobs.spec.job_spec import JobSpec
from worker.backends.base import WRAPPER, LaunchSpec, PortForward
from worker.backends.docker.container.config import ContainerOptions, container_config, container_name

SPEC = LaunchSpec(
    name="jabc-2",
    job_id="jabc",
    attempt=2,
    project_id="p1",
    machine_type="P4000",
    job_spec=JobSpec(machine_type="P4000", command="python main.py", cpus=1.5, memory_mb=1024),
    container="org/image:tag",
    env={"GRADIENT_JOB_ID": "jabc", "LEARNING_RATE": "0.1"},
    workspace=Path("/srv/w"),
    artifacts=Path("/srv/a"),
    storage=Path("/srv/s"),
    datasets=Path("/srv/d"),
    control=Path("/srv/c"),
    gpus=("1", "3"),
)
OPTIONS = ContainerOptions(
    image="org/image:tag",
    home="/srv/home",
    user="1000:1001",
    network="gradient-jobs",
    pids=4096,
    shm_bytes=2**30,
    memory_bytes=2**34,
    capabilities=(),
)


def mount(source, target, *, read_only=False):
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def alone(source, target):
    """To read, without what is mounted in it, which would stay writable."""
    return mount(source, target, read_only=True) | {"BindOptions": {"Propagation": "rprivate", "NonRecursive": True}}


GOLDEN = {
    "Image": "org/image:tag",
    "Entrypoint": ["/bin/sh", "/.gradient/run.sh"],
    "Cmd": ["/.gradient/control", "alone", "15", "60"],
    "StopSignal": "SIGTERM",
    "Env": [
        "GRADIENT_JOB_ID=jabc",
        "HOME=/home/gradient",
        "LEARNING_RATE=0.1",
        "LOGNAME=gradient",
        "OMP_NUM_THREADS=2",
        "USER=gradient",
        "LD_AUDIT",
        "LD_PRELOAD",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
    ],
    "User": "1000:1001",
    "WorkingDir": "/paperspace",
    "Hostname": "",
    "Labels": {"gradient.home": "/srv/home", "gradient.job": "jabc", "gradient.attempt": "2"},
    "ExposedPorts": {},
    "Healthcheck": {"Test": ["NONE"]},
    "Tty": False,
    "OpenStdin": False,
    "AttachStdout": False,
    "AttachStderr": False,
    "HostConfig": {
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "GroupAdd": [],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": False,
        "StorageOpt": {},
        "PidsLimit": 4096,
        "Memory": 2**30,
        "MemorySwap": 2**30,
        "NanoCpus": 1_500_000_000,
        "ShmSize": 2**30,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "LogConfig": {"Type": "local", "Config": {"max-size": "1m", "max-file": "1", "compress": "false"}},
        "NetworkMode": "gradient-jobs",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "PublishAllPorts": False,
        "PortBindings": {},
        "Devices": [],
        "DeviceRequests": [{"Driver": "", "DeviceIDs": ["1", "3"], "Capabilities": [["gpu"]], "Options": {}}],
        "Mounts": [
            mount("/srv/w", "/paperspace"),
            mount("/srv/a", "/artifacts"),
            mount("/srv/s", "/storage"),
            alone("/srv/d", "/storage/datasets"),
            mount("/srv/c", "/.gradient/control"),
            mount("/srv/home", "/home/gradient"),
            mount("/srv/scripts/run.sh", "/.gradient/run.sh", read_only=True),
            mount("/srv/scripts/login_path.sh", "/etc/profile.d/00-gradient.sh", read_only=True),
        ],
    },
}


def config(spec=None, options=None, submitted=None):
    job_spec = dataclasses.replace(SPEC.job_spec, **(submitted or {}))
    launch_spec = dataclasses.replace(SPEC, job_spec=job_spec, **(spec or {}))
    return container_config(launch_spec, dataclasses.replace(OPTIONS, **(options or {})))


def test_the_container_of_a_job_is_exactly_this():
    assert config() == GOLDEN
    assert container_name(SPEC.name) == "gradient-jabc-2"
    assert WRAPPER.is_file()


def test_nothing_of_the_specification_goes_through_as_it_is():
    """Every option that a user can set has a field of its own; only environment and parameters are tables."""
    kinds = [(field.name, str(field.type)) for one in (LaunchSpec, JobSpec) for field in dataclasses.fields(one)]
    assert [name for name, kind in kinds if "dict" in kind] == ["env", "env_vars", "params"]


def test_ports_are_opened_where_the_host_says_and_no_others():
    ports = (PortForward(external=20001, internal=8000), PortForward(external=8443, internal=443))
    made = config({"ports": ports}, {"bind": "192.0.2.1"})
    assert made["ExposedPorts"] == {"8000/tcp": {}, "443/tcp": {}}
    assert made["HostConfig"]["PortBindings"] == {
        "8000/tcp": [{"HostIp": "192.0.2.1", "HostPort": "20001"}],
        "443/tcp": [{"HostIp": "192.0.2.1", "HostPort": "8443"}],
    }


def test_a_launch_shows_no_secret_where_it_is_printed():
    assert "0.1" not in repr(SPEC)


def test_a_job_without_limits_has_those_of_its_host():
    host = config(submitted={"cpus": None, "memory_mb": None})["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (0, 2**34, 2**34)


def test_a_job_without_gpus_can_take_none_by_its_environment():
    forged = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_TF32_OVERRIDE": "1"}
    without = config({"gpus": (), "env": forged})
    assert without["HostConfig"]["DeviceRequests"] == []
    named = {"LOGNAME=gradient", "USER=gradient", "HOME=/home/gradient", "NVIDIA_TF32_OVERRIDE=1", "OMP_NUM_THREADS=2"}
    assert set(without["Env"]) == named | {"NVIDIA_VISIBLE_DEVICES=void"}
    assert {item for item in config({"env": forged})["Env"] if "=" in item} == named


@pytest.mark.parametrize(
    ("user", "env", "home"),
    [
        ("0:0", {}, None),
        ("7:7", {}, "/home/gradient"),
        ("7:7", {"HOME": "/opt"}, "/opt"),
        ("0:0", {"HOME": "/x"}, "/x"),
    ],
)
def test_a_user_that_the_image_does_not_know_has_a_home(user, env, home):
    given = dict(item.split("=", 1) for item in config({"env": env}, {"user": user})["Env"] if "=" in item)
    assert given.get("HOME") == home


@pytest.mark.parametrize(
    ("cpus", "env", "image", "threads"),
    [
        (0.01, {}, {"PATH"}, "1"),
        (1, {}, {"PATH"}, "1"),
        (3.2, {}, {"PATH"}, "4"),
        (None, {}, {"PATH"}, None),
        (4, {"OMP_NUM_THREADS": "7"}, {"PATH"}, "7"),
        (4, {}, {"PATH", "OMP_NUM_THREADS"}, None),
        (4, {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS"}, "7"),
    ],
)
def test_programs_start_as_many_threads_as_the_job_has_cpus(cpus, env, image, threads):
    made = config({"env": env}, {"image_variables": frozenset(image)}, {"cpus": cpus})
    assert dict(item.split("=", 1) for item in made["Env"] if "=" in item).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("value", "image", "given"),
    [
        ("/storage/cache/huggingface", set(), "/storage/cache/huggingface"),
        ("/storage/cache/huggingface", {"HF_HOME"}, None),
        ("/mine", {"HF_HOME"}, "/mine"),
    ],
)
def test_the_cache_of_an_image_is_kept(value, image, given):
    made = config({"env": {"HF_HOME": value}}, {"image_variables": frozenset(image)})
    assert dict(item.split("=", 1) for item in made["Env"] if "=" in item).get("HF_HOME") == given


def test_what_is_opened_and_asked_for_has_its_place():
    host = config(
        {"working_dir": "/paperspace/src"},
        {"devices": ("/dev/fuse",), "folders": (("/data", "/in"),), "cdi": ("nvidia.com/gpu=1", "nvidia.com/gpu=3")},
        {"shared_mem_mb": 1},
    )
    assert host["WorkingDir"] == "/paperspace/src"
    assert host["HostConfig"] == GOLDEN["HostConfig"] | {
        "ShmSize": 2**20,
        "Devices": [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rw"}],
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1", "nvidia.com/gpu=3"]}],
        "Mounts": [
            *GOLDEN["HostConfig"]["Mounts"],
            alone("/data", "/in"),
        ],
    }
    assert "NVIDIA_VISIBLE_DEVICES=void" in host["Env"], "by its name a GPU comes without the runtime's doing"


def test_the_containers_own_files_have_a_quota_where_the_engine_can_hold_it_to_one():
    config = container_config(SPEC, dataclasses.replace(OPTIONS, layer_mb=100))
    assert config["HostConfig"]["StorageOpt"] == {"size": "100M"}
