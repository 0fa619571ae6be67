"""A private PostgreSQL server for tests: its own data folder, a Unix socket, no network."""

import os
import pwd
import shutil
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from sqlalchemy import Connection, NullPool, create_engine, event, func, literal_column, select, table
from support.deployment import wait_until
from support.small_disk import SmallDisk, unmount

from core.db.database import Database


def find_binaries() -> Path | None:
    """The folder of PostgreSQL's server programs, newest first; None if they are not installed."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]), reverse=True)
    if versions:
        return versions[0].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PostgresServer:
    """One server.

    Args:
        folder: For what its programs say.
        disk: Where its data are; None: with the machine's temporary files.
    """

    def __init__(self, folder: Path, disk: SmallDisk | None = None) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self._binaries = binaries
        # Socket paths are limited to about 100 bytes: not under pytest's deep folders.
        self._folder = Path("/tmp") / f"gradient-pg-{uuid.uuid4().hex[:12]}"
        self._log = folder / "server.log"
        self._disk = disk

    def start(self) -> None:
        self._folder.mkdir(mode=0o700)
        if os.getuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam("postgres" if _account_exists("postgres") else "nobody")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        if self._disk is not None:
            self._disk.bind("postgres", self._folder)
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-U", "gradient", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.resume()

    def resume(self) -> None:
        """Start the server over the data that is there."""
        data = str(self._folder / "data")
        options = f"-c listen_addresses='' -k {self._folder} -c fsync=off -c max_connections=200"
        self._run("pg_ctl", "-D", data, "-o", options, "-l", str(self._folder / "log"), "-w", "start")

    def new_database(self, template: str = "template1") -> str:
        """URL of a new database, empty or a copy of the one of this name, which nobody is connected to."""
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(dbname="postgres", host=str(self._folder), user="gradient", autocommit=True) as connection:
            created = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            connection.execute(created)
        return f"postgresql://gradient@/{name}?host={self._folder}"

    def crash(self) -> None:
        """Stop the server as a failure does: at once and without a checkpoint."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    def processes(self) -> list[psutil.Process]:
        """The server's own process first, then those that it started."""
        server = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        return [server, *server.children()]

    def read_log(self) -> str:
        """The server's own log."""
        return (self._folder / "log").read_text(errors="replace")

    @property
    def socket(self) -> str:
        """Path of the Unix socket it listens at."""
        return str(self._folder / ".s.PGSQL.5432")

    def freeze(self) -> None:
        """Suspend the server: connections stay open, but nothing answers."""
        for process in self.processes():
            process.suspend()

    def thaw(self) -> None:
        """Let the server go on where it was."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # of a connection that was just closed
                process.resume()

    def stop(self) -> None:
        """End it, whatever state it is in; nothing of it stays."""
        if (self._folder / "data" / "postmaster.pid").exists():
            self.thaw()
            self.crash()
        if self._disk is not None:
            unmount(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        user = {}
        if os.getuid() == 0:
            name = "postgres" if _account_exists("postgres") else "nobody"
            user = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
        command = [str(self._binaries / program), *arguments]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        # pg_ctl leaves a server behind that would hold a pipe open: its output goes to a file.
        with self._log.open("ab") as log:
            done = subprocess.run(command, cwd="/", env=environment, stdout=log, stderr=log, check=False, **user)
        assert done.returncode == 0, self._log.read_text()


class BackendTerminator:
    """Has the server end the connections of sessions that read or fail, each after its last statement.

    Args:
        database: Over PostgreSQL.
        count: How many sessions.
    """

    def __init__(self, database: Database, count: int = 1) -> None:
        self.remaining = count
        # No pool: several threads may be here at once, and what one disposes of another may be using.
        self._admin_engine = create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        event.listen(database.engine, "rollback", self._terminate_backend)
        event.listen(database.engine, "commit", self._terminate_backend_of_reader)

    def _terminate_backend_of_reader(self, connection: Connection) -> None:
        if connection.get_execution_options().get("postgresql_readonly"):
            self._terminate_backend(connection)

    def _terminate_backend(self, connection: Connection) -> None:
        if self.remaining:
            self.remaining -= 1
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with self._admin_engine.connect() as other:
                # Of a backend that is still there; once it is gone, of none.
                ended = select(func.pg_terminate_backend(pid)).where(literal_column("pid") == pid)
                ended = ended.select_from(table("pg_stat_activity"))
                wait_until(lambda: other.scalar(ended) is None, "the backend to end")


def _account_exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True
