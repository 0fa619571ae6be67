"""Archives that users upload, each converted at once into a manifest and a pack of its contents.

An archive is untrusted input, in formats with many oddities, which `zipfile` and `tarfile` know. They read it in a
process that ends with it, and has no rights and little memory and time (`archive_reader`). What that prints is checked
as the manifests are that clients send.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from typing import IO, Any

from core.storage.workspaces import archive_reader
from core.storage.workspaces.limits import WorkspaceLimits, invalid, shortened
from core.storage.workspaces.tree import split_name

_PACK_BYTES_PER_FILE = 2048  # beside its content
READ_SECONDS = 60
BYTES_PER_SECOND = 10 * 1000**2  # unpacked twice and packed once, on a slow machine


def convert(upload: IO[bytes], pack: IO[bytes], limits: WorkspaceLimits) -> tuple[bytes, dict[str, int]]:
    """Write a pack of the files of an archive; return its manifest, whose paths are not checked, and its contents.

    Raises `OSError`: the disk is full.
    """
    files: list[tuple[str, int, int, str, int]] = []
    folders: list[tuple[str, int, int]] = []
    links: list[tuple[str, str]] = []
    linked: dict[str, tuple[str, int, int, str, int]] = {}
    with closing(_read(upload, pack, limits)) as entries:
        for kind, name, mode, time_ms, target, size, sha256 in entries:
            limits.check_count(len(files) + len(folders) + len(links))
            path = "/".join(split_name(name, limits))
            if kind == "file":
                files.append((path, mode, size, sha256, time_ms))
                linked[path] = files[-1]
            elif kind == "hardlink":
                file = linked.get("/".join(split_name(target, limits)))
                if file is None:
                    raise invalid(
                        f"entry {shortened(name)} is a hard link to {shortened(target)}, which is not a file before "
                        "it; pack the folder again with hard links followed (tar --hard-dereference)"
                    )
                files.append((path, *file[1:]))
                linked[path] = files[-1]
            elif kind == "symlink":
                links.append((path, target))
            elif path:
                folders.append((path, mode, time_ms))
    files.sort()
    folders.sort()
    fields = {
        "files": [file[:-1] for file in files],
        "folders": [folder[:-1] for folder in folders],
        "links": sorted(links),
        "times": [file[-1] for file in files] + [folder[-1] for folder in folders],
    }
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return data, {sha256: size for _, _, size, sha256, _ in files}


def _read(upload: IO[bytes], pack: IO[bytes], limits: WorkspaceLimits) -> Generator[list[Any]]:
    """Yield what the reader prints of each entry: kind, name, mode, time, target, size and sha256."""
    packed = os.fstat(upload.fileno()).st_size
    most = min(limits.max_bytes, max(limits.ratio_after, limits.max_ratio * packed))
    given = most, most + _PACK_BYTES_PER_FILE * limits.max_files, READ_SECONDS + most // BYTES_PER_SECOND
    command = [sys.executable, "-I", "-S", archive_reader.__file__, *map(str, given), str(pack.fileno())]
    with subprocess.Popen(  # noqa: S603 - a program of ours
        command,
        cwd="/",
        env={},
        stdin=upload,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=[pack.fileno()],
    ) as reader:
        assert reader.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        result = None
        try:
            for line in reader.stdout:
                result = json.loads(line)
                if isinstance(result, list):
                    yield result
        finally:
            reader.kill()
    if not isinstance(result, dict):
        raise invalid("it takes too much memory or time to be read; pack the folder again with an ordinary program")
    if "unpacked" in result:
        limits.check_size(result["unpacked"])
        limits.check_ratio(unpacked=result["unpacked"], packed=packed)
    if "errno" in result:
        raise OSError(result["errno"], result["why"])
    if "refused" in result:
        raise invalid(result["refused"])
