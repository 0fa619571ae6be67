"""PgBouncer in front of a test's PostgreSQL server."""

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

from support.deployment import wait_until

_PORT = 6432


def find_pgbouncer() -> str | None:
    """The program; None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """Pools transactions at a Unix socket.

    Args:
        server: The folder of the PostgreSQL server's socket.
        options: Further lines of its configuration.
    """

    def __init__(self, server: Path, *options: str) -> None:
        program = find_pgbouncer()
        assert program is not None
        # Paths of sockets are limited: not under pytest's deep folders.
        self._folder = Path("/tmp") / f"gradient-pgb-{uuid.uuid4().hex[:12]}"
        self._folder.mkdir()
        self._folder.chmod(0o777)
        lines = [
            "[databases]",
            f"* = host={server} user=gradient",
            "[pgbouncer]",
            "pool_mode = transaction",
            "default_pool_size = 3",
            "auth_type = any",
            f"unix_socket_dir = {self._folder}",
            f"listen_port = {_PORT}",
            *options,
        ]
        file = self._folder / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        user = ["-u", "postgres"] if os.getuid() == 0 else []  # it refuses to run as root
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([program, *user, str(file)], stdin=subprocess.DEVNULL, stderr=log)
        wait_until((self._folder / f".s.PGSQL.{_PORT}").exists, "PgBouncer")

    def url(self, database: str) -> str:
        """URL of a server's database through it."""
        return f"{database.partition('?')[0]}?host={self._folder}&port={_PORT}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        shutil.rmtree(self._folder)
