"""A program that declares other memory than the kernel's as its environment, as any process may."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PROGRAM = r"""
import ctypes, struct, sys, time
PR_SET_MM, PR_SET_MM_MAP = 35, 14
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size, text = int(sys.argv[1]), sys.argv[2].encode().replace(b"|", b"\0")
start = libc.mmap(None, max(size, 4096), 3, 0x4022, -1, 0)  # readable, writable; private, anonymous, not reserved
ctypes.memmove(start, text, len(text))
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
field = lambda number: int(fields[number - 3])
arguments = [field(48), field(49)] if size else [field(48)] * 2
program = [field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28)]
areas = struct.pack("=11QQII", *program, *arguments, start, start + size, 0, 0, 0xFFFFFFFF)
if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, areas, len(areas), 0):
    sys.exit(f"prctl: {ctypes.get_errno()}")
print("up", flush=True)
time.sleep(600)
"""


@contextmanager
def declared_environment(size: int, text: str = "", env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Start a process whose environment has this size, with this text at its beginning; yield its pid.

    Args:
        size: Bytes; with 0 it has no arguments either.
        text: Variables, each with `|` after it.
        env: The environment that it is started with.
    """
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, str(size), text]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()
