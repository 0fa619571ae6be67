"""One ssh connection to a job: its key, its commands, and what it forwards to ports of the job."""

import asyncio
import json
import logging
import re
from collections.abc import MutableMapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import asyncssh
from asyncssh.stream import SSHServerStreamSession, SSHTCPStreamSession
from sqlalchemy import select
from starlette.exceptions import HTTPException

from core.db.models.credentials import SshKey
from core.db.models.jobs import Job
from core.errors import GradientError, JobNotFound, KeyRefused, SpecInvalid, StoreUnavailable, Unauthorized
from core.jobs import queries
from core.jobs.exec import audit, channel
from core.security.actor import Actor, Unwritten, act_as
from core.security.key_rights import KeyRights
from core.security.visibility import seeing_as
from core.settings import Settings
from core.system.filesystem import write_atomically
from service.app_state import AppState
from service.auth.authentication import Principal, viewer_of
from service.auth.ownership import require_owner
from service.exec.bridge import PING_SECONDS, Bridge, Session

asyncssh.set_log_level(logging.WARNING)  # it would log every command
logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 512  # at once; each costs about 100 kB
_SECONDS = 30  # for a login, and between signs of life
_NAME = re.compile(r"[a-z0-9]{1,16}(\.[0-9]{1,9})?\Z")
_TERM = re.compile(r"[A-Za-z0-9._+-]{1,64}\Z")
_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"
_SFTP = """
for folder in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec; do
    [ ! -x $folder/sftp-server ] || exec $folder/sftp-server
done
echo "The job's image has no sftp-server, which sftp and scp need (Debian: openssh-sftp-server)." >&2
exit 127
"""
_connections: set["_Server"] = set()


def host_key(settings: Settings) -> asyncssh.SSHKey:
    """Return the endpoint's key, which is made once."""
    path = settings.root / "ssh_host_key"
    if not path.exists():
        with suppress(FileExistsError):  # of two processes that start at once, both use the first one's
            write_atomically(path, asyncssh.generate_private_key("ssh-ed25519").export_private_key(), replace=False)
    return asyncssh.read_private_key(path)


def accept(app_state: AppState) -> asyncssh.SSHServerConnection:
    """Return the protocol of a new connection."""
    options = asyncssh.SSHServerConnectionOptions(
        server_factory=lambda: _Server(app_state),
        server_host_keys=[host_key(app_state.settings)],
        login_timeout=_SECONDS,
        keepalive_interval=_SECONDS,
        agent_forwarding=False,
        line_editor=False,
    )
    return asyncssh.SSHServerConnection(asyncio.get_running_loop(), options)


def fingerprint(line: str) -> str:
    """Return the fingerprint of a line of a .pub file, as `ssh-keygen -l` prints it."""
    try:
        return asyncssh.import_public_key(line).get_fingerprint()
    except asyncssh.KeyImportError as error:
        text = f"{line[:60]!r} is not a line of a .pub file that is accepted. Make one with `ssh-keygen -t ed25519`."
        raise SpecInvalid(text, field="publicKeys") from error


def _find(app_state: AppState, name: str, of: str, *, to_enter: bool) -> tuple[Principal, Job]:
    """Return whom the key of a fingerprint stands for in a job, and the job.

    `name`: the job's id, or that of an array, for its first member, or `ID.RANK` for another one. Raises
    `GradientError`: the key may not enter it, or, if it is to, it cannot be entered now.
    """
    if not _NAME.match(name):
        raise JobNotFound(name)
    refusal: GradientError = Unauthorized("The key belongs to no API key: `gradient-cli ssh-config` adds it.")
    with app_state.database.read() as session:
        member = select(Job.id).where(queries.array_condition(name.replace(".", "_"))).order_by(Job.array_index)
        keys = select(SshKey.key_id).where(SshKey.fingerprint == of).order_by(SshKey.created_at)
        for key_id in session.scalars(keys).all():
            try:
                key = app_state.keys.get(key_id)
                if not KeyRights.of(key.rights).allows("submit"):
                    raise KeyRefused(f"The API key {key.id} may only read.")
                caller = Principal(key.id, key.name)
                with seeing_as(viewer_of(app_state, key.id)):
                    job = queries.get(session, session.scalar(member) or name)
                    require_owner(session, app_state, caller, job.id)
            except GradientError as error:
                refusal = error
            else:
                return caller, audit.enterable_job(session, job.id) if to_enter else job
    raise refusal


class _Server(asyncssh.SSHServer):
    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self._recorded: set[int] = set()
        self._ports = AsyncExitStack()  # the records of what goes to ports
        self._held: set[AsyncExitStack] = set()  # the connections to ports

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        _connections.add(self)
        if len(_connections) > _MAX_CONNECTIONS:
            conn.abort()

    def connection_lost(self, *_: object) -> None:
        _connections.discard(self)

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept a key that may enter the job; an unknown job is refused like one of somebody else."""
        self._address = address = str((self._connection.get_extra_info("peername") or ("",))[0])
        self._find = partial(_find, self._app_state, username, key.get_fingerprint())
        try:
            caller, _ = await self._app_state.lanes.urgent.run(partial(self._find, to_enter=False))
            self._app_state.limits.requests.acquire(caller.id)
        except GradientError as error:
            logger.info("ssh_refused", extra={"job_id": username[:40], "why": error.message, "client": address})
            refused = Unwritten("refused", "SSH", type(error).__name__, address=address)
            self._app_state.record.unwritten.append(refused)
            return False
        self._app_state.keys.used_from(caller.id, address)
        return True

    async def _enter(self) -> tuple[Principal, Job]:
        """Return who comes, and the job. Raises `GradientError`: it may not, or cannot, be entered now."""
        caller, job = await self._app_state.lanes.urgent.run(partial(self._find, to_enter=True))
        act_as(Actor(caller.id, self._address))
        return caller, job

    def auth_completed(self) -> None:
        self._connection.create_task(self._watch())

    async def _watch(self) -> None:
        """End the connection once its key or its job is no longer there."""
        async with self._ports:
            while not self._connection.is_closed():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._connection.wait_closed(), PING_SECONDS)
                try:
                    with suppress(StoreUnavailable, HTTPException):  # the next check may succeed
                        await self._enter()
                except GradientError as error:
                    self._connection.disconnect(asyncssh.DISC_BY_APPLICATION, error.message)
            for held in [*self._held]:
                await self._release(held)

    def session_requested(self) -> Any:  # noqa: ANN401 - a channel and its session
        return self._connection.create_server_channel(encoding=None), _Command(self._run)

    async def _run(self, *streams: Any) -> None:  # noqa: ANN401 - stdin, stdout and stderr of asyncssh
        of, peer = streams[0].channel, _Peer(*streams)
        kind, (columns, rows, *_), text = of.get_terminal_type(), of.get_terminal_size(), of.get_command()
        text = _SFTP if of.get_subsystem() else _SHELL if text is None else text.replace("\0", "")
        terminal = kind and (min(rows or 24, 9999), min(columns or 80, 9999), kind if _TERM.match(kind) else "xterm")
        action = of.get_subsystem() or audit.describe_command([text], tty=terminal is not None)
        try:
            caller, job = await self._enter()
            async with self._app_state.limits.ssh_sessions.slot(caller.id):
                session = Session(self._app_state, caller, job, action, self._enter)
                await session.run(peer, {"command": ["/bin/sh", "-c", text], "terminal": terminal})
        except GradientError as error:
            await peer.send_text(json.dumps({"ended": error.message}))
        await peer.close()

    def connection_requested(self, dest_host: str, dest_port: int, *_: object) -> Any:  # noqa: ANN401 - a function
        if dest_host not in {"localhost", "127.0.0.1", "::1"}:
            text = "Only ports of the job itself are reached, as localhost."
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, text)
        return self._connect(dest_port)

    async def _connect(self, port: int) -> asyncssh.SSHTCPSession[bytes]:
        """Connect to a port of the job, before the client is told that its connection is open."""
        held = AsyncExitStack()
        self._held.add(held)
        try:
            caller, job = await self._enter()
            session = Session(self._app_state, caller, job, f"connections to port {port}", self._enter)
            if port not in self._recorded:
                self._recorded.add(port)
                await self._ports.enter_async_context(session.recorded())
            await held.enter_async_context(self._app_state.limits.exec_connections.slot(caller.id))
            worker = await held.enter_async_context(session.started({"port": port, "direct": True}))
        except GradientError as error:
            await self._release(held)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, error.message) from error

        async def carry(*streams: Any) -> None:  # noqa: ANN401 - of the connection
            try:
                await Bridge(_Peer(*streams), worker, self._enter, ends_when_idle=False).run()
            finally:
                await self._release(held)
            streams[1].close()

        return SSHTCPStreamSession(carry)

    async def _release(self, held: AsyncExitStack) -> None:
        self._held.discard(held)
        await held.aclose()


class _Command(SSHServerStreamSession[bytes]):
    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Start the command: the method of the base class would serve sftp from the files of this machine."""
        parts: tuple[Any, ...] = self._conn, self._chan, self._session_factory
        conn, of, run = parts
        outputs = [asyncssh.SSHWriter[bytes](self, of, kind) for kind in (None, asyncssh.EXTENDED_DATA_STDERR)]
        conn.create_task(run(asyncssh.SSHReader[bytes](self, of), *outputs))


class _Peer:
    """The streams of a channel, with the methods of a WebSocket that a session uses."""

    def __init__(self, *streams: Any) -> None:  # noqa: ANN401 - input, output, and of a command its stderr
        self._streams = streams
        self._at_end = False
        self._code: int | None = None

    async def receive(self) -> MutableMapping[str, Any]:
        if self._at_end:
            await self._streams[1].wait_closed()
            return {"type": "websocket.disconnect"}
        control: dict[str, Any] = {}
        try:
            if data := await self._streams[0].read(channel.CHUNK_BYTES):
                return {"type": "websocket.receive", "bytes": data}
            control["eof"] = self._at_end = True
        except asyncssh.TerminalSizeChanged as change:
            control["resize"] = [change.height, change.width]
        except asyncssh.SignalReceived as received:
            control["signal"] = received.signal
        except asyncssh.Error:
            self._at_end = True
        return {"type": "websocket.receive", "text": json.dumps(control)}

    async def send_bytes(self, data: bytes) -> None:
        if data[0] < len(self._streams):  # what connects in a container may report errors on stderr
            try:
                self._streams[data[0]].write(data[1:])
                await self._streams[data[0]].drain()
            except asyncssh.Error as error:
                raise ConnectionResetError from error

    async def send_text(self, data: str) -> None:
        message = json.loads(data)
        self._code = message.get("exit", 255)  # as of ssh itself
        if "ended" in message:
            with suppress(OSError):
                await self.send_bytes(bytes([channel.STDERR]) + f"{message['ended']}\r\n".encode())

    async def close(self, *_: object) -> None:
        _, writer, *rest = self._streams
        if rest and not writer.is_closing():
            writer.channel.exit(self._code)
        writer.close()
