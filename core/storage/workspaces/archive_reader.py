"""A program that reads one archive, in a process of its own with no more rights than that needs (`archives.convert`).

It reads a zip, tar or tar.gz from its standard input, prints a JSON array for each entry and an object at the end, and
writes the contents of the files as a pack to a descriptor. It imports only the standard library, and all of it
before it gives up its rights: afterwards it can open no file.
"""

import codecs
import gzip
import hashlib
import json
import os
import resource
import stat
import sys
import tarfile
import zipfile
from calendar import timegm
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, BinaryIO, NamedTuple, NoReturn, Self

_MEMORY_BYTES = 256 * 1024**2

_NOBODY = 65534
_BLOCK = 256 * 1024
_LEVEL = 1  # whoever sends an archive waits for it
_MOST_CHARACTERS = 8192  # of a name or target that is passed on, where longer ones are refused
_MOST_TOGETHER = 32 * 1024**2  # as long as a manifest that clients send
_MOST_PADDING = 1024**2  # bytes that programs leave after the end of a tar
_1980_MS, _LAST_MS = 315_532_800_000, 2**52
_OTHER_FORMATS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "RAR",
}
_UTF8_NAME, _ENCRYPTED = 0x0800, 0x0041
_TIMESTAMP = 0x5455  # the extra field of a zip with the time in UTC
_DAMAGED = "the archive is damaged or was cut short; pack the folder and send it again"


class Limits(NamedTuple):
    unpacked: int  # bytes
    pack: int  # bytes
    seconds: int  # CPU time


class Member(NamedTuple):
    name: str
    kind: str  # file, folder, symlink or hardlink
    mode: int
    time_ms: int
    size: int = 0
    target: str = ""
    open: Callable[[], IO[bytes] | None] = lambda: None


class Refused(Exception):
    """The archive is refused, for a reason that its sender reads."""


class _Header(tarfile.TarInfo):
    """A header for which a damaged one is an error: `tarfile` takes it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise Refused(_DAMAGED) from None
        if header.size < 0:
            raise Refused(_DAMAGED)
        return header


class _TooLarge(Exception):
    pass


def main() -> None:
    limits, descriptor = Limits(*map(int, sys.argv[1:4])), int(sys.argv[4])
    upload = open(0, "rb", closefd=False)  # noqa: SIM115 - opens a descriptor, for as long as the process lives
    pack = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - as above
    give_up_rights(limits)
    result: dict[str, object] = {}
    try:
        digests = _list(upload, limits)
        if any(digests):
            _write_pack(upload, digests, pack)
    except Refused as refusal:
        result = {"refused": str(refusal)}
    except _TooLarge as size:
        result = {"unpacked": size.args[0]}
    except UnicodeDecodeError as error:
        result = {"refused": f"entry {error.object[:30]!r} has a name that is not valid UTF-8; rename the file"}
    except OSError as error:
        result = {"errno": error.errno, "why": error.strerror} if error.errno else {"refused": _DAMAGED}
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever the library stumbles over, the archive is at fault
        result = {"refused": _DAMAGED}
    _print(result)
    sys.stdout.flush()


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def give_up_rights(limits: Limits) -> None:
    for encoding in ("cp437", "utf-8", "ascii"):
        codecs.lookup(encoding)  # loaded from files
    os.chdir("/")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    for kind, limit in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, limits.pack),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def _list(upload: BinaryIO, limits: Limits) -> list[str]:
    """Print the archive's entries, and return the sha256 of each that is a file."""
    digests: list[str] = []
    unpacked = characters = 0
    for member in read_members(upload):
        unpacked += member.size
        if unpacked > limits.unpacked:
            raise _TooLarge(unpacked)
        digests.append(_digest(member))
        name, target = member.name[:_MOST_CHARACTERS], member.target[:_MOST_CHARACTERS]
        characters += len(name) + len(target)
        if characters > _MOST_TOGETHER:
            raise Refused(
                "the paths in it are too long together; shorten the names of folders, or leave some files out"
            )
        _print([member.kind, name, member.mode, member.time_ms, target, member.size, digests[-1]])
    return digests


def _digest(member: Member) -> str:
    content = member.open()
    if content is None:
        return ""
    digest, size = hashlib.sha256(), 0
    with content:
        while block := content.read(_BLOCK):
            digest.update(block)
            size += len(block)
    if size != member.size:
        raise Refused(_DAMAGED)
    return digest.hexdigest()


def _write_pack(upload: BinaryIO, digests: list[str], pack: BinaryIO) -> None:
    """Write each content once, named by its digest."""
    left = set(digests)
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=pack, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as out,
    ):
        for member, digest in zip(read_members(upload), digests, strict=True):
            content = member.open()
            if content is not None and digest in left:
                left.remove(digest)
                entry = tarfile.TarInfo(digest)
                entry.size = member.size
                with content:
                    out.addfile(entry, content)
    pack.flush()


def read_members(upload: BinaryIO) -> Iterator[Member]:
    """Yield the entries of an archive, whose format shows at its first bytes; names and clients are unreliable."""
    upload.seek(0)
    start = upload.read(8)
    upload.seek(0)
    if start.startswith(b"PK"):
        return _read_zip(upload)
    if not start:
        raise Refused("the file is empty; send a zip or a tar.gz of the folder")
    for magic, name in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise Refused(f"it is a {name} file; send a zip or a tar.gz of the folder")
    return _read_tar(gzip.GzipFile(fileobj=upload) if start.startswith(b"\x1f\x8b") else upload)


def _read_tar(stream: IO[bytes] | gzip.GzipFile) -> Iterator[Member]:
    try:
        opened = tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header, encoding="utf-8", errors="strict")  # noqa: SIM115 - closed below
    except Refused:
        raise Refused("it is neither a zip nor a tar.gz; send a zip or a tar.gz of the folder") from None
    with opened as archive:
        while info := archive.next():
            name, mode, time_ms = info.name, info.mode & 0o777, min(max(int(info.mtime * 1000), 0), _LAST_MS)
            if info.isreg():
                yield Member(name, "file", mode, time_ms, info.size, open=partial(archive.extractfile, info))
            elif info.isdir():
                yield Member(name, "folder", mode, time_ms)
            elif info.issym() or info.islnk():
                yield Member(name, "symlink" if info.issym() else "hardlink", mode, time_ms, target=info.linkname)
            else:
                _refuse(name, "is a device, a pipe or of an unknown type; leave it out")
        # To the end, where gzip has its checksum.
        if any(stream.read(_MOST_PADDING)) or stream.read(1):
            raise Refused("the tar archive goes on after its end mark; pack the folder into one archive")


def _read_zip(upload: BinaryIO) -> Iterator[Member]:
    with zipfile.ZipFile(upload) as archive:
        for info in archive.infolist():
            name, mode = _zip_name(info), info.external_attr >> 16
            if info.flag_bits & _ENCRYPTED:
                _refuse(name, "is encrypted; pack the folder without a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                _refuse(name, f"uses zip compression method {info.compress_type}; pack with the usual one (deflate)")
            permissions, time_ms = stat.S_IMODE(mode) & 0o777, _zip_time(info)
            if stat.S_ISLNK(mode):
                target = archive.read(info).decode() if info.file_size < _MOST_CHARACTERS else "/"
                yield Member(name, "symlink", permissions, time_ms, target=target)
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                _refuse(name, "is a device, a pipe or a socket; leave it out")
            elif not (stat.S_ISDIR(mode) or info.is_dir()):
                content = partial(archive.open, info)
                yield Member(name, "file", permissions if mode else 0o644, time_ms, info.file_size, open=content)
            elif info.file_size:
                _refuse(name, "is a folder with contents of its own; pack the folder again")
            else:
                yield Member(name, "folder", permissions if mode else 0o755, time_ms)


def _zip_name(info: zipfile.ZipInfo) -> str:
    """Return the name of an entry; several programs write UTF-8 without the flag that says so."""
    if info.flag_bits & _UTF8_NAME:
        return info.orig_filename
    try:
        return info.orig_filename.encode("cp437").decode()
    except UnicodeError:
        return info.orig_filename


def _zip_time(info: zipfile.ZipInfo) -> int:
    """Return the time of an entry's last change; the usual field has no time zone, and is read as UTC."""
    extra = info.extra
    while extra:  # kind and length, two bytes each
        kind, size = (int.from_bytes(extra[at : at + 2], "little") for at in (0, 2))
        if kind == _TIMESTAMP and size >= 5 and extra[4] & 1:  # noqa: PLR2004 - flags, and four bytes
            return int.from_bytes(extra[5:9], "little", signed=True) * 1000
        extra = extra[4 + size :]
    try:
        return timegm((*info.date_time, 0, 0, 0)) * 1000
    except ValueError:
        return _1980_MS


def _refuse(name: str, why: str) -> NoReturn:
    raise Refused(f"entry {name[:60]!r} {why}")


if __name__ == "__main__":
    main()
