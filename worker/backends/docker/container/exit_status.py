from pathlib import Path

from core.formatting import MIB
from worker.backends.base import Exit, Handle, read_control
from worker.backends.docker.engine.client import ContainerState
from worker.backends.job_processes import boot_id

_KILLED, _REFUSED, _UNKNOWN = 137, 97, 255


def determine_exit(handle: Handle, state: ContainerState | None, code: int | None) -> Exit:
    """Return how the job ended.

    The exit file takes precedence over the engine, which has been seen to be wrong after a crash.

    Args:
        state: Its ended container; None: the container no longer exists.
        code: The code in the exit file; None: there is no file.
    """
    if state is not None and state.oom_killed and code in {None, _KILLED}:
        limit: int | None = handle.get("memory_bytes")
        detail = f"{limit // MIB} MiB" if limit else "this machine's memory"
        return Exit(_KILLED, "out_of_memory", detail, limit or None)
    if code is not None:
        return Exit(code)
    if handle["boot_id"] != boot_id():
        return Exit(None, "host_restarted")
    began = read_control(Path(handle["control"]), "started") is not None
    if state is None:
        return Exit(None, "process_lost" if began else "never_started", "its container is gone")
    return _exit_without_file(state, began=began)


def _exit_without_file(state: ContainerState, *, began: bool) -> Exit:
    code = state.exit_code
    if not began:
        return Exit(None, "never_started", state.error or f"its container ended with exit code {code}")
    if code in {_REFUSED, _UNKNOWN}:  # started twice by an engine that crashed; or ended with its host
        return Exit(None, "process_lost", f"its container ended with exit code {code}")
    if code == _KILLED:
        return Exit(_KILLED, "process_lost", "its container was killed")
    return Exit(code)  # the wrapper could not write the file, for example on a full disk
