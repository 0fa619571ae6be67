"""Archives that users upload: kept as manifests, or refused with nothing left."""

import gzip
import io
import json
import os
import random
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import WorkspaceInvalid
from core.storage.workspaces import WorkspaceStore, archive_reader, archives
from core.storage.workspaces.limits import WorkspaceLimits

LIMITS = WorkspaceLimits()
SMALL = WorkspaceLimits(max_bytes=10_000, max_files=100, max_depth=5, max_name_bytes=30, max_path_bytes=60)
MTIME = 1_500_000_000
LINK = stat.S_IFLNK | 0o777


def zip_of(*members, compression=zipfile.ZIP_DEFLATED):
    """Members are (name, content, st_mode); a name that ends in a slash is a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo("placeholder", (2017, 7, 14, 2, 40, 0))
            info.filename = name
            info.compress_type = compression
            archive.writestr(info, content)
            # After the call, which replaces a mode of 0 by one of its own; the directory is written at the end.
            info.external_attr = mode << 16
    return buffer.getvalue()


def tar_of(*members, mode="w:gz", format_=tarfile.PAX_FORMAT):
    """Members are (name, content, attributes of TarInfo)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=format_) as archive:
        for name, content, attributes in members:
            info = tarfile.TarInfo(name)
            info.mtime = MTIME
            info.size = len(content)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tree_of(root):
    """Every path below a folder with what a user can tell about it."""
    tree = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            what = str(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            permissions = 0 if path.is_symlink() else stat.S_IMODE(mode)
            tree[str(path.relative_to(root))] = (stat.S_IFMT(mode), permissions, what)
    return tree


@pytest.fixture
def store(tmp_path):
    return WorkspaceStore(tmp_path / "workspaces")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def unpack(store, data, out):
    stored = store.add(io.BytesIO(data), LIMITS)
    store.extract(stored.sha256, out, LIMITS)
    return stored


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_keeps_contents_modes_times_folders_and_links(store, out, compression):
    members = [
        ("run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o755),
        ("readonly.txt", b"", stat.S_IFREG | 0o444),
        ("src/", b"", stat.S_IFDIR | 0o750),
        ("src/main.py", b"print()\n" * 5000, stat.S_IFREG | 0o644),
        ("src/again.py", b"print()\n" * 5000, stat.S_IFREG | 0o600),
        ("src/setuid", b"x", stat.S_IFREG | 0o6755),
        ("bare/", b"", stat.S_IFDIR | 0o700),
        ("windows/file", b"", 0),
        ("latest", b"src/main.py", LINK),
    ]
    stored = unpack(store, zip_of(*members, compression=compression), out)
    assert (stored.files, stored.unpacked_bytes, len(stored.packs)) == (7, 80_011, 1)
    assert tree_of(out) == {
        "run.sh": (stat.S_IFREG, 0o755, b"#!/bin/sh\n"),
        "readonly.txt": (stat.S_IFREG, 0o444, b""),
        "src": (stat.S_IFDIR, 0o750, b""),
        "src/main.py": (stat.S_IFREG, 0o644, b"print()\n" * 5000),
        "src/again.py": (stat.S_IFREG, 0o600, b"print()\n" * 5000),
        "src/setuid": (stat.S_IFREG, 0o755, b"x"),
        "bare": (stat.S_IFDIR, 0o700, b""),
        "windows": (stat.S_IFDIR, 0o755, b""),
        "windows/file": (stat.S_IFREG, 0o644, b""),
        "latest": (stat.S_IFLNK, 0, "src/main.py"),
    }
    assert {(out / name).stat().st_mtime for name in ("run.sh", "src", "bare", "src/main.py")} == {MTIME}


def test_zip_times_in_utc_count_before_those_without_a_zone(store, out, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    os.utime(tmp_path / "a", (1_234_567_891, 1_234_567_891))
    subprocess.run(["zip", "-q", "w.zip", "a"], cwd=tmp_path, env={**os.environ, "TZ": "Asia/Tokyo"}, check=True)
    unpack(store, (tmp_path / "w.zip").read_bytes(), out)
    assert (out / "a").stat().st_mtime == 1_234_567_891


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_keeps_contents_modes_times_folders_and_links(store, out, mode, format_):
    long = "/".join(["a-rather-long-folder-name"] * 5) + "/file.py"
    members = [
        ("./", b"", {"type": tarfile.DIRTYPE, "mode": 0o700}),
        ("./run.sh", b"#!/bin/sh\n", {"mode": 0o755}),
        ("./src", b"", {"type": tarfile.DIRTYPE, "mode": 0o750}),
        (long, b"y" * 1500, {"mode": 0o600}),
        ("src/again.sh", b"", {"type": tarfile.LNKTYPE, "linkname": "./run.sh"}),
        ("src/up", b"", {"type": tarfile.SYMTYPE, "linkname": "../run.sh"}),
    ]
    stored = unpack(store, tar_of(*members, mode=mode, format_=format_), out)
    assert (stored.files, stored.unpacked_bytes) == (4, 1520)
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "src").stat().st_mode) == 0o750
    assert (out / long).read_bytes() == b"y" * 1500
    assert (out / "src/again.sh").read_bytes() == (out / "src/up").read_bytes() == b"#!/bin/sh\n"
    assert not (out / "src/again.sh").samefile(out / "run.sh"), "the job may change one of them"
    assert {(out / name).stat().st_mtime for name in ("run.sh", "src", long, "src/again.sh")} == {MTIME}


def test_an_archive_is_the_workspace_of_its_folder(store):
    """The same files are the same workspace, whatever they came in, and in whatever order."""
    folder, one, two = ("d/", b"", 0o40755), ("a", b"x", 0o100644), ("d/b", b"y", 0o100600)
    zipped = store.add(io.BytesIO(zip_of(folder, one, two)), LIMITS)
    tarred = tar_of(
        ("d/b", b"y", {"mode": 0o600}), ("a", b"x", {"mode": 0o644}), ("d", b"", {"type": b"5", "mode": 0o755})
    )
    assert store.add(io.BytesIO(tarred), LIMITS) == zipped
    manifest = json.loads(store.path(zipped.sha256).read_bytes())
    assert [file[:3] for file in manifest["files"]] == [["a", 0o644, 1], ["d/b", 0o600, 1]]
    assert (manifest["folders"], manifest["times"]) == ([["d", 0o755]], [MTIME * 1000] * 3)


@pytest.mark.parametrize("mtime", [-5, 2**40, 2**70])
def test_impossible_times_are_clamped(store, out, mtime):
    unpack(store, tar_of(("a", b"", {"mtime": mtime}), format_=tarfile.GNU_FORMAT), out)
    assert 0 <= (out / "a").stat().st_mtime < 2**32


def test_composed_and_decomposed_names_and_link_targets_stay_as_they_are(store, out):
    names = {unicodedata.normalize(form, "é.txt"): form.encode() for form in ("NFC", "NFD")}
    links = [(f"to {name}", b"", tar_link(name)) for name in names]
    unpack(store, tar_of(*[(name, data, {}) for name, data in names.items()], *links), out)
    assert {entry.name for entry in out.iterdir()} == {*names, *(link for link, _, _ in links)}
    assert all((out / name).read_bytes() == (out / f"to {name}").read_bytes() == data for name, data in names.items())


def test_utf8_name_without_the_flag_and_the_old_code_page(store, out):
    data = zip_of(("AAAAA", b"1", 0), ("B", b"2", 0))
    unpack(store, data.replace(b"AAAAA", "é.py".encode()).replace(b"B", b"\x82"), out)
    assert (out / "é.py").read_bytes() == b"1"
    assert (out / "é").read_bytes() == b"2"


def test_destination_may_be_an_empty_folder_but_not_one_in_use(store, out, tmp_path):
    out.mkdir()
    stored = unpack(store, tar_of(("a", b"x", {})), out)
    with pytest.raises(OSError, match="not empty"):
        store.extract(stored.sha256, out, LIMITS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "workspaces"]


def noise(size):
    return random.Random(0).randbytes(size)  # noqa: S311 - bytes that do not compress, the same each time


def tar_link(target, type_=tarfile.SYMTYPE):
    return {"type": type_, "linkname": target}


def raw_zip(*entries):
    """A zip by hand: (name, packed data, checksum, claimed size)."""
    local, central = io.BytesIO(), io.BytesIO()
    for name, packed, crc, size in entries:
        offset = local.tell()
        facts = struct.pack("<HHHHLLLHH", 0, 8, 0, 33, crc, len(packed), size, len(name), 0)
        local.write(b"PK\x03\x04\x14\x00" + facts + name.encode() + packed)
        central.write(b"PK\x01\x02\x14\x03\x14\x00" + facts + struct.pack("<HHHLL", 0, 0, 0, 0o100644 << 16, offset))
        central.write(name.encode())
    counts = struct.pack("<HHHHLLH", 0, 0, len(entries), len(entries), central.tell(), local.tell(), 0)
    return local.getvalue() + central.getvalue() + b"PK\x05\x06" + counts


def deflated(data):
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(data) + deflater.flush()


def zeros_after(header, size):
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", compresslevel=1) as packed:
        packed.write(header)
        for _ in range(size // 1024**2):
            packed.write(bytes(1024**2))
    return buffer.getvalue()


def header_of(name, size, type_=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, type_
    return info.tobuf(tarfile.GNU_FORMAT)


def million_entries():
    central = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0) + b"%07d" % n
        for n in range(1_000_000)
    )
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, len(central), 30)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 30 + len(central), 1)
    last = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return b"PK\x03\x04".ljust(30, b"\0") + central + end + locator + last


def encrypted():
    raw = bytearray(zip_of(("a", b"abc", 0)))
    raw[6] |= 1
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(raw)


NAMES = ["../secret", "a/../../secret", "a\\..\\..\\secret", "/etc/passwd", "\\secret", "//server/share", "C:\\secret"]
NAMES += [
    "a\nb",
    "a\x1b[31mred",
    "a\x85b",
    "1/2/3/4/5/6",
    "n" * 31,
    "é" * 16,
    "/".join(["n" * 20] * 3),
]
WRONG_NAME = "leaves the folder|absolute path|control character|folders deep|longer than"
CLASHES = [("a", "a"), ("a", "./a"), ("a/b", "a\\b"), ("a", "a/b"), ("a/b", "a")]
CLASH = "twice|both|needs a folder"
LINKS = {
    "absolute": [("l", "/etc/passwd")],
    "above": [("l", "d/../..")],
    "drive": [("l", "C:\\x")],
    "through another": [("a/b/c", ""), ("up", "a/b/c"), ("out", "up/../../../../secret")],
    "circle": [("x", "y"), ("y", "x")],
    "through a later one": [("out", "p/../../../secret"), ("p", "q/r"), ("q/r/f", "")],
    "too deep": [("x", "/".join(["y"] * 100))],
    "too many": [(f"l{n}", f"l{n + 1}") for n in range(60)],
    "too long": [("l", "x/" * 10_000)],
    "as a folder": [("l", "d"), ("l/file", "")],
}
LINK_ERROR = "symbolic link|needs a folder|leaves|absolute"

HOSTILE = {
    **{f"zip {name!r}": (zip_of(("good", b"", 0), (name, b"x", 0)), WRONG_NAME) for name in NAMES},
    **{f"tar {name!r}": (tar_of(("good", b"", {}), (name, b"x", {})), WRONG_NAME) for name in NAMES},
    **{f"tar {pair!r}": (tar_of(*[(name, b"x", {}) for name in pair]), CLASH) for pair in CLASHES},
    **{f"zip {pair!r}": (zip_of(*[(name, b"x", 0) for name in pair]), CLASH) for pair in CLASHES[1:]},
    **{
        f"tar link {kind}": (tar_of(*[(name, b"", tar_link(to) if to else {}) for name, to in links]), LINK_ERROR)
        for kind, links in LINKS.items()
    },
    **{
        f"zip link {kind}": (zip_of(*[(name, to.encode(), LINK if to else 0) for name, to in links]), LINK_ERROR)
        for kind, links in LINKS.items()
    },
    **{
        f"hard link to {to!r}": (
            tar_of(("d/f", b"", {}), ("l", b"", tar_link("d/f")), ("h", b"", tar_link(to, b"1")), ("later", b"", {})),
            "hard link|absolute|leaves",
        )
        for to in ("../secret", "/etc/passwd", "later", "d", "l", "h", "")
    },
    **{
        f"tar type {kind!r}": (tar_of(("odd", b"", {"type": kind})), "'odd' is a device") for kind in (b"3", b"6", b"Z")
    },
    **{
        f"zip type {kind:o}": (zip_of(("odd", b"", kind)), "'odd' is a device")
        for kind in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)
    },
    "NUL in a name": (zip_of(("aXb", b"x", 0)).replace(b"aXb", b"a\0b"), "control character"),
    "no UTF-8 in tar": (tar_of(("a\udcff", b"", {}), mode="w", format_=tarfile.GNU_FORMAT), "UTF-8"),
    "no UTF-8 in pax": (tar_of(("a\udcff", b"", {}), mode="w"), "UTF-8"),
    "no UTF-8 in zip": (zip_of(("aé", b"", 0)).replace("é".encode(), b"\xff\xfe"), "UTF-8"),
    "folder with contents": (zip_of(("d/", b"x", stat.S_IFDIR)), "folder with contents"),
    "too many files": (zip_of(*[(f"{n}", b"", 0) for n in range(101)]), "more than 100"),
    "too many folders": (tar_of(*[(f"{n}/a/b", b"", {}) for n in range(40)]), "more than 100"),
    "too many bytes": (tar_of(*[(f"{n}", b"x" * 2001, {}) for n in range(5)]), "more than 10,000 bytes"),
    "a million entries": (million_entries, "more than 100|memory or time"),
    "zip bomb": (raw_zip(("a", deflated(bytes(10**7)), zlib.crc32(bytes(10**7)), 10**7)), "unpacks to more"),
    "tar bomb": (lambda: zeros_after(header_of("a", 2**33), 2**25), "unpacks to more"),
    "zeros behind the end": (lambda: zeros_after(b"", 2**25), "goes on after its end"),
    "entries behind the end": (tar_of(("a", b"", {}), mode="w") * 2, "goes on after its end"),
    "huge extended header": (lambda: zeros_after(header_of("a", 2**30, tarfile.XHDTYPE), 2**28), "memory or time"),
    "negative size": (header_of("a", 5).replace(b"00000000005\0", b"\xff" * 12), "neither"),
    "claims less": (raw_zip(("lie", deflated(b"x" * 900), zlib.crc32(b"x" * 900), 10)), "damaged"),
    "claims nothing": (raw_zip(("lie", deflated(b"x" * 900), zlib.crc32(b"x" * 900), 0)), "damaged"),
    "claims more": (raw_zip(("lie", deflated(b"abc"), zlib.crc32(b"abc"), 4)), "damaged"),
    "headers disagree": (zip_of(("good.txt", b"abc", 0)).replace(b"good.txt", b"evil.txt", 1), "damaged"),
    "wrong checksum": (zip_of(("a", b"abcd", 0), compression=0).replace(b"abcd", b"abce"), "damaged"),
    "encrypted": (encrypted(), "encrypted; pack the folder without a password"),
    "bzip2 in zip": (zip_of(("a", b"abc", 0), compression=zipfile.ZIP_BZIP2), "compression method 12"),
    **{f"zip cut by {cut}": (zip_of(("a", noise(2000), 0))[:-cut], "cut short") for cut in (1, 22, 23, 60, 500)},
    **{f"tar.gz cut by {cut}": (tar_of(("a", noise(2000), {}))[:-cut], "cut short") for cut in (1, 8, 9, 100, 1500)},
    **{
        f"tar cut at {size}": (tar_of(("a", b"x" * 600, {}), ("b", b"", {}), mode="w")[:size], "cut short")
        for size in (512 + 600, 512 + 1024, 512 + 1024 + 100, 512 + 1024 + 512)
    },
    "damaged header": (tar_of(("a", b"", {}), ("b", b"", {}), mode="w").replace(b"b\0", b"c\0"), "damaged"),
    "empty": (b"", "the file is empty"),
    "text": (b"#!/bin/sh\n" * 100, "neither a zip nor a tar.gz"),
    "text in gzip": (gzip.compress(b"t" * 5000), "neither a zip nor a tar.gz"),
    "bzip2": (b"BZh91AY", "bzip2"),
    "RAR": (b"Rar!\x1a", "RAR"),
    "start of a zip": (b"PK\x03\x04", "cut short"),
}


@pytest.mark.parametrize(("data", "match"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(store, data, match):
    with pytest.raises(WorkspaceInvalid, match=match) as error:
        store.add(io.BytesIO(data() if callable(data) else data), SMALL)
    assert error.value.field == "workspace"
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_a_bomb_within_the_limit_of_bytes_is_refused(store):
    with pytest.raises(WorkspaceInvalid, match="decompression bomb"):
        store.add(io.BytesIO(zeros_after(header_of("a", 2**26), 2**26)), LIMITS)


def test_paths_that_are_too_long_together_are_refused(store):
    links = [(f"{number}", b"", tar_link("x/" * 5_000)) for number in range(4500)]
    with pytest.raises(WorkspaceInvalid, match="too long together"):
        store.add(io.BytesIO(tar_of(*links)), LIMITS)


def test_an_endless_reading_is_broken_off(store, monkeypatch):
    monkeypatch.setattr(archives, "READ_SECONDS", 1)
    monkeypatch.setattr(archives, "BYTES_PER_SECOND", 10**10)
    with pytest.raises(WorkspaceInvalid, match="memory or time"):
        store.add(io.BytesIO(gzip.compress(b"") * 1_000_000), LIMITS)


def test_the_reader_can_open_and_start_nothing():
    program = """
import os, runpy, sys
reader = runpy.run_path(sys.argv[1])
reader["give_up_rights"](reader["Limits"](1000, 1000, 10))
for attempt in (lambda: open("/dev/null"), os.fork, lambda: os.setuid(0)):
    try:
        attempt()
    except OSError:
        print("refused")
"""
    command = [sys.executable, "-c", program, archive_reader.__file__]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["refused"] * 3


SAFE_NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\:"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
FILES = st.tuples(st.binary(max_size=2000), st.sampled_from([0o644, 0o755, 0o400, 0o600, 0o777]))
TREES = st.recursive(
    st.dictionaries(SAFE_NAMES, FILES, max_size=4),
    lambda inner: st.dictionaries(SAFE_NAMES, st.one_of(FILES, inner), max_size=4),
    max_leaves=12,
)


def members_of(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{prefix}{name}/", b"", 0o755
            yield from members_of(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", *value


@settings(max_examples=25)
@given(tree=TREES, kind=st.sampled_from(["zip", "tar", "tar.gz"]))
def test_any_tree_packed_and_unpacked_is_the_same_tree(tree, kind):
    members = list(members_of(tree))
    if kind == "zip":
        data = zip_of(*[(n, c, m | (stat.S_IFDIR if n[-1] == "/" else stat.S_IFREG)) for n, c, m in members])
    else:
        types = {True: tarfile.DIRTYPE, False: tarfile.REGTYPE}
        packed = [(n, c, {"mode": m, "type": types[n[-1] == "/"]}) for n, c, m in members]
        data = tar_of(*packed, mode="w" if kind == "tar" else "w:gz")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "out")
        unpack(WorkspaceStore(Path(scratch, "workspaces")), data, out)
        assert {name: (mode, what) for name, (_, mode, what) in tree_of(out).items()} == {
            name.rstrip("/"): (mode, content) for name, content, mode in members
        }


@settings(max_examples=60)
@given(kind=st.sampled_from(["zip", "tar", "tar.gz"]), data=st.data())
def test_damaged_archives_are_read_or_refused_and_never_break_the_reader(kind, data):
    members = [("a/run.sh", b"echo\n" * 40, 0o755), ("b", bytes(range(256)) * 8, 0o644), ("c/d/e", b"", 0o600)]
    if kind == "zip":
        raw = bytearray(zip_of(*members))
    else:
        raw = bytearray(tar_of(*[(n, c, {"mode": m}) for n, c, m in members], mode="w" if kind == "tar" else "w:gz"))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    with tempfile.TemporaryDirectory() as scratch:
        store, out = WorkspaceStore(Path(scratch, "workspaces")), Path(scratch, "out")
        try:
            stored = unpack(store, bytes(raw), out)
        except WorkspaceInvalid:
            assert not out.exists()
        else:
            assert stored.files == sum(type_ != stat.S_IFDIR for type_, _, _ in tree_of(out).values())
