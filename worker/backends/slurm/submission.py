"""Submission of jobs to Slurm: their environment, the options of sbatch, and the members of arrays.

Members of an array are tasks of one array in Slurm. A folder of the array, `GRADIENT_HOME/slurm/NAME`, has a link for
each task, from its number to the folders of the member's attempt. Slurm's array is named after it, so that a member is
found again by name and number.
"""

import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from core.catalogue.slurm import SlurmRequest
from core.system.filesystem import write_atomically
from worker.backends.base import CONTROL, WORKSPACE, WRAPPER, LaunchError, LaunchSpec
from worker.backends.process.plain_start import inherited_environment
from worker.backends.slurm.commands import SlurmError
from worker.backends.slurm.node import PORTS_FILE, VARIABLES_FILE
from worker.backends.slurm.text import SlurmJob
from worker.runner.control_files import read_control, write_control_file

BATCH = Path(__file__).with_name("batch.sh")
ENVIRONMENT_FILE = "variables"  # beside the control folder
OUTPUT_FILE = "slurm_output"  # in the control folder: what the batch script itself says
EXPORTED = "HOME,LOGNAME,SHELL,TERM,USER"  # variables that srun passes on; the others are in the file
_MARGIN_SECONDS = 120  # after time limit and grace period, until Slurm ends a job that we should have ended
_MAX_NOTICE_SECONDS = 65_535  # of sbatch
_FULL = ("MaxSubmit", "job submit limit", "MaxJobCount")
_NOT_INHERITED = frozenset({"TMPDIR"})  # the node has its own
_MEMBER_FILE = "slurm_member"  # beside the control folder: the key by which Slurm knows it
_KEY = re.compile(r"[a-z0-9]+-array-[0-9a-f]{8}/[0-9]+")


def comment(control: Path) -> str:
    return f"gradient-jobs {control}"


def write_environment(spec: LaunchSpec) -> None:
    """Write the job's whole environment, which may hold secrets, as a shell reads it."""
    # In a container, the image's variables and those of the node are the others.
    inherited = {"PYTHONNOUSERSITE": "1"} if spec.container else inherited_environment(spec.python)
    env = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED} | spec.env
    lines = ["unset LC_ALL SLURM_EXPORT_ENV", *_exports(env)]  # else srun in the job might pass on less than all
    if spec.ports:
        write_control_file(spec.control, PORTS_FILE, " ".join(str(port.internal) for port in spec.ports))
    if spec.ports or spec.job_spec.nodes:
        control = CONTROL if spec.container else spec.control
        lines.append(f"control=${{control:-{shlex.quote(str(control))}}}")  # of several nodes, each sets its own
        lines.append(f'. "$control/{VARIABLES_FILE}"')
        lines += _exports({name: spec.env[name] for name in spec.job_spec.env_vars if name in spec.env})
    folder = spec.working_dir or (WORKSPACE if spec.container else spec.workspace)
    lines.append(f"cd -- {shlex.quote(str(folder))}")
    try:
        write_atomically(spec.control.parent / ENVIRONMENT_FILE, "\n".join([*lines, ""]).encode(), durable=False)
    except OSError as error:
        raise LaunchError.of(error) from error


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def options(
    spec: LaunchSpec, request: SlurmRequest, further: Sequence[str], srun: str, array: Path | None = None
) -> list[str]:
    """Return the arguments of sbatch. Later options replace earlier ones; the last are those that nobody may change.

    `array`: the folder of the array whose members are submitted, each of which is as this one; see `arrays.py`.
    """
    job, grace = spec.job_spec, spec.job_spec.stop_grace
    seconds = request.longest(None if job.time_limit is None else job.time_limit + grace + _MARGIN_SECONDS)
    warning = job.warning()
    warned = 0 if warning is None else warning.seconds
    notice = min(grace + 60 + warned, _MAX_NOTICE_SECONDS, *(() if seconds is None else (seconds // 2,)))
    name, at = (spec.name, spec.control) if array is None else (array.name, array)
    output = _plain(spec.control) if array is None else f"{_plain(array)}/%a/control"
    batch = [str(BATCH), str(WRAPPER), str(at), sys.executable, spec.job_id, str(spec.attempt), str(grace)]
    batch += [str(spec.stop_signal), str(spec.warning_signal or 0), str(max(0, round(min(warned, notice - grace))))]
    batch += [srun] if job.nodes else []  # the batch script starts each node
    return [
        *further,
        *request.sbatch_options(job.cpus, job.memory_mb, seconds),
        *job.slurm_options,
        "--parsable",
        f"--job-name={name}",
        f"--comment={comment(at)}",
        "--no-requeue",
        f"--nodes={job.nodes or 1}",
        f"--ntasks={job.nodes or 1}",
        "--ntasks-per-node=1",
        f"--output={output}/{OUTPUT_FILE}",
        "--open-mode=append",
        "--export=ALL",  # with a list, Slurm starts a login shell before each job, to read its variables
        "--propagate=NONE",
        # Slurm's own limit, such as that of the partition: the job is asked to end before it.
        f"--signal=B:USR1@{notice:.0f}",
        *batch,
    ]


def _plain(path: Path) -> str:
    """Return a path in which Slurm replaces nothing."""
    return str(path).replace("\\", "\\\\").replace("%", "%%")


def takes_fewer(error: SlurmError) -> bool:
    """Return whether Slurm may take an array of fewer members."""
    return is_full(error) or "Invalid job array specification" in str(error)


def is_full(error: SlurmError) -> bool:
    """Return whether Slurm takes no more jobs of this user now."""
    return any(text in str(error) for text in _FULL)


def describe_delay(error: SlurmError) -> str:
    if is_full(error):
        return f"Slurm accepts no further jobs of this account now; the job is submitted when others end: {error}"
    return f"Slurm does not answer: {error}"


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
