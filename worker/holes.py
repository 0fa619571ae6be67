"""Frees the start of a file that is still being appended to (`FALLOC_FL_PUNCH_HOLE`)."""

import ctypes
import errno
import os

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM}

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def punch(descriptor: int, start: int, end: int) -> bool:
    """Free the blocks from `start` to `end`; the file keeps its size and offsets (Linux, fallocate(2)).

    Returns:
        Whether the file system supports it; if not, the space stays taken until the file is deleted.

    Raises:
        OSError: It is supported, but failed.
    """
    if _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))
