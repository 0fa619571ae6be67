"""Data disks of jobs on TPU VMs: what Google is asked for, and real file systems that are mounted and written back."""

import re
import shutil
import subprocess

import pytest
from support.google.tpu_simulator import expect_launch_error
from support.small_disk import find_mount

from worker.backends.tpu.provisioning import startup_parts

pytestmark = pytest.mark.integration

DISKS = ["us-west4-a/imagenet", "us-west4-a/scratch", "us-east5-a/imagenet", "us-east5-b/elsewhere"]


@pytest.fixture
def make_vm_harness(make_google_harness):
    def make(machine_type="TPU v5e", **options):
        options = {
            "vm_poll_seconds": 0.05,
            "probe_seconds": 60.0,
            "unhealthy_seconds": 20.0,
            "data_disks": DISKS,
            "placement": None,
        } | options
        return make_google_harness(machine_type, **options)

    return make


@pytest.mark.parametrize(
    ("machine_type", "disks", "zones", "words"),
    [
        ("TPU v5e", ("other",), ["us-west4-a"], "other is not a disk for jobs"),
        ("TPU v5e", ("scratch", "elsewhere"), ["us-west4-a"], "No zone has all of these disks"),
        ("TPU v5e", ("elsewhere",), ["us-west4-a"], "no zone in GRADIENT_TPU__ZONES has its disks: us-east5-b"),
        ("TPU v5e-16", ("scratch:rw",), ["us-west4-a"], "scratch cannot be written by 4 hosts"),
        ("TPU", ("scratch",), ["us-west4-a"], "do not run on one"),
    ],
)
def test_a_worker_with_other_settings_asks_for_nothing(make_vm_harness, google, machine_type, disks, zones, words):
    place = make_vm_harness(machine_type, zones=zones)
    reason, detail = expect_launch_error(place, place.spec("true", data_disks=disks))
    assert (reason, words in detail, google.made()) == ("option_refused", True, []), detail


def test_a_reservation_in_another_zone_than_the_disks_is_refused(make_vm_harness, google):
    reservations = {"TPU v5e": "us-east5-a/mine"}
    place = make_vm_harness(zones=["us-west4-a", "us-east5-a"], reservations=reservations)
    reason, detail = expect_launch_error(place, place.spec("true", data_disks=("scratch",)))
    assert (reason, "us-east5-a/mine" in detail, google.made()) == ("option_refused", True, [])


@pytest.fixture
def attached(google, tmp_path):
    """Attaches disks to the next VM, as files; `None`: an empty disk."""
    if find_mount() is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("this machine lets no file system be mounted")

    def attach(*contents):
        for number, content in enumerate(contents, start=1):
            image, files = tmp_path / f"disk-{number}", tmp_path / f"files-{number}"
            files.mkdir()
            (files / "words").write_text(content or "")
            with image.open("wb") as file:
                file.truncate(1 << 20)
            if content is not None:
                subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-d", files, image], check=True)
        google.vms.environment |= {"GRADIENT_VM_DEVICES": f"{tmp_path}/disk-"}
        return tmp_path / "disk-1", tmp_path / "disk-2"

    return attach


def test_a_job_reads_its_disks_and_what_it_writes_is_on_them_when_it_has_ended(make_vm_harness, google, attached):
    read, written = attached("of others", "before")
    before = read.read_bytes()
    place = make_vm_harness()
    words = 'cd "$GRADIENT_DISKS_DIR"; cat imagenet/words; echo after >scratch/words; echo x >imagenet/words'
    spec = place.spec(words, data_disks=("imagenet", "scratch:rw"))
    handle = place.launch(spec)
    assert place.wait(handle).code != 0
    found = subprocess.run(["debugfs", "-R", "cat /words", written], capture_output=True, check=True).stdout
    assert found == b"after\n", "it is on the disk before the worker deletes the VM"
    assert google.nodes != []
    place.backend.destroy(handle)
    log = place.output(spec)
    assert (log.startswith(b"of others"), b"Read-only" in log, read.read_bytes() == before) == (True, True, True), log


@pytest.mark.parametrize(
    ("contents", "words"), [((None,), "it needs a file system"), ((), "disk scratch is not attached")]
)
def test_a_disk_that_cannot_be_mounted_ends_the_start_with_its_name(
    make_vm_harness, google, attached, contents, words, tmp_path, monkeypatch
):
    programs = shutil.copytree(startup_parts.ON_VM, tmp_path / "impatient")
    program = (programs / "disks.py").read_text()
    (programs / "disks.py").write_text(
        re.sub(r"^_ATTACH_SECONDS = .*", "_ATTACH_SECONDS = 0.5", program, flags=re.MULTILINE)
    )
    monkeypatch.setattr(startup_parts, "ON_VM", programs)
    attached(*contents)
    place = make_vm_harness()
    reason, detail = expect_launch_error(place, place.spec("true", data_disks=("scratch:rw",)))
    assert (reason, words in detail, google.nodes) == ("launch_failed", True, []), detail
