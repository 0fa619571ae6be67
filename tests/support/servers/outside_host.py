"""The surroundings of a container engine: a neighbour of its host, with addresses that jobs may or may not reach."""

import contextlib
import subprocess
import sys

import psutil
from support.deployment import wait_until
from support.servers.private_docker_engine import PrivateDockerEngine

PUBLIC_ADDRESS, METADATA_ADDRESS, PRIVATE_ADDRESS = "10.99.0.2", "169.254.169.254", "10.98.0.1"
"""Addresses of the neighbour."""
FETCH_COMMAND = (
    r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 4 {} 2>/dev/null | grep -q HTTP && echo reached || echo kept off"
)
"""A line for the shell of a container: whether something answers at address and port."""


class OutsideHost:
    """A neighbour of the engine's host: an ordinary address, a cloud's metadata address, a private network."""

    def __init__(self, server: PrivateDockerEngine, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._namespace_process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        stack.callback(self._kill, self._namespace_process)
        wait_until(lambda: psutil.Process(self._namespace_process.pid).name() == "sleep", "the neighbour")
        self.network = ["nsenter", "--target", str(self._namespace_process.pid), "--net"]
        here, there = server.network, self.network
        self._run(here, f"ip link add veth0 type veth peer name veth1 netns {self._namespace_process.pid}")
        self._run(here, "ip addr add 10.99.0.1/24 dev veth0")
        self._run(here, "ip link set veth0 up")
        for address in (f"{PUBLIC_ADDRESS}/24", f"{METADATA_ADDRESS}/32", f"{PRIVATE_ADDRESS}/32"):
            self._run(there, f"ip addr add {address} dev veth1")
        self._run(there, "ip link set veth1 up")
        for address in (METADATA_ADDRESS, PRIVATE_ADDRESS):
            self._run(here, f"ip route add {address} via {PUBLIC_ADDRESS}")
        stack.callback(self._run, here, "ip link del veth0")

    def listen(self, network: list[str], port: int) -> None:
        """Answer at this port in a network, until the stack is closed."""
        command = [*network, sys.executable, "-m", "http.server", str(port)]
        process = subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack.callback(self._kill, process)
        connect_command = [
            *network,
            sys.executable,
            "-c",
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
        ]
        self._run(network, "ip link set lo up")
        wait_until(
            lambda: subprocess.run(connect_command, capture_output=True, check=False).returncode == 0, "a listener"
        )

    def _run(self, network: list[str], command: str) -> None:
        subprocess.run([*network, *command.split()], check=True)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
