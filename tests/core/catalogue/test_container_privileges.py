"""Privileges that an administrator may grant to a machine type's containers, and those that nobody may."""

import pytest

from core.catalogue.container_privileges import ContainerPolicy
from core.catalogue.machine_types import Catalogue
from core.errors import SpecInvalid

OPENED = """
["A100".docker]
capabilities = ["sys_ptrace", "CAP_IPC_LOCK"]
devices = ["/dev/fuse", "/dev/infiniband/uverbs0"]
network = "host"
pids = 32768
root = true
[A100.docker.mounts]
"/data/imagenet/" = "/imagenet"
"""


def loaded(tmp_path, text):
    file = tmp_path / "machines.toml"
    file.write_text(text)
    return Catalogue.load(override_path=file)


def test_nothing_is_open_unless_the_file_says_so(catalogue):
    assert [machine.name for machine in catalogue if machine.docker != ContainerPolicy()] == []
    assert ContainerPolicy().describe() == ""


def test_a_table_of_a_machine_type_opens_what_it_names(tmp_path):
    machines = loaded(tmp_path, OPENED)
    opened = machines.get("A100").docker
    assert opened.capabilities == ("SYS_PTRACE", "IPC_LOCK")
    assert opened.devices == ("/dev/fuse", "/dev/infiniband/uverbs0")
    assert opened.mounts == {"/data/imagenet": "/imagenet"}
    assert (opened.network, opened.pids, opened.root) == ("host", 32_768, True)
    assert opened.describe() == (
        "capabilities SYS_PTRACE, IPC_LOCK; devices /dev/fuse, /dev/infiniband/uverbs0; "
        "to read /data/imagenet at /imagenet; network host; 32,768 processes; root"
    )
    assert machines.get("V100").docker == ContainerPolicy(), "and to no other"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("privileged = true", "'privileged' is not allowed: jobs are never privileged"),
        ('security_opt = ["seccomp=unconfined"]', "'security_opt' is not allowed"),
        ("cap_add = []", "docker.cap_add: Extra inputs are not permitted"),
        ('capabilities = ["ALL"]', "ALL lets a container control the host"),
        ('capabilities = ["CAP_SYS_ADMIN"]', "SYS_ADMIN lets a container control the host"),
        ('capabilities = ["SYS_FLY"]', "'SYS_FLY' is not a Linux capability"),
        ('devices = ["/dev/sda1"]', "which gives control of the host"),
        ('devices = ["/dev/nvme0n1"]', "which gives control of the host"),
        ('devices = ["/dev/mapper/root"]', "which gives control of the host"),
        ('devices = ["/dev/mem"]', "which gives control of the host"),
        ('devices = ["/dev/nvidia0"]', "the service itself allocates GPUs"),
        ('devices = ["/home/x"]', "is not a device"),
        ('devices = ["/dev/../etc/shadow"]', "must be an absolute path"),
        ('mounts = {"/" = "/host"}', "a system folder of the host"),
        ('mounts = {"/var" = "/host"}', "a system folder of the host"),
        ('mounts = {"/var/run/docker.sock" = "/docker.sock"}', "a system folder of the host"),
        ('mounts = {"/run" = "/host-run"}', "a system folder of the host"),
        ('mounts = {"/etc/ssl" = "/certificates"}', "a system folder of the host"),
        ('mounts = {"/data" = "/storage/data"}', "a path that every container uses"),
        ('mounts = {"/data" = "/"}', "a path that every container uses"),
        ('mounts = {"data" = "/data"}', "must be an absolute path"),
        ('mounts = {"/a" = "/x", "/b" = "/x"}', "two folders have the same path"),
        ('network = "container:abc"', "is not a valid network name"),
        ("pids = 1", "docker.pids"),
        ("pids = 99999999", "docker.pids"),
    ],
)
def test_what_hands_the_host_over_is_refused_with_its_place(tmp_path, table, told):
    with pytest.raises(SpecInvalid, match="machine type 'A100', docker") as refused:
        loaded(tmp_path, f"[A100.docker]\n{table}\n")
    assert told in str(refused.value)
