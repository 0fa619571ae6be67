"""The data disks of the VM: mounted before the job starts, and written back after its end."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from worker.runner.job_runner import JobFailed

_DEVICES = os.environ.get("GRADIENT_VM_DEVICES")
_GOOGLE = "/dev/disk/by-id/google-persistent-disk-"  # with 0 behind it, the boot disk
_ATTACH_SECONDS = 10.0


def mount_disks(root: Path, disks: list[dict[str, Any]]) -> None:
    """Mount the disks below `disks`, in the order in which they are attached; simulated ones are empty folders."""
    simulated = _DEVICES is None and os.environ.get("GRADIENT_VM_RUN", "docker") == "process"
    for number, disk in enumerate(disks, start=1):
        folder = root / "disks" / disk["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if simulated or folder.is_mount():
            continue
        device = Path(f"{_DEVICES or _GOOGLE}{number}")
        until = time.monotonic() + _ATTACH_SECONDS
        while not device.exists():
            if time.monotonic() >= until:
                raise JobFailed("launch_failed", f"disk {disk['name']} is not attached: {device} does not exist")
            time.sleep(0.5)
        options = "rw" if disk["writable"] else "ro,norecovery"  # others may have it, too: nothing is written
        done = _run("mount", "-o", options, str(device), str(folder))
        if done.returncode:
            text = f"disk {disk['name']} cannot be mounted; it needs a file system such as ext4"
            raise JobFailed("launch_failed", f"{text}: {done.stdout.strip()}")


def unmount_disks(root: Path) -> None:
    """Unmount the disks, which writes to them what is still in memory: the VM may be deleted next."""
    for folder in (root / "disks").glob("*"):
        if folder.is_mount():
            _run("umount", str(folder))
    os.sync()  # one that is busy was not unmounted


def _run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [shutil.which(program) or program, *arguments]
    return subprocess.run(  # noqa: S603 - fixed commands
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
