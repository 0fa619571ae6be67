"""Members of an array that Slurm has as tasks of one array.

A folder of the array, `GRADIENT_HOME/slurm/NAME`, has a link for each task, from its number to the folders of the
member's attempt. Slurm's array is named after it, so that a member is found again by name and number.
"""

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.system.filesystem import write_atomically
from worker.backends.base import LaunchSpec
from worker.backends.slurm.text import SlurmJob
from worker.runner.control_files import read_control

_MEMBER_FILE = "slurm_member"  # beside the control folder: the key by which Slurm knows it
_KEY = re.compile(r"[a-z0-9]+-array-[0-9a-f]{8}/[0-9]+")


def folder_of(spec: LaunchSpec, name: str) -> Path:
    """Return the folder of an array, beside that of all attempts."""
    return spec.control.parents[2] / "slurm" / name


def link_members(specs: Sequence[LaunchSpec]) -> str:
    """Make these the members of a new array, which is then submitted; return its name."""
    name = f"{specs[0].job_id}-array-{secrets.token_hex(4)}"
    folder = folder_of(specs[0], name)
    folder.mkdir(parents=True)
    for task, spec in enumerate(specs):
        unlink_member(spec.control)  # of an array that Slurm refused
        write_atomically(spec.control.parent / _MEMBER_FILE, f"{name}/{task}\n".encode(), durable=False)
        (folder / str(task)).symlink_to(spec.control.parent)
    return name


def describe(tasks: Sequence[int]) -> str:
    """Return ascending numbers as sbatch takes them: `0-3,5`."""
    runs: list[list[int]] = []
    for task in tasks:
        if runs and runs[-1][1] == task - 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def key_of(control: Path) -> str:
    """Return the key by which Slurm knows an attempt: see `SlurmJob.key`."""
    key = read_control(control.parent, _MEMBER_FILE)
    return key if key is not None and _KEY.fullmatch(key) else control.parent.name


def unlink_member(control: Path) -> None:
    """Make an attempt a member of no array; the array's folder is removed with the last one."""
    if "/" in (key := key_of(control)):
        link = control.parents[2] / "slurm" / key
        with suppress(OSError):
            link.unlink()
            (control.parent / _MEMBER_FILE).unlink()
            link.parent.rmdir()


def attempt_of(root: Path, job: SlurmJob) -> str:
    """Return the name of the attempt that a job in Slurm is."""
    if not _KEY.fullmatch(job.key):
        return job.name
    try:
        return (root / "slurm" / job.key).readlink().name
    except OSError:
        return job.key
