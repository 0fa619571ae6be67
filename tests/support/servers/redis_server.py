"""A private Redis for tests: a password, an append-only file, a port of its own on loopback."""

import contextlib
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import redis
from support.deployment import wait_until
from support.free_port import free_port


def find_redis() -> str | None:
    """Redis's server program; None if it is not installed."""
    return shutil.which("redis-server")


class RedisServer:
    """Configured as docker-compose.yml does it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._password = secrets.token_hex(16)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """The folder with its data."""
        return self._folder

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Its URL by the way of another port, a proxy's."""
        return f"redis://:{self._password}@127.0.0.1:{port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=30)

    def start(self) -> None:
        program = find_redis()
        assert program is not None
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self._folder,
            "requirepass": self._password,
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        }
        with (self._folder / "redis.log").open("ab") as log:
            # The password goes in by stdin: a command line can be read by everybody on the machine.
            self._process = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/")
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{name} {value}\n" for name, value in options.items()).encode())
        self._process.stdin.close()
        wait_until(self._is_responding, "Redis to answer")

    def kill(self) -> None:
        """Kill the server, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """Forget everything, while it is down."""
        shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)
        (self._folder / "dump.rdb").unlink(missing_ok=True)

    def read_append_only_file(self) -> bytes:
        """Every command that changed something, whatever became of it later."""
        return b"".join(file.read_bytes() for file in sorted((self._folder / "appendonlydir").glob("*")))

    def freeze(self) -> None:
        """Suspend the server: connections stay open, but nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the server go on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_responding(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False
