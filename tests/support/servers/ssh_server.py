"""A private sshd for tests, and a client that knows it: neither uses files of this machine or of its users."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from support.deployment import wait_until
from support.free_port import free_port

_SERVER = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PasswordAuthentication no
StrictModes no
UsePAM no
LogLevel VERBOSE
"""
_CLIENT = """
Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user_key
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def find_sshd() -> str | None:
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin") if shutil.which("ssh-keygen") else None


class SshServer:
    """Lets in the user who runs the tests. `name` leads to it by the `ssh` in `programs`."""

    name = "login.cluster"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sockets = tempfile.mkdtemp(prefix="ssh-", dir="/tmp")  # their paths may not be longer
        self._port = free_port()
        self.programs = folder / "bin"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.programs.mkdir(parents=True)
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(command, check=True)
        server = _SERVER.format(port=self._port, folder=self._folder)
        if "SLURM_CONF" in os.environ:
            server += f"SetEnv SLURM_CONF={os.environ['SLURM_CONF']}\n"
        (self._folder / "sshd_config").write_text(server)
        (self._folder / "ssh_config").write_text(_CLIENT.format(name=self.name, port=self._port, folder=self._folder))
        self.know_key(self._folder / "host_key.pub")
        program = self.programs / "ssh"
        options = f"-F {self._folder}/ssh_config -o ControlPath={self._sockets}/%C"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
        program.chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # without it, it does not start
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        self.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def know_key(self, file: Path) -> None:
        """Have the client expect the host to have this key."""
        kind, key, *_ = file.read_text().split()
        (self._folder / "known_hosts").write_text(f"[127.0.0.1]:{self._port} {kind} {key}\n")

    def start(self) -> None:
        program = find_sshd()
        assert program is not None
        command = [program, "-D", "-f", str(self._folder / "sshd_config"), "-E", str(self._folder / "log")]
        self._process = subprocess.Popen(command)
        wait_until(lambda: "Server listening" in self.read_log(), "sshd to listen")

    def stop(self) -> None:
        """End it; connections that are open end with the client's."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self._folder / "log").unlink(missing_ok=True)

    def disconnect(self) -> None:
        """End the connection that the client keeps."""
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run([self.programs / "ssh", "-O", "exit", self.name], check=True, capture_output=True)

    def read_log(self) -> str:
        log = self._folder / "log"
        return log.read_text() if log.exists() else ""
