"""The smallest backend: it runs a job's wrapper as a child of the worker, and knows its jobs only while it lives."""

import signal
import subprocess

import psutil

from core.catalogue.backends import Capabilities
from worker.backends.base import WRAPPER, Backend, Exit, base_handle, read_exit_code, write_command


class ToyBackend(Backend):
    capabilities = Capabilities()

    def __init__(self, settings):
        del settings
        self._children = {}

    def launch(self, spec, confirm, progress):
        del progress
        confirm()
        write_command(spec)
        command = [str(WRAPPER), str(spec.control)]
        self._children[spec.name] = spec.control, subprocess.Popen(command, cwd=spec.workspace, env=spec.env)
        return base_handle(spec.job_id, spec.attempt, spec.control)

    def ended(self, handle):
        control, child = self._children[handle["name"]]
        return None if child.poll() is None else Exit(read_exit_code(control))

    def signal(self, handle, *, grace):
        for process in psutil.Process(self._children[handle["name"]][1].pid).children(recursive=True):
            process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)

    def sample(self, handle):
        del handle
        return {}

    def destroy(self, handle):
        if handle["name"] in self._children:
            _, child = self._children.pop(handle["name"])
            child.kill()
            child.wait()

    def owned(self):
        return []
