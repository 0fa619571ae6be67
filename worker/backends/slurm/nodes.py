"""Jobs on several nodes of an allocation: their folders, their output as one log, and the end of each.

Rank 0 has the control folder itself, except for its log, and rank N the folder `hosts/N` in it. The batch script on the
first node starts all of them, and writes the exit code of all when the last one has ended.
"""

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from worker.backends.base import Exit, Handle, LaunchError, LaunchSpec, write_command
from worker.backends.hosts_log import HostsLog, describe_host, host_folder
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.node import FAILED_FILE
from worker.runner.control_files import read_control, read_exit_code, read_exit_time

logger = logging.getLogger(__name__)


def make_folders(spec: LaunchSpec) -> None:
    """Make the folders of the ranks, if there are several. Raises `LaunchError`."""
    try:
        for rank in range(spec.job_spec.nodes or 0):
            folder = host_folder(spec.control, rank)
            folder.mkdir(parents=True, exist_ok=True)
            if rank:
                write_command(replace(spec, control=folder))
                (spec.artifacts / "hosts" / str(rank)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError.of(error) from error


def list_names(commands: Commands, spec: LaunchSpec, nodes: str) -> list[str]:
    """Return the names of the nodes by rank, of `n[1-2]` n1 and n2; none of a job that asked for none."""
    if spec.job_spec.nodes is None:
        return []
    with suppress(SlurmError):
        return commands.run("scontrol", "show", "hostnames", nodes).split()
    return [nodes] * spec.job_spec.nodes


def read_whole_code(control: Path) -> int | None:
    """Return the exit code of the whole job, on however many nodes; None: it has not ended, or left none."""
    folder = control / "hosts"
    return read_exit_code(folder if folder.is_dir() else control)


class Nodes:
    """The nodes of running jobs, by what they have written; one thread at a time follows a job."""

    def __init__(self) -> None:
        self._logs: dict[str, HostsLog] = {}
        self._ended: set[str] = set()

    def follow(self, handle: Handle, end: Exit | None) -> Exit | None:
        """Bring the output of all nodes to the log; return the end of the job, with the rank that it is due to."""
        control, names = Path(handle["control"]), _names(handle)
        if not names:
            return end
        if end is not None:
            self._ended.add(handle["name"])
        exits = self.exits(handle)
        try:
            log = self._logs.setdefault(handle["name"], HostsLog(control, len(names)))
            log.merge([str(rank) in exits for rank in range(len(names))])
        except OSError:  # the disk is full, for example: the next call continues
            logger.warning("log_of_nodes_not_written", exc_info=True, extra={"job_id": handle["job_id"]})
            return None
        if end is None or end.reason is not None:
            return end
        at = read_exit_time(control / "hosts")
        rank, _, code = (read_control(control, FAILED_FILE) or "").partition(" ")
        if len(names) == 1 or not (code.isdecimal() and rank.isdecimal()):
            return replace(end, at=at)
        host = describe_host(int(rank), names)
        text = f"{host} failed first, with exit code {code}. See its log with `jobs logs --rank`."
        return Exit(int(code), "slurm_rank_failed", text, at=at)

    def exits(self, handle: Handle) -> dict[str, int | None]:
        """Return the exit codes of the nodes that have ended, by rank; none of a job that has no ranks."""
        control = Path(handle["control"])
        folders = enumerate([control, *(host_folder(control, rank) for rank in range(1, len(_names(handle))))])
        codes = {str(rank): read_exit_code(folder) for rank, folder in folders}
        all_ended = handle["name"] in self._ended
        return {rank: code for rank, code in codes.items() if all_ended or code is not None} if _names(handle) else {}

    def forget(self, name: str) -> None:
        self._logs.pop(name, None)
        self._ended.discard(name)


def _names(handle: Handle) -> list[str]:
    names: list[str] = handle.get("allocation", {}).get("addresses", [])
    return names
