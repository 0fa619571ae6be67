"""The process backend: really runs the command, as a process on this machine's CPU.

It simulates any machine type, and its jobs are marked as simulated. The job has the environment, folders, limits and
signals of the other backends. It runs in a sandbox (`job_sandbox.py`) and a session of its own that outlive the worker.
Without a sandbox it is a plain process of the worker's user; its folders are not mounted at `/`, and the environment
names them.

Two variables of the job's environment script it, to try a pipeline out:

- `SIMULATE_START_FAILURE=why`: it cannot be started;
- `SIMULATE_PREEMPT_AFTER=seconds`: its machine is taken away after that time.

Where the worker may write to control groups, they limit memory and CPUs (`control_groups.py`). Elsewhere CPUs are bound
by affinity alone, and memory is measured about twice a second.
"""

import math
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from core.catalogue.backends import BACKENDS, Capabilities
from core.formatting import format_memory
from core.settings import Settings
from core.system.failpoints import failpoint
from worker.backends.base import (
    Backend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    write_command,
)
from worker.backends.job_connections import JobConnections, KeptConnections
from worker.backends.job_processes import JobProcesses, boot_id, find_running
from worker.backends.metric_sockets import MetricSockets
from worker.backends.network_limits import FirewallUnavailable
from worker.backends.process.control_groups import JobGroup, control_group_support
from worker.backends.process.job_sandbox import EXIT_REFUSED, make_sandbox, sandbox_support, unshowable_path
from worker.backends.process.network.job_network import (
    HOST_NETWORK,
    NO_NETWORK,
    is_own_network,
    join_network_of,
    make_network,
    reason_without_network,
)
from worker.backends.process.plain_start import (
    inherited_environment,
    join_words,
    preempt_after,
    reject_unsupported,
    start_plain,
)
from worker.backends.process.process_exec import connect_to_processes, explain_unreached, run_in_processes
from worker.backends.process.sandbox_processes import SandboxProcesses, find_sandbox, is_sandbox, kill_sandbox
from worker.backends.process.sandbox_start import finish_start, start_sandboxed
from worker.backends.process.shared_sandbox import Member, MemberSpec
from worker.backends.termination import Terminations, warn
from worker.runner.control_files import (
    STOPPING_FILE,
    may_have_launched,
    read_control,
    read_exit_code,
    read_pid,
    write_control_file,
)
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream, SocketStream
from worker.runner.usage import UsageMeter
from worker.sandbox.network_namespace import JobNetwork

NEVER_STARTED_SECONDS = 15.0
_MEMORY_CHECK_SECONDS = 0.5
_SIGNALLED, _KILLED = 128, 137


class ProcessBackend(Backend):
    """See the module. One instance serves all attempt threads of a worker."""

    def __init__(self, settings: Settings) -> None:
        self._sandbox = make_sandbox(settings)
        mounts = self._sandbox is not None
        self._unshowable = unshowable_path(settings) if mounts else None
        self._groups, self._no_groups = control_group_support(settings.process.cgroups)
        if self._groups is not None and mounts:
            self._groups = self._groups.of_sandboxes()
        self._settings, self._attempts = settings, settings.root / "attempts"
        self._network = make_network(settings, lambda: self.shared()) if mounts else lambda: HOST_NETWORK  # noqa: PLW0108 - `shared` is bound later
        self._connections, self._lock = JobConnections(settings, self._first), threading.Lock()
        self.children: dict[str, list[subprocess.Popen[bytes] | Member]] = {}
        self._meters: defaultdict[str, UsageMeter] = defaultdict(UsageMeter)
        self.sandboxes: dict[str, int] = {}
        self._terminations, self._next_cpu = Terminations(), 0

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # they change with the keys
        own_network = self._network() is not HOST_NETWORK
        return replace(BACKENDS["process"].capabilities, mounts=self._sandbox is not None, own_network=own_network)

    def unavailable_reason(self) -> str | None:
        mode = self._settings.process.sandbox
        if self._sandbox is None and (mode == "require" or (mode == "auto" and self.shared())):
            rule = "GRADIENT_PROCESS__SANDBOX=require" if mode == "require" else "more than one API key is valid"
            return f"jobs have no sandbox here, and {rule}: {sandbox_support().problem}"
        if self._settings.process.network == "require" and (why := reason_without_network(self._settings)):
            return f"jobs have no separate network here, but GRADIENT_PROCESS__NETWORK=require: {why}"
        if self._settings.process.cgroups == "require" and self._groups is None:
            return f"jobs have no control groups here, but GRADIENT_PROCESS__CGROUPS=require: {self._no_groups}"
        return self._unshowable

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        del progress  # the start takes no time
        if (missing := self.unavailable_reason()) is not None:
            raise LaunchError("launch_failed", missing)
        if "SIMULATE_START_FAILURE" in spec.env:
            raise LaunchError("launch_failed", spec.env["SIMULATE_START_FAILURE"] or "as SIMULATE_START_FAILURE asks")
        reject_unsupported(spec, sandboxed=self._sandbox is not None)
        failpoint("created")
        confirm()
        failpoint("confirmed")
        launched = may_have_launched(spec.control)
        first = find_sandbox(spec.job_id, spec.attempt) if launched else None
        network = self._network_of(spec)
        if read_control(spec.control, "started") is None and first is None:
            self._connections.check_ports(spec.name, spec.ports)
            if not launched:
                write_command(spec)
            sandboxed, own_network = self._sandbox is not None, network is not HOST_NETWORK
            metrics_variables = self._connections.metrics_environment(
                spec.name, own_network=own_network, rank=spec.rank
            )
            self._start(replace(spec, env=spec.env | metrics_variables), network)
            failpoint("launched")
        else:  # by another worker, perhaps with other settings
            sandboxed, own_network = first is not None, first is not None and is_own_network(first)
        return self._make_handle(spec, sandboxed=sandboxed, own_network=own_network)

    def _make_handle(self, spec: LaunchSpec, *, sandboxed: bool, own_network: bool) -> Handle:
        group = self._group(spec.base_handle())
        wanted = own_network and spec.job_spec.network is None
        return {
            **spec.base_handle(),
            "boot_id": boot_id(),
            # The clock of all processes since the machine's start, which nobody adjusts.
            "launched": time.monotonic(),
            "memory_bytes": spec.memory_bytes,
            "preempt_after": preempt_after(spec.env),
            "stop_grace": spec.job_spec.stop_grace,
            "stop_signal": spec.stop_signal,
            "sandboxed": sandboxed,
            "own_network": own_network,
            "rank": spec.rank,
            "metrics_port": self._connections.ports_on_host.get(spec.name),
            "leads_out": reason_without_network(self._settings) is None if wanted else None,
            "ports": [(port.external, port.internal) for port in spec.ports],
            "control_group": group.to_handle() if group is not None else None,
        }

    def ended(self, handle: Handle) -> Exit | None:
        control = Path(handle["control"])
        self._terminations.proceed(handle, self.processes)
        codes = self._start_codes(handle["name"])
        returned = next((code for code in codes if code not in {None, EXIT_REFUSED}), None)
        code = read_exit_code(control)
        if code is None and handle["boot_id"] == boot_id():
            # bubblewrap ends with its wrapper, and before that begins there is nothing else to see.
            runs = handle["sandboxed"] and None in codes
            # First: the wrapper may start while it is looked for.
            began = runs or read_control(control, "started") is not None
            if runs or self.processes(handle).leader_alive():
                self._watch_limits(handle, control)
                if handle.get("own_network") or handle.get("metrics_port"):
                    self._connections.serve(handle)
                return None
            code = read_exit_code(control)  # the job may have ended since the first read
            if code is None:
                return self._exit_without_file(handle, returned, began=began)
        if code is None:
            return Exit(None, "host_restarted")
        if read_control(control, STOPPING_FILE) is not None and self._any_left(handle):
            return None  # the shell ends at once; the training may still be saving, until its grace period is over
        self._mark_out_of_memory(handle)
        return self._marked_exit(handle, code)

    def _any_left(self, handle: Handle) -> bool:
        """Return whether a process of a job that has ended is left; none of a sandbox can leave its control group."""
        group = self._group(handle) if handle["sandboxed"] else None
        return any(self.processes(handle).all()) if group is None else bool(group.pids())

    def _exit_without_file(self, handle: Handle, returned: int | None, *, began: bool) -> Exit | None:
        """Handle a missing wrapper without exit file: the disk was full, all was killed, or it has not begun yet."""
        control, ended = Path(handle["control"]), returned is not None
        # bubblewrap reports a wrapper that a signal ended as 128 and the signal.
        most = _SIGNALLED if handle["sandboxed"] else math.inf
        if returned is not None and 0 <= returned <= most and (began or returned):  # no success of what has not begun
            self._mark_out_of_memory(handle)
            return self._marked_exit(handle, returned)
        if began or (ended and read_control(control, "started") is not None):
            # Of several starts at once, the sandbox that was found may be that of one that was refused.
            again = handle["sandboxed"] and find_sandbox(handle["job_id"], handle["attempt"]) is not None
            return None if again else Exit(None, "process_lost")
        waits = not ended and (_age(handle) < NEVER_STARTED_SECONDS or any(self.processes(handle).all()))
        return None if waits else Exit(None, "never_started")

    def signal(self, handle: Handle, *, grace: bool) -> None:
        """See `Backend.signal`; the wrapper is spared, so that it can record the exit code."""
        if grace:
            write_control_file(Path(handle["control"]), STOPPING_FILE, "asked to end")
            self._terminations.begin(handle, self.processes(handle))
        else:
            self.processes(handle).kill(spare_leader=True)

    def warn(self, handle: Handle, number: int) -> None:
        warn(self.processes(handle), Path(handle["control"]), number, handle["stop_signal"])

    def taken_at(self, handle: Handle) -> float | None:
        after: float | None = handle["preempt_after"]
        return None if after is None else handle["launched"] + after

    def sample(self, handle: Handle) -> dict[str, float]:
        members, meter = self.processes(handle), self._meters[handle["name"]]
        if (group := self._group(handle)) is not None:
            used = group.cpu_seconds(), group.memory_bytes(), len(group.pids() - members.sandbox_pids())
        else:
            used = members.usage(meter)
        if handle.get("leads_out") and isinstance(members, SandboxProcesses):
            self._network().renew(members.first)
        return meter.sample(*used)

    def layer_bytes(self, handle: Handle) -> int:
        """See `Backend.layer_bytes`: the files that the job has deleted and has open, but none of shared storage."""
        return self.processes(handle).unlinked_bytes(Path(handle["control"]), self._settings.root / "storage")

    def written_bytes(self, handle: Handle) -> int:
        return self.processes(handle).written_bytes()

    def destroy(self, handle: Handle) -> None:
        name, group = handle["name"], self._group(handle)
        if group is not None:
            group.kill_all()
        self._kill_all(handle)
        with self._lock:
            children = self.children.pop(name, [])
        for child in children:
            child.wait()
        if group is not None:
            group.remove()
        self._connections.close(handle)
        self._network().give_back(name, ended=group is not None and not group.exists())
        self.sandboxes.pop(name, None)
        self._meters.pop(name, None)
        self._terminations.forget(name)

    def _kill_all(self, handle: Handle) -> None:
        """Kill the job's processes. The sandbox of a job that only this worker has started is known."""
        name, job_id, attempt = handle["name"], handle["job_id"], handle["attempt"]
        starts, first = self._start_codes(name), self.sandboxes.get(name)
        if first is not None and len(starts) == 1 and EXIT_REFUSED not in starts:
            kill_sandbox(first, job_id, attempt)
        else:
            self.processes(handle).kill(spare_leader=False)

    def run_in_job(self, handle: Handle, request: ExecRequest) -> ProcessStream:
        members = self.processes(handle)
        if self._sandbox is not None and not isinstance(members, SandboxProcesses):
            raise ExecRefused("The job has no sandbox to enter: it has just ended, or began without one.")
        return run_in_processes(members, request, join_words(self._group(handle)))

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> SocketStream:
        del session_id  # the connection needs no name
        try:
            first = self._first(handle)
            if first is not None and is_own_network(first):
                return SocketStream(self._connections.connect(handle, port))
            on_host = {internal: external for external, internal in handle.get("ports", ())}
            return connect_to_processes(self.processes(handle), on_host.get(port, port))
        except OSError as error:
            raise explain_unreached(port, error) from error

    def metric_sockets(self) -> MetricSockets:
        return self._connections.metrics

    def owned(self) -> list[Handle]:
        return find_running(self._attempts)

    def _start(self, spec: LaunchSpec, network: JobNetwork) -> None:
        allowed = os.sched_getaffinity(0)
        if spec.job_spec.cpus is not None:
            os.sched_setaffinity(0, self._cpus(spec.job_spec.cpus))  # of this thread; the child inherits it
        start = None
        try:
            group = self._make_group(spec)
            if self._start_in_shared(spec, group, network):
                return
            inherited = inherited_environment(spec.python)
            if self._sandbox is None:
                child = start_plain(spec, join_words(group), inherited)
            else:
                joined = group if group is not None and group.joined_at_once else None
                start = start_sandboxed(spec, self._sandbox, inherited, join_words(joined), network)
                group = group if joined is None else None
                child = start.bubblewrap
        except OSError as error:
            raise LaunchError.of(error) from error
        except FirewallUnavailable as error:
            raise LaunchError("launch_failed", str(error)) from error
        finally:
            os.sched_setaffinity(0, allowed)
        with self._lock:
            # After a second launch, the wrapper that was refused must not hide the one that runs.
            self.children.setdefault(spec.name, []).append(child)
        if start is not None:
            first = finish_start(start, group, NEVER_STARTED_SECONDS, partial(self._connect, spec, network))
            if first is not None:
                self.sandboxes[spec.name] = first

    def _start_in_shared(self, spec: LaunchSpec, group: JobGroup | None, network: JobNetwork) -> bool:
        """Start a member of an array in the sandbox that it shares; return whether it was."""
        if self._sandbox is None or not isinstance(spec, MemberSpec):
            return False
        member = spec.shared.start(spec, self._sandbox, group, network, partial(self._serve, spec, network))
        if member is not None:
            self.children.setdefault(spec.name, []).append(member)
            self.sandboxes[spec.name] = member.first
        return member is not None

    def await_end(self, handle: Handle, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            for child in self.children.get(handle["name"], [])[-1:]:
                child.wait(seconds)

    def _network_of(self, spec: LaunchSpec) -> JobNetwork:
        network = self._network() if spec.job_spec.network is None else NO_NETWORK
        if spec.host_network or network is HOST_NETWORK:
            return HOST_NETWORK
        return join_network_of(*spec.first_node, network) if spec.first_node else network

    def _connect(self, spec: LaunchSpec, network: JobNetwork, first: int) -> None:
        """Complete the network of a sandbox; the job waits meanwhile."""
        if network is not HOST_NETWORK:
            try:
                network.attach(first)
            except OSError as error:
                raise LaunchError("launch_failed", f"its network could not be created: {error}") from error
            self._serve(spec, network, first)

    def _serve(self, spec: LaunchSpec, network: JobNetwork, first: int, kept: KeptConnections | None = None) -> None:
        """Open what leads to a job that begins, by a process in its network; see `JobConnections.serve`."""
        if network is not HOST_NETWORK:
            handle = spec.base_handle() | {"rank": spec.rank}
            self._connections.serve(handle, first, kept)

    def _make_group(self, spec: LaunchSpec) -> JobGroup | None:
        if self._groups is None:
            return None
        group = self._groups.group(spec.name)
        group.create(spec.memory_bytes, spec.job_spec.cpus, self._settings.docker.pids)
        return group

    def _group(self, handle: Handle) -> JobGroup | None:
        """Return the job's control group; None if it was started without one."""
        if stored := handle.get("control_group"):
            group = JobGroup.from_handle(stored, handle["name"])
        else:
            group = self._groups.group(handle["name"]) if self._groups is not None else None
        return group if group is not None and group.exists() else None

    def _mark_out_of_memory(self, handle: Handle) -> bool:
        """Record that the kernel killed a process of the job for its memory limit, if it did; return whether."""
        limit: int | None = handle["memory_bytes"]
        if limit is None or (group := self._group(handle)) is None or not group.out_of_memory():
            return False
        write_control_file(Path(handle["control"]), "out_of_memory", format_memory(limit))
        return True

    def _marked_exit(self, handle: Handle, code: int) -> Exit:
        """Return the job's end, with the reason for which this backend ended it, if it did."""
        control, limit = Path(handle["control"]), handle["memory_bytes"]
        if (detail := read_control(control, "out_of_memory")) is not None:
            peak = self._meters[handle["name"]].peak
            return Exit(code or _KILLED, "out_of_memory", detail, limit and max(limit, peak))  # no success
        detail = read_control(control, "preempted")
        return Exit(code, "preempted" if detail is not None else None, detail)

    def processes(self, handle: Handle) -> JobProcesses:
        """Return the processes of the job, in its sandbox if it has one, whatever a changed handle says."""
        job_id, attempt = handle["job_id"], handle["attempt"]
        if self._sandbox is not None or handle.get("sandboxed", True):
            first = self.sandboxes.get(handle["name"])
            if first is None or not is_sandbox(first, job_id, attempt):
                first = find_sandbox(job_id, attempt)
            if first is not None:
                self.sandboxes[handle["name"]] = first
                return SandboxProcesses.of(job_id, attempt, first, self._group(handle))
        return JobProcesses(job_id, attempt, read_pid(Path(handle["control"])))

    def _first(self, handle: Handle) -> int | None:
        """Return the first process of the job's sandbox."""
        members = self.processes(handle)
        return members.first if isinstance(members, SandboxProcesses) else None

    def _cpus(self, wanted: float) -> set[int]:
        """Choose the next CPUs in turn, so that small jobs do not all share the first ones."""
        available = sorted(os.sched_getaffinity(0))
        count = min(len(available), math.ceil(wanted))
        with self._lock:
            first, self._next_cpu = self._next_cpu, self._next_cpu + count
        return {available[(first + i) % len(available)] for i in range(count)}

    def _start_codes(self, name: str) -> list[int | None]:
        """Return the exit codes of this worker's starts of an attempt, None of those that run; reaps the others."""
        with self._lock:
            return [child.poll() for child in self.children.get(name, ())]

    def _watch_limits(self, handle: Handle, control: Path) -> None:
        limit: int | None = handle["memory_bytes"]
        if limit is not None and self._is_over_memory(handle, control, limit):
            self.processes(handle).kill(spare_leader=True)
        after, running = handle["preempt_after"], _age(handle)
        if after is None:
            return
        if running >= after + handle["stop_grace"]:
            self.processes(handle).kill(spare_leader=True)
        elif running >= after and read_control(control, "preempted") is None:
            write_control_file(control, "preempted", "as SIMULATE_PREEMPT_AFTER asks")
            self._terminations.begin(handle, self.processes(handle))

    def _is_over_memory(self, handle: Handle, control: Path, limit: int) -> bool:
        """Return whether the job has had more memory than its limit, which without a control group is measured."""
        if self._group(handle) is not None:
            return self._mark_out_of_memory(handle)
        meter = self._meters[handle["name"]]
        if time.monotonic() - meter.measured_at < _MEMORY_CHECK_SECONDS:
            return False
        used = self.processes(handle).usage(meter, limit)[1]
        if used > limit:
            write_control_file(control, "out_of_memory", f"{format_memory(limit)}, {format_memory(used)} used")
        return used > limit


def _age(handle: Handle) -> float:
    return float(time.monotonic() - handle["launched"])
