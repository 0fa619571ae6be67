import gzip
import io
import os
import random
import stat
import struct
import tarfile
import time
import zipfile
import zlib

import pytest

from core.errors import WorkspaceInvalid
from core.storage.archives import ArchiveLimits, extract, inspect

LIMITS = ArchiveLimits()
SMALL = ArchiveLimits(max_bytes=10_000, max_files=20, max_depth=5, max_name_bytes=30, max_path_bytes=60)
LINK = stat.S_IFLNK | 0o777
# Processor seconds within which anything hostile is refused.
CPU_SECONDS = 2


@pytest.fixture
def place(tmp_path):
    """A folder for the archive and its destination, beside a file that nobody may touch."""
    (tmp_path / "secret").write_text("untouched")
    inner = tmp_path / "inner"
    inner.mkdir()
    return inner


def zip_of(path, *members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.compress_type = compression
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def tar_of(path, *members, mode="w:gz", format_=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=format_) as archive:
        for name, content, attributes in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def noise(size):
    return random.Random(0).randbytes(size)  # noqa: S311 - bytes that do not compress, the same each time


def link(target):
    return {"type": tarfile.SYMTYPE, "linkname": target}


def hard_link(target):
    return {"type": tarfile.LNKTYPE, "linkname": target}


def refused(path, match, limits=LIMITS):
    """Both readings refuse the archive for the same reason, cheaply, and leave nothing anywhere."""
    before = sorted(path.parent.parent.rglob("*"))
    started = time.process_time()
    with pytest.raises(WorkspaceInvalid, match=match) as inspected:
        inspect(path, limits)
    assert time.process_time() - started < CPU_SECONDS
    assert inspected.value.field == "workspace"
    with pytest.raises(WorkspaceInvalid) as extracted:
        extract(path, path.parent / "workspace", limits)
    assert str(extracted.value) == str(inspected.value)
    assert len(str(inspected.value)) < 400
    assert str(inspected.value).isprintable()
    assert sorted(path.parent.parent.rglob("*")) == before
    assert (path.parent.parent / "secret").read_text() == "untouched"


NAMES = [
    ("../secret", "leaves the folder"),
    ("a/../../secret", "leaves the folder"),
    ("a\\..\\..\\secret", "leaves the folder"),
    ("/etc/passwd", "absolute path"),
    ("\\secret", "absolute path"),
    ("//server/share", "absolute path"),
    ("C:\\secret", "absolute path"),
    ("c:secret", "absolute path"),
    ("\u212a:secret", "absolute path"),  # the Kelvin sign, a K once it is composed
    ("a\nb", "control character"),
    ("a\x1b[31mred", "control character"),
    ("a\x7f", "control character"),
    ("a\x85b", "control character"),
    ("1/2/3/4/5/6", "folders deep"),
    ("n" * 31, "longer than 30 bytes"),
    ("é" * 16, "longer than 30 bytes"),
    ("/".join(["n" * 20] * 3), "path longer than 60 bytes"),
]


@pytest.mark.parametrize(("name", "match"), NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_unsafe_names(place, kind, name, match):
    path = place / "w"
    if kind == "zip":
        zip_of(path, ("good", b"x", 0o644), (name, b"x", 0o644))
    else:
        tar_of(path, ("good", b"x", {}), (name, b"x", {}))
    refused(path, match, SMALL)


def test_nul_in_a_zip_name(place):
    path = zip_of(place / "w", ("aXb", b"x", 0o644))
    path.write_bytes(path.read_bytes().replace(b"aXb", b"a\0b"))
    refused(path, "control character")


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_that_are_not_utf8(place, format_):
    path = tar_of(place / "w", ("a\udcff", b"x", {}), mode="w", format_=format_)
    refused(path, "UTF-8")


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../secret", "a/../../secret", "..", "d/../..", "C:\\x", "..\\secret"]
)
def test_links_that_leave(place, target):
    refused(tar_of(place / "w", ("d/", b"", {"type": tarfile.DIRTYPE}), ("l", b"", link(target))), "'l' is a symbolic")
    refused(zip_of(place / "w", ("d/x", b"", 0o644), ("l", target.encode(), LINK)), "'l' is a symbolic")


CHAINS = {
    "through a link to a deeper folder": [("a/b/c", "deep"), ("up", "a/b/c"), ("out", "up/../../../../secret")],
    "links to each other": [("x", "y"), ("y", "x")],
    "link to itself": [("x", "x")],
    "through a link made later": [("out", "p/../../../secret"), ("p", "q/r"), ("q/r/f", "deep")],
    "through a link to the top": [("d/top", ".."), ("d/out", "top/../secret")],
    "no target": [("x", "")],
    "too deep": [("x", "/".join(["y"] * 100))],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("reverse", [False, True])
def test_link_chains(place, chain, reverse):
    chain = chain[::-1] if reverse else chain
    refused(tar_of(place / "w", *[(n, b"", {} if t == "deep" else link(t)) for n, t in chain]), "symbolic link")
    refused(zip_of(place / "w", *[(n, t.encode(), 0o644 if t == "deep" else LINK) for n, t in chain]), "symbolic link")


def test_longer_link_chains_than_linux_follows(place):
    chain = [(f"l{n}", f"l{n + 1}") for n in range(60)]
    refused(tar_of(place / "w", *[(name, b"", link(target)) for name, target in chain]), "too many links")
    refused(zip_of(place / "w", *[(name, target.encode(), LINK) for name, target in chain]), "too many links")


@pytest.mark.parametrize("first", ["link", "file"])
def test_files_through_links(place, first):
    members = [("l", b"", link("d")), ("l/file", b"x", {}), ("d/x", b"", {})]
    refused(tar_of(place / "w", *(members if first == "link" else members[::-1])), "'l")
    members = [("l", b"d", LINK), ("l/file", b"x", 0o644), ("d/x", b"", 0o644)]
    refused(zip_of(place / "w", *(members if first == "link" else members[::-1])), "'l")


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "later", "d", "l", "missing", "l/../f", ""])
def test_hard_links_to_anything_but_an_earlier_file(place, target):
    members = [
        ("f", b"", {}),
        ("d/x", b"", {}),
        ("l", b"", link("f")),
        ("h", b"", hard_link(target)),
        ("later", b"", {}),
    ]
    refused(tar_of(place / "w", *members), "hard link|absolute|leaves")


@pytest.mark.parametrize("type_", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z"])
def test_devices_pipes_and_the_unknown_in_tar(place, type_):
    refused(tar_of(place / "w", ("odd", b"", {"type": type_})), "'odd' is")


@pytest.mark.parametrize("type_", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_devices_and_pipes_in_zip(place, type_):
    refused(zip_of(place / "w", ("odd", b"", type_ | 0o644)), "device, pipe or socket")


def test_sparse_files_announced_by_pax_headers(place):
    refused(tar_of(place / "w", ("s", b"x", {"pax_headers": {"GNU.sparse.major": "1"}})), "sparse")


def test_global_headers_that_rename_everything(place):
    with tarfile.open(place / "w", "w", pax_headers={"path": "elsewhere"}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    refused(place / "w", "for all its entries")


@pytest.mark.parametrize(
    "pair", [("a", "a"), ("a", "./a"), ("a/b", "a\\b"), ("é", "e\u0301"), ("a", "a/b"), ("a/b", "a")]
)
def test_names_that_clash(place, pair):
    with pytest.warns(UserWarning, match="Duplicate") if len(set(pair)) == 1 else pytest.MonkeyPatch.context():
        refused(zip_of(place / "w", *[(name, b"x", 0o644) for name in pair]), "twice|both|needs a folder")
    refused(tar_of(place / "w", *[(name, b"x", {}) for name in pair]), "twice|both|needs a folder")


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_too_many_entries_bytes_and_folders(place, pack):
    attributes = 0o644 if pack is zip_of else {}
    refused(pack(place / "w", *[(f"{n}", b"", attributes) for n in range(21)]), "more than 20|21 entries", SMALL)
    refused(pack(place / "w", *[(f"{n}/a/b", b"", attributes) for n in range(10)]), "more than 20", SMALL)
    refused(pack(place / "w", *[(f"{n}", b"x" * 2001, attributes) for n in range(5)]), "with entry '4'", SMALL)


def test_zip_bomb_of_ten_gigabytes(place):
    zeros = bytes(1024**2)
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    # 64 MiB are compressed once and used for each of 160 files.
    packed = b"".join(deflater.compress(zeros) for _ in range(64)) + deflater.flush()
    crc = zlib.crc32(zeros * 64)
    path = place / "w"
    path.write_bytes(raw_zip([(f"{n}", packed, crc, 64 * 1024**2) for n in range(160)]))
    refused(path, "decompression bomb|unpacks to more")


def raw_zip(entries, *, shared=False):
    """A zip by hand: (name, packed data, crc, claimed size); `shared` lets all entries lie over the same bytes."""
    local, central = io.BytesIO(), io.BytesIO()
    for name, packed, crc, size in entries:
        offset = 0 if shared else local.tell()
        facts = struct.pack("<HHHHLLLHH", 0, 8, 0, 33, crc, len(packed), size, len(name), 0)
        if not shared or not local.tell():
            local.write(b"PK\x03\x04\x14\x00" + facts + name.encode() + packed)
        central.write(b"PK\x01\x02\x14\x03\x14\x00" + facts + struct.pack("<HHHLL", 0, 0, 0, 0o100644 << 16, offset))
        central.write(name.encode())
    counts = struct.pack("<HHHHLLH", 0, 0, len(entries), len(entries), central.tell(), local.tell(), 0)
    return local.getvalue() + central.getvalue() + b"PK\x05\x06" + counts


def deflated(data):
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(data) + deflater.flush()


@pytest.mark.parametrize("claimed", [0, 10, 50 * 1024**2 - 1])
def test_entry_larger_than_it_claims(place, claimed):
    content = bytes(50 * 1024**2)
    # Padding keeps the claim within the ratio, so that the lie is all there is to find.
    padding = noise(1024**2)
    entries = [
        ("lie", deflated(content), zlib.crc32(content), claimed),
        ("padding", deflated(padding), zlib.crc32(padding), len(padding)),
    ]
    (place / "w").write_bytes(raw_zip(entries))
    refused(place / "w", f"'lie' is larger than the {claimed} bytes")


def test_entry_smaller_than_it_claims(place):
    (place / "w").write_bytes(raw_zip([("lie", deflated(b"abc"), zlib.crc32(b"abc"), 4)]))
    refused(place / "w", "does not match its checksum")


def test_overlapping_entries(place):
    content = noise(100_000)
    entry = ("same", deflated(content), zlib.crc32(content), len(content))
    (place / "w").write_bytes(raw_zip([entry] * 50, shared=True))
    refused(place / "w", "shares its bytes with another")


def test_entries_nested_in_one_another(place):
    inner = raw_zip([("b", deflated(b"x" * 500), zlib.crc32(b"x" * 500), 500)])
    outer = bytearray(raw_zip([("a", inner, zlib.crc32(inner), len(inner)), ("b", b"", 0, 0)]))
    at = outer.rindex(b"PK\x01\x02")
    outer[at + 42 : at + 46] = struct.pack("<L", outer.index(b"PK\x03\x04", 4))
    (place / "w").write_bytes(outer)
    refused(place / "w", "shares its bytes|cannot be unpacked")


def test_headers_that_disagree(place):
    raw = zip_of(place / "w", ("good.txt", b"abc", 0o644)).read_bytes()
    (place / "w").write_bytes(raw.replace(b"good.txt", b"evil.txt", 1))
    refused(place / "w", "disagree")


def test_encrypted_zip(place):
    raw = bytearray(zip_of(place / "w", ("a", b"abc", 0o644)).read_bytes())
    raw[6] |= 1
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    (place / "w").write_bytes(raw)
    refused(place / "w", "encrypted; pack the folder without a password")


def test_other_compression_methods(place):
    refused(zip_of(place / "w", ("a", b"abc", 0o644), compression=zipfile.ZIP_BZIP2), "compression method 12")


def test_wrong_checksum(place):
    raw = zip_of(place / "w", ("a", b"abcdef", 0o644), compression=zipfile.ZIP_STORED).read_bytes()
    (place / "w").write_bytes(raw.replace(b"abcdef", b"abcdeg"))
    refused(place / "w", "'a' does not match its checksum")


def test_zip64_offsets_far_outside_the_file(place, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
    raw = bytearray(zip_of(place / "w", ("a", b"abc", 0o644)).read_bytes())
    at = raw.index(b"PK\x06\x06")
    raw[at + 48 : at + 56] = b"\xff" * 8
    (place / "w").write_bytes(raw)
    refused(place / "w", "damaged or was cut short")


@pytest.mark.parametrize("cut", [1, 22, 23, 60, 500])
def test_truncated_zip(place, cut):
    path = zip_of(place / "w", ("a", noise(2000), 0o644))
    os.truncate(path, path.stat().st_size - cut)
    refused(path, "cut short")


@pytest.mark.parametrize("cut", [1, 8, 9, 100, 1500])
def test_truncated_tar_gz(place, cut):
    path = tar_of(place / "w", ("a", noise(2000), {}))
    os.truncate(path, path.stat().st_size - cut)
    refused(path, "cut short")


def test_truncated_plain_tar(place):
    path = tar_of(place / "w", ("a", b"x" * 600, {}), ("b", b"", {}), mode="w")
    for size in (512 + 1024 + 512, 512 + 1024, 512 + 600):
        os.truncate(path, size)
        refused(path, "cut short")


def test_gzip_checksum(place):
    path = tar_of(place / "w", ("a", b"x", {}))
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1
    path.write_bytes(raw)
    refused(path, "gzip file is damaged")


def test_entries_hidden_behind_the_end(place):
    one = tar_of(place / "one", ("a", b"", {}), mode="w").read_bytes()
    (place / "w").write_bytes(one + one)
    refused(place / "w", "goes on after its end mark")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"#!/bin/sh\n" * 100, "neither a zip nor a tar.gz"),
        (b"<html>" + b"x" * 600, "neither"),
        (gzip.compress(b"just a text", mtime=0), "without a tar archive"),
        (gzip.compress(b"t" * 5000, mtime=0), "without a tar archive"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz file"),
        (b"Rar!\x1a", "RAR"),
        (b"PK\x03\x04", "cut short"),
    ],
)
def test_what_is_no_archive(place, content, match):
    (place / "w").write_bytes(content)
    refused(place / "w", match)


def gzip_of(path, header, size):
    """A tar.gz of one header and that many zeros."""
    zeros = bytes(1024**2)
    with gzip.open(path, "wb", compresslevel=9) as out:
        out.write(header)
        for _ in range(size // len(zeros)):
            out.write(zeros)
    return path


def test_tar_gz_bomb(place):
    info = tarfile.TarInfo("zeros")
    info.size = 8 * 1024**3
    # A quarter of what the header claims would do: the reader never gets that far.
    refused(gzip_of(place / "w", info.tobuf(), 256 * 1024**2), "decompression bomb")


def test_zeros_behind_the_end_of_a_tar_gz_are_a_bomb_too(place):
    refused(gzip_of(place / "w", b"", 256 * 1024**2), "decompression bomb")


def test_huge_extended_header(place):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1024**3
    refused(gzip_of(place / "w", info.tobuf(), 1024**2), "extended header of 1073741824 bytes")


def test_extended_headers_full_of_attributes(place):
    attributes = {f"{n}": "" for n in range(250)}
    refused(tar_of(place / "w", ("a", b"", {"pax_headers": attributes})), "too many extended attributes", SMALL)


def test_gzip_of_a_million_empty_members(place):
    (place / "w").write_bytes(gzip.compress(b"") * 1_000_000)
    refused(place / "w", "too many pieces")


def test_a_million_zip_entries(place):
    central = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0) + b"%07d" % n
        for n in range(1_000_000)
    )
    honest = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, len(central), 4)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 4 + len(central), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (place / "w").write_bytes(b"PK\x03\x04" + central + honest + locator + end)
    refused(place / "w", "1000000 entries, more than the 100000")
    lying = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 10, 10, len(central), 4, 0)
    (place / "w").write_bytes(b"PK\x03\x04" + central + lying)
    refused(place / "w", "damaged")
