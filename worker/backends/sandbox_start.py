"""Starts bubblewrap for a job, and waits until the job's wrapper runs inside."""

import os
import select
import subprocess
import time
from collections.abc import Mapping

from core.system.bubblewrap_command import PATH
from worker.backends.base import LaunchError, LaunchSpec
from worker.backends.job_sandbox import STARTED, JobSandbox, open_configuration

EXIT_REFUSED = 97
"""Exit code of a wrapper that found the attempt already started, or its control folder deleted."""

_MAX_MESSAGE_BYTES = 4096


def start_sandboxed(
    spec: LaunchSpec, sandbox: JobSandbox, join: list[str], inherited: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start bubblewrap, whose own environment only names the attempt; the job's is in a script in memory.

    Args:
        spec: The job.
        sandbox: Its sandbox.
        join: The words before the command, which join the job's control group.
        inherited: The part of the worker's environment that jobs have.
    """
    uid = sandbox.prepare(spec)
    names = {"GRADIENT_JOB_ID": spec.job_id, "GRADIENT_ATTEMPT": str(spec.attempt)}
    with open_configuration() as copied, os.fdopen(os.memfd_create("script"), "w+b") as script:
        script.write(sandbox.script(inherited, spec))
        script.seek(0)
        return subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [*join, *sandbox.command(spec, uid, copied)],
            cwd="/",
            env={"PATH": PATH} | names,
            stdin=script,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=tuple(copied.values()),
            start_new_session=True,
        )


def wait_for_wrapper(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until the wrapper is started in its sandbox, or until some seconds have passed.

    Raises:
        LaunchError: The sandbox could not be made.
    """
    assert child.stderr is not None  # noqa: S101 - `start_sandboxed` asked for it
    deadline, text = time.monotonic() + seconds, b""
    with child.stderr as errors:
        readable = select.poll()  # not select(): it refuses descriptors above 1023
        readable.register(errors, select.POLLIN)
        while not text.endswith(STARTED) and readable.poll(1000 * max(0.0, deadline - time.monotonic())):
            block = os.read(errors.fileno(), _MAX_MESSAGE_BYTES)
            if not block:
                break
            text = (text + block)[-_MAX_MESSAGE_BYTES:]
        else:
            return
    if child.wait() == EXIT_REFUSED:
        return
    words = text.decode(errors="replace").split()
    raise LaunchError("launch_failed", f"its sandbox could not be made: {' '.join(words)[:300]}")
