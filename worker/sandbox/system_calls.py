"""A filter of system calls (seccomp) against what no namespace divides: the kernel's keys, and some kinds of socket."""

import errno
import platform
import socket
import struct
from functools import cache

_MACHINES = {
    # AUDIT_ARCH, and the numbers of: socket, socketpair; add_key, request_key, keyctl, io_uring_setup.
    "x86_64": (0xC000003E, (41, 53), (248, 249, 250, 425)),
    "aarch64": (0xC00000B7, (198, 199), (217, 218, 219, 425)),
}
_FAMILIES = socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK
"""The kinds of sockets that belong to a network namespace, or to files. By io_uring others could be made."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
_OTHER_NUMBERS = 0x40000000  # of x32
_KILL, _ERROR, _ALLOW = 0x80000000, 0x50000, 0x7FFF0000


class NoFilter(Exception):
    """System calls cannot be filtered here; the message is the reason."""


@cache
def make_filter() -> bytes:
    """Return the filter as instructions of BPF. Raises `NoFilter`: the machine's system calls are not known."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise NoFilter(f"the system calls of {machine} are unknown")
    architecture, sockets, refused = _MACHINES[machine]
    refuse, other_family = ((_RETURN, 0, 0, _ERROR | number) for number in (errno.ENOSYS, errno.EAFNOSUPPORT))
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    steps += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _OTHER_NUMBERS), refuse]
    for number in refused:
        steps += [(_EQUAL, 0, 1, number), refuse]
    # Jumps are relative: to the load of the family, and to the end.
    steps += [(_EQUAL, 1, 0, sockets[0]), (_EQUAL, 0, len(_FAMILIES) + 2, sockets[1]), (_LOAD, 0, 0, _ARGUMENT)]
    steps += [(_EQUAL, len(_FAMILIES) - n, 0, family) for n, family in enumerate(_FAMILIES)]
    return b"".join(struct.pack("HBBI", *step) for step in (*steps, other_family, (_RETURN, 0, 0, _ALLOW)))
