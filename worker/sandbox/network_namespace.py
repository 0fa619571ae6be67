import ctypes
import errno
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import ioctl
from ipaddress import IPv4Address
from typing import TypeVar

from core.system.bubblewrap_command import PATH
from worker.sandbox import enter_network, netlink

T = TypeVar("T")

_NEW_NETWORK = 0x40000000
LOOPBACK_INDEX = 1  # number of the interface `lo` in every network
_ENTER = [sys.executable, "-I", "-S", enter_network.__file__]
_COMMAND_SECONDS = 30.0
_C = ctypes.CDLL(None, use_errno=True)


class NetworkUnavailable(OSError):
    """No network can be made for a job."""


class JobNetwork:
    """Makes networks for jobs in a sandbox: as they are here, those that bubblewrap makes.

    `unshare`: words of bubblewrap.
    """

    enter: Sequence[str] = ()  # words before the command of bubblewrap, that start it in a network

    def __init__(self, *unshare: str) -> None:
        self.unshare = unshare

    def resolvers(self) -> list[str]:
        """Return the DNS servers of its jobs; none: the host's."""
        return []

    def start(self, start: Callable[[], T], name: str | None = None, project_id: str = "") -> T:
        """Call what starts a job's sandbox, where that is in the job's network from then on.

        `name`: the attempt that gives the network back, for later jobs of its project; None: it is used once.
        """
        del name, project_id
        return start()

    def give_back(self, name: str, *, ended: bool) -> None:
        """Take back the network of an attempt. `ended`: certainly all of its processes have ended."""

    def attach(self, first: int) -> None:
        """Complete the network of a sandbox, by its first process, which has not run anything of the job's.

        Raises `OSError`: it cannot be completed.
        """

    def renew(self, first: int) -> None:
        """Let what its job may reach be as it is now, by the first process of its sandbox, if that still runs."""


class SharedNetwork(JobNetwork):
    """The network of another sandbox of this host, by its first process. It lasts as long as this object.

    `network`: what has made it. Raises `FileNotFoundError` or `ProcessLookupError`: the sandbox has ended.
    """

    def __init__(self, network: JobNetwork, first: int) -> None:
        super().__init__()
        self._network = network
        with network_of(first) as opened:
            join = ["nsenter", "--preserve-credentials", f"--net={self._keep(os.dup(opened))}"]
            if os.geteuid() == 0:
                self.enter = [*join, "--"]
                return
            # Who is not root has to join the user namespace that owns it before, and then that of its programs, which
            # has their user. From within the one the worker's descriptors cannot be opened: a shell opens the other.
            owner = self._keep(ioctl(opened, enter_network.GET_USER_NAMESPACE))
        user = self._keep(os.open(f"/proc/{first}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        opens, closes = 'exec 9<"$0"; exec "$@"', 'exec 9<&-; exec "$0" "$@"'
        inner = [*join[:2], "--user=/proc/self/fd/9", "--", "sh", "-c", closes]
        self.enter = ["sh", "-c", opens, user, *join, f"--user={owner}", "--", *inner]

    def _keep(self, descriptor: int) -> str:
        """Return the path by which a program of this user opens a descriptor; it stays open as long as this object."""
        weakref.finalize(self, os.close, descriptor)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def resolvers(self) -> list[str]:
        return self._network.resolvers()


def open_socket(first: int, protocol: str, address: str, port: int) -> socket.socket:
    """Return a socket in the network of a sandbox, by its first process: see `enter_network.open_socket`."""
    if os.geteuid() == 0:
        with network_of(first) as network:
            return call_in_network(network, lambda: enter_network.open_socket(protocol, address, port))
    with network_of(first) as network:
        opened = _enter(network, protocol, address, port)
    if opened is None:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
    return opened


def listen(first: int, address: str, port: int) -> socket.socket:
    """Listen at an address in the network of a sandbox, by its first process; it may be another host's elsewhere.

    Raises `OSError`: something listens there, or the sandbox has ended.
    """
    host = IPv4Address(address)
    if not host.is_loopback:
        with network_of(first) as network, suppress(FileExistsError):
            configure(network, netlink.send, netlink.add_address(LOOPBACK_INDEX, host, host.max_prefixlen))
    return open_socket(first, "listen", address, port)


def configure(network: int, send: Callable[[bytes], None], messages: bytes) -> None:
    """Let a function of `netlink.py` send messages to the kernel in a network. Raises `OSError`: it refused one."""
    if os.geteuid() == 0:
        call_in_network(network, lambda: send(messages))
    else:
        _enter(network, send.__name__, given=messages)


def call_in_network(network: int | None, call: Callable[[], T]) -> T:
    """Call a function while this thread is in another network namespace; None: in a new one.

    Raises `SystemExit`, which ends the thread: it cannot return to its own.
    """
    network_before = open_network()
    try:
        join_network(network)
        try:
            return call()
        finally:
            try:
                join_network(network_before)
            except NetworkUnavailable as error:
                raise SystemExit(str(error)) from error
    finally:
        os.close(network_before)


def open_network() -> int:
    """Open the network namespace of this thread."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def join_network(network: int | None) -> None:
    """Let this thread join a network namespace; None: a new one."""
    if (_C.unshare(_NEW_NETWORK) if network is None else _C.setns(network, _NEW_NETWORK)) != 0:
        number = ctypes.get_errno()
        raise NetworkUnavailable(f"a network namespace cannot be created or joined: {os.strerror(number)}")


@contextmanager
def network_of(pid: int) -> Iterator[int]:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield network
    finally:
        os.close(network)


@contextmanager
def owner_of(network: int) -> Iterator[int]:
    """Open the user namespace that a network namespace belongs to."""
    owner = ioctl(network, enter_network.GET_USER_NAMESPACE)
    try:
        yield owner
    finally:
        os.close(owner)


def _enter(network: int, protocol: str, address: str = "-", port: int = 0, given: bytes = b"") -> socket.socket | None:
    """Run `enter_network.py`; return the socket that it has opened. Raises `OSError`: it failed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        arguments = [str(network), str(theirs.fileno()), protocol, address, str(port)]
        run([*_ENTER, *arguments], (network, theirs.fileno()), given)
        number, descriptors, _, _ = socket.recv_fds(ours, 100, 1)
    if int(number):
        raise OSError(int(number), os.strerror(int(number)))
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def run(command: list[str], descriptors: tuple[int, ...], given: bytes = b"") -> None:
    """Run a program that inherits descriptors."""
    try:
        subprocess.run(  # noqa: S603 - words of ours
            command,
            env={"PATH": PATH},
            input=given,
            pass_fds=descriptors,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=True,
        )
    except FileNotFoundError as error:
        raise NetworkUnavailable("pasta is not installed (apt-get install passt)") from error
    except subprocess.CalledProcessError as error:
        why = " ".join(error.stderr.decode(errors="replace").split())
        raise NetworkUnavailable(f"{command[0]} failed: {why[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NetworkUnavailable(str(error)) from error
