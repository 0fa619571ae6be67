"""Every fault that is injected: what it does to the stack, for how long, and what it must not overlap with."""

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chaos.clients import Clients
from chaos.stack import API_PROCESSES, DOCKER_WORKER, HOME_BYTES, WORKERS, Stack
from sqlalchemy import text

ALL_WORKERS = (*WORKERS, DOCKER_WORKER)
LEASE_SECONDS = 60
_REFILL_SECONDS = 0.1
_FREE_BYTES = 256 * 1024


class RunAborted(Exception):
    """The run is ending: what was broken is mended at once."""


@dataclass
class FaultContext:
    """Everything that a fault works with.

    Attributes:
        stack: The service that the fault is done to.
        clients: The clients whose jobs are stopped and deleted.
        chance: The random generator of its choices.
        aborted: Set when the run ends early.
    """

    stack: Stack
    clients: Clients
    chance: random.Random
    aborted: threading.Event

    def wait(self, least: float, most: float | None = None) -> None:
        """Leave things broken for a while, in seconds."""
        if self.aborted.wait(least if most is None else self.chance.uniform(least, most)):
            raise RunAborted

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process of the service; the keeper starts it again."""
        process = self.stack.services[name].process
        assert process is not None
        process.signal(number)


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        name: In the table.
        touches: Parts that only one fault may have at a time. `worker` and `api` are any one of these processes.
        inject: Breaks, waits, and mends.
        weight: How often it is drawn while faults overlap.
        ends_containers: Whether containers are lost by it, as documented.
    """

    name: str
    parts: tuple[str, ...]
    inject: Callable[[FaultContext, dict[str, str]], None]
    weight: int = 3
    ends_containers: bool = False


# ---- Processes of the service


def kill_one(part: str) -> Callable[[FaultContext, dict[str, str]], None]:
    """Kill -9 of a process."""
    return lambda hands, chosen: hands.kill(chosen[part])


def kill_all(names: tuple[str, ...]) -> Callable[[FaultContext, dict[str, str]], None]:
    """Kill -9 of several processes at once."""

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        for name in names:
            hands.kill(name)

    return inject


def terminate(hands: FaultContext, chosen: dict[str, str]) -> None:
    """Ask a worker to end, as a deployment does."""
    hands.kill(chosen["worker"], signal.SIGTERM)


def kill_repeatedly(hands: FaultContext, chosen: dict[str, str]) -> None:
    """Kill a worker four times, each time soon after it was started again."""
    for _ in range(4):
        hands.kill(chosen["worker"])
        hands.wait(2.2, 4.5)


def freeze(part: str, least: float, most: float) -> Callable[[FaultContext, dict[str, str]], None]:
    """SIGSTOP of a process, for so many seconds."""

    def inject(hands: FaultContext, chosen: dict[str, str]) -> None:
        process = hands.stack.services[chosen[part]].process
        assert process is not None
        process.signal(signal.SIGSTOP)
        try:
            hands.wait(least, most)
        finally:
            process.signal(signal.SIGCONT)

    return inject


def shift_clock(seconds: int) -> Callable[[FaultContext, dict[str, str]], None]:
    """Set the wall clock of one worker wrong for a while."""

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        assert hands.stack.clock is not None
        hands.stack.clock.set(seconds)
        try:
            hands.wait(6, 12)
        finally:
            hands.stack.clock.set(0)

    return inject


# ---- Redis


def kill_redis(*, wipe: bool) -> Callable[[FaultContext, dict[str, str]], None]:
    """Kill Redis; it comes back with its data, or without."""

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        redis = hands.stack.redis
        redis.kill()
        try:
            if wipe:
                redis.wipe()
            hands.wait(0.5, 5)
        finally:
            redis.start()

    return inject


def flush_redis(hands: FaultContext, _: dict[str, str]) -> None:
    """Drop every message."""
    with hands.stack.redis.client() as client:
        client.flushall()


def freeze_redis(hands: FaultContext, _: dict[str, str]) -> None:
    """Redis takes connections and does not answer."""
    hands.stack.redis.freeze()
    try:
        hands.wait(4, 8)
    finally:
        hands.stack.redis.thaw()


# ---- PostgreSQL


def stop_postgres(least: float, most: float) -> Callable[[FaultContext, dict[str, str]], None]:
    """An immediate stop, and a start after so many seconds."""

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        hands.stack.postgres.crash()
        try:
            hands.wait(least, most)
        finally:
            hands.stack.postgres.resume()

    return inject


def kill_postgres_backend(hands: FaultContext, _: dict[str, str]) -> None:
    """Kill -9 of one connection's process: the server ends all of them and recovers."""
    _, *others = hands.stack.postgres.processes()
    backends = [one for one in others if one.cmdline()[:1] and " t" in one.cmdline()[0]]
    if backends:
        hands.chance.choice(backends).kill()


def terminate_connections(hands: FaultContext, _: dict[str, str]) -> None:
    """End every connection, several times."""
    ending = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IS NOT NULL AND pid <> :own")
    for _ in range(5):
        with hands.stack.database() as database, database.engine.connect() as connection:
            own = connection.scalar(text("SELECT pg_backend_pid()"))
            connection.execute(ending, {"own": own})
        hands.wait(0.2)


def freeze_postgres(hands: FaultContext, _: dict[str, str]) -> None:
    """The server and all its processes hang."""
    hands.stack.postgres.freeze()
    try:
        hands.wait(5, 25 if hands.chance.random() < 0.8 else 50)
    finally:
        hands.stack.postgres.thaw()


# ---- Networks


def break_network(server: str, mode: str, least: float, most: float) -> Callable[[FaultContext, dict[str, str]], None]:
    """Take the way to a server from some processes, or from all.

    Args:
        server: `postgres` or `redis`.
        how: `hole` takes connections and passes nothing on, `refuse` refuses them, `reset` breaks those that there are.
        least: Seconds.
        most: Seconds.
    """

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        names = hands.chance.sample((*API_PROCESSES, *ALL_WORKERS), hands.chance.choice((1, 2, 5)))
        proxies = [hands.stack.proxies[name][server] for name in names]
        try:
            for proxy in proxies:
                {"hole": proxy.shut, "refuse": proxy.refuse, "reset": proxy.reset}[mode]()
            hands.wait(least, most)
        finally:
            for proxy in proxies:
                {"hole": proxy.open, "refuse": proxy.accept, "reset": proxy.reset}[mode]()

    return inject


# ---- Containers


def kill_engine(*, live_restore: bool) -> Callable[[FaultContext, dict[str, str]], None]:
    """Kill the engine; its containers outlive that with live-restore alone."""

    def inject(hands: FaultContext, _: dict[str, str]) -> None:
        server = hands.stack.server
        server.set_live_restore(on=live_restore)
        server.kill()
        try:
            hands.wait(0.5, 6)
        finally:
            server.start()
            server.set_live_restore(on=True)
            server.signal(signal.SIGHUP)

    return inject


def freeze_engine(hands: FaultContext, _: dict[str, str]) -> None:
    """The engine takes connections and does not answer."""
    hands.stack.server.freeze()
    try:
        hands.wait(5, 20)
    finally:
        hands.stack.server.thaw()


def kill_containerd(hands: FaultContext, _: dict[str, str]) -> None:
    """Kill what watches the containers; the engine starts it again."""
    hands.stack.server.kill_containerd()
    hands.wait(3)


# ---- Disks, and clients


def fill_disk(hands: FaultContext, _: dict[str, str]) -> None:
    """Take all room of GRADIENT_HOME's disk, and what becomes free while it lasts."""
    disk = hands.stack.disk
    with _shrunk_disk(hands.stack):
        for _ in range(int(hands.chance.uniform(6, 25) / _REFILL_SECONDS)):
            disk.fill()
            hands.wait(_REFILL_SECONDS)


@contextlib.contextmanager
def _shrunk_disk(stack: Stack) -> Iterator[None]:
    """No more room than is used: filling takes no memory of the machine's."""
    try:
        for _ in range(50):
            with contextlib.suppress(AssertionError):  # more was written meanwhile
                stack.disk.resize(stack.disk.used_bytes() + _FREE_BYTES)
                break
        yield
    finally:
        stack.disk.resize(HOME_BYTES)
        stack.disk.free()


def stop_and_delete(hands: FaultContext, _: dict[str, str]) -> None:
    """Stop and delete jobs from several clients at once, each more than once."""
    running = [one for one in hands.clients.active_jobs() if one.expected.stops and not one.deleted]
    doomed = hands.chance.sample(running, min(len(running), 4))
    deleted = {one.job_id for one in doomed if hands.chance.random() < 0.4}
    with ThreadPoolExecutor(6) as several:
        for one in doomed:
            for first in (0, 1):
                several.submit(hands.clients.stop, one, first)
                if one.job_id in deleted:
                    several.submit(hands.clients.delete, one, first)


FAULTS = (
    FaultKind("API kill -9", ("api",), kill_one("api"), 6),
    FaultKind("API both kill -9", API_PROCESSES, kill_all(API_PROCESSES)),
    FaultKind("API SIGSTOP 5-15 s", ("api",), freeze("api", 5, 15)),
    FaultKind("worker kill -9", ("worker",), kill_one("worker"), 8),
    FaultKind("worker kill -9 x 4", ("worker",), kill_repeatedly),
    FaultKind("workers all kill -9", ALL_WORKERS, kill_all(ALL_WORKERS), 2),
    FaultKind("worker SIGTERM", ("worker",), terminate, 6),
    FaultKind("worker SIGSTOP 5-20 s", ("worker",), freeze("worker", 5, 20)),
    FaultKind("worker SIGSTOP 75-120 s", ("worker",), freeze("worker", LEASE_SECONDS + 15, 2 * LEASE_SECONDS), 2),
    FaultKind("worker clock -120 s", (WORKERS[-1],), shift_clock(-120), 2),
    FaultKind("worker clock +3600 s", (WORKERS[-1],), shift_clock(3600), 2),
    FaultKind("Redis kill -9", ("redis",), kill_redis(wipe=False), 5),
    FaultKind("Redis kill -9, wiped", ("redis",), kill_redis(wipe=True), 5),
    FaultKind("Redis FLUSHALL", ("redis",), flush_redis, 6),
    FaultKind("Redis SIGSTOP 4-8 s", ("redis",), freeze_redis),
    FaultKind("PG immediate restart", ("postgres",), stop_postgres(0, 1), 4),
    FaultKind("PG down 15-20 s", ("postgres",), stop_postgres(15, 20), 2),
    FaultKind("PG backend kill -9", ("postgres",), kill_postgres_backend, 4),
    FaultKind("PG pg_terminate_backend", ("postgres",), terminate_connections, 6),
    FaultKind("PG SIGSTOP 5-50 s", ("postgres",), freeze_postgres, 3),
    FaultKind("PG hole 8-45 s", ("postgres",), break_network("postgres", "hole", 8, 45)),
    FaultKind("PG reset", ("postgres",), break_network("postgres", "reset", 0.2, 1), 6),
    FaultKind("PG refused 5-15 s", ("postgres",), break_network("postgres", "refuse", 5, 15)),
    FaultKind("Redis hole 5-30 s", ("redis",), break_network("redis", "hole", 5, 30)),
    FaultKind("Redis reset", ("redis",), break_network("redis", "reset", 0.2, 1), 5),
    FaultKind("Redis refused 5-15 s", ("redis",), break_network("redis", "refuse", 5, 15)),
    FaultKind("dockerd kill -9", ("engine",), kill_engine(live_restore=True), 5),
    FaultKind("dockerd kill, no live-restore", ("engine",), kill_engine(live_restore=False), 4, ends_containers=True),
    FaultKind("dockerd SIGSTOP 5-20 s", ("engine",), freeze_engine),
    FaultKind("containerd kill -9", ("engine",), kill_containerd),
    FaultKind("disk full 6-25 s", ("disk",), fill_disk, 5),
    FaultKind("stops and deletes", ("clients",), stop_and_delete, 6),
)
