"""The client as a user types it in a shell."""

import os
import subprocess

from support.deployment import CLI_PROGRAM, TIMEOUT_SECONDS


class ClientShell:
    """A user's shell in a project folder."""

    def __init__(self, service, folder, home):
        self.folder = folder
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("GRADIENT_", "XDG_"))}
        self._env |= {"GRADIENT_HOME": str(service.home), "HOME": str(home), "NO_COLOR": "1"}

    def __call__(self, *arguments, env=None, code=0):
        done = subprocess.run(
            [str(CLI_PROGRAM), *arguments],
            cwd=self.folder,
            env=self._env | (env or {}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def start(self, *arguments):
        return subprocess.Popen(
            [str(CLI_PROGRAM), *arguments],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
