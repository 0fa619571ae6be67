import io
import os
import stat
import tarfile
import tempfile
import unicodedata
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import WorkspaceInvalid
from core.storage.archives import ArchiveKind, ArchiveLimits, extract

LIMITS = ArchiveLimits()
MTIME = 1_500_000_000


def zip_of(path, members, *, compression=zipfile.ZIP_DEFLATED):
    """Members are (name, content, st_mode); a name that ends in a slash is a folder."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name, (2017, 7, 14, 2, 40, 0))
            info.compress_type = compression
            archive.writestr(info, content)
            # After the call, which replaces a mode of 0 by one of its own; the directory is written at the end.
            info.external_attr = mode << 16
    return path


def tar_of(path, members, *, mode="w:gz", format_=tarfile.PAX_FORMAT):
    """Members are (name, content, attributes of TarInfo)."""
    with tarfile.open(path, mode, format=format_) as archive:
        for name, content, attributes in members:
            info = tarfile.TarInfo(name)
            info.mtime = MTIME
            info.size = len(content)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def tree_of(root):
    """Every path below a folder with what a user can tell about it."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            what = str(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            permissions = 0 if path.is_symlink() else stat.S_IMODE(mode)
            found[str(path.relative_to(root))] = (stat.S_IFMT(mode), permissions, what)
    return found


@pytest.fixture
def out(tmp_path):
    return tmp_path / "workspace"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_keeps_contents_modes_times_and_links(tmp_path, out, compression):
    members = [
        ("run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o755),
        ("readonly.txt", b"", stat.S_IFREG | 0o444),
        ("src/", b"", stat.S_IFDIR | 0o750),
        ("src/main.py", b"print()\n" * 5000, stat.S_IFREG | 0o644),
        ("src/setuid", b"x", stat.S_IFREG | 0o6755),
        ("latest", b"src/main.py", stat.S_IFLNK | 0o777),
    ]
    summary = extract(zip_of(tmp_path / "w.zip", members, compression=compression), out, LIMITS)
    assert summary.kind is ArchiveKind.ZIP
    assert summary.files == 5
    assert tree_of(out) == {
        "run.sh": (stat.S_IFREG, 0o755, b"#!/bin/sh\n"),
        "readonly.txt": (stat.S_IFREG, 0o444, b""),
        "src": (stat.S_IFDIR, 0o750, b""),
        "src/main.py": (stat.S_IFREG, 0o644, b"print()\n" * 5000),
        "src/setuid": (stat.S_IFREG, 0o755, b"x"),
        "latest": (stat.S_IFLNK, 0, "src/main.py"),
    }
    assert {(out / name).stat().st_mtime for name in ("run.sh", "src", "src/main.py")} == {MTIME}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_keeps_contents_modes_times_and_links(tmp_path, out, mode, format_):
    long = "/".join(["a-rather-long-folder-name"] * 5) + "/file.py"
    members = [
        ("./", b"", {"type": tarfile.DIRTYPE, "mode": 0o700}),
        ("./run.sh", b"#!/bin/sh\n", {"mode": 0o755}),
        ("./src", b"", {"type": tarfile.DIRTYPE, "mode": 0o750}),
        (long, b"y" * 1500, {"mode": 0o600}),
        ("src/again.sh", b"", {"type": tarfile.LNKTYPE, "linkname": "run.sh"}),
        ("src/up", b"", {"type": tarfile.SYMTYPE, "linkname": "../run.sh"}),
    ]
    summary = extract(tar_of(tmp_path / "w", members, mode=mode, format_=format_), out, LIMITS)
    assert (summary.kind, summary.files, summary.bytes) == ("tar" if mode == "w" else "tar.gz", 4, 1510)
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "src").stat().st_mode) == 0o750
    assert (out / long).read_bytes() == b"y" * 1500
    assert (out / "src/again.sh").samefile(out / "run.sh")
    assert (out / "src/up").read_bytes() == b"#!/bin/sh\n"
    assert {(out / name).stat().st_mtime for name in ("run.sh", "src", long)} == {MTIME}


@pytest.mark.parametrize("mtime", [-5, 2**40])
def test_impossible_times_are_clamped(tmp_path, out, mtime):
    extract(tar_of(tmp_path / "w", [("a", b"", {"mtime": mtime})], format_=tarfile.GNU_FORMAT), out, LIMITS)
    assert 0 <= (out / "a").stat().st_mtime < 2**32


def test_modes_are_sensible_where_the_archive_has_none(tmp_path, out):
    extract(zip_of(tmp_path / "w.zip", [("a/b", b"", 0), ("c/", b"", 0)]), out, LIMITS)
    assert {name: permissions for name, (_, permissions, _) in tree_of(out).items()} == {
        "a": 0o755,
        "a/b": 0o644,
        "c": 0o755,
    }
    assert stat.S_IMODE(out.stat().st_mode) == 0o755


def test_zip64_is_read(tmp_path, out, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    path = zip_of(tmp_path / "w.zip", [("a", b"a" * 50, 0), ("b", b"b" * 50, 0)])
    assert b"PK\x06\x06" in path.read_bytes()
    assert extract(path, out, LIMITS).files == 2
    assert (out / "b").read_bytes() == b"b" * 50


def test_composed_and_decomposed_names_and_link_targets_stay_as_they_are(tmp_path, out):
    names = {unicodedata.normalize(form, "é.txt"): form.encode() for form in ("NFC", "NFD")}
    links = {f"to {name}": ("", {"type": tarfile.SYMTYPE, "linkname": name}) for name in names}
    entries = [
        *((name, data, {}) for name, data in names.items()),
        *((name, b"", link) for name, (_, link) in links.items()),
    ]
    extract(tar_of(tmp_path / "w", entries), out, LIMITS)
    assert {entry.name for entry in out.iterdir()} == {*names, *links}
    assert all((out / name).read_bytes() == (out / f"to {name}").read_bytes() == data for name, data in names.items())


def test_utf8_name_without_the_flag_and_the_old_code_page(tmp_path, out):
    path = zip_of(tmp_path / "w.zip", [("AAAAA", b"1", 0), ("B", b"2", 0)])
    path.write_bytes(path.read_bytes().replace(b"AAAAA", "é.py".encode()).replace(b"B", b"\x82"))
    extract(path, out, LIMITS)
    assert (out / "é.py").read_bytes() == b"1"
    assert (out / "é").read_bytes() == b"2"


def test_destination_may_be_an_empty_folder_but_not_one_in_use(tmp_path, out):
    path = tar_of(tmp_path / "w", [("a", b"x", {})])
    out.mkdir()
    extract(path, out, LIMITS)
    with pytest.raises(OSError, match="not empty"):
        extract(path, out, LIMITS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["w", "workspace"]


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\:"), min_size=1, max_size=12)
SAFE_NAMES = NAMES.filter(lambda name: name not in (".", "..") and not {"/", "\\", ":"} & set(name))
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


@settings(max_examples=60)
@given(tree=TREES, kind=st.sampled_from(["zip", "stored", "tar", "tar.gz"]))
def test_any_tree_packed_and_unpacked_is_the_same_tree(tree, kind):
    members = list(members_of(tree))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "archive")
        if kind in ("zip", "stored"):
            compression = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
            zip_of(path, [(n, c, stat.S_IFREG | m) for n, c, m in members if n[-1] != "/"], compression=compression)
            members = [member for member in members if member[0][-1] != "/"]
        else:
            types = {True: tarfile.DIRTYPE, False: tarfile.REGTYPE}
            packed = [(n, c, {"mode": m, "type": types[n[-1] == "/"]}) for n, c, m in members]
            tar_of(path, packed, mode="w" if kind == "tar" else "w:gz")
        out = Path(scratch, "out")
        extract(path, out, LIMITS)
        files = {name: (mode, what) for name, (type_, mode, what) in tree_of(out).items() if type_ == stat.S_IFREG}
        assert files == {name: (mode, content) for name, content, mode in members if name[-1] != "/"}
        folders = {name for name, (type_, _, _) in tree_of(out).items() if type_ == stat.S_IFDIR}
        assert folders >= {name[:-1] for name, _, _ in members if name[-1] == "/"}
        assert sorted(os.listdir(scratch)) == ["archive", "out"]  # noqa: PTH208 - names are all that is compared


@settings(max_examples=300)
@given(kind=st.sampled_from(["zip", "tar", "tar.gz"]), data=st.data())
def test_damaged_archives_are_read_or_refused_and_never_break_the_reader(kind, data):
    members = [("a/run.sh", b"echo\n" * 40, 0o755), ("b", bytes(range(256)) * 8, 0o644), ("c/d/e", b"", 0o600)]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "archive")
        if kind == "zip":
            zip_of(path, members)
        else:
            tar_of(path, [(n, c, {"mode": m}) for n, c, m in members], mode="w" if kind == "tar" else "w:gz")
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
        out = Path(scratch, "out")
        try:
            summary = extract(path, out, LIMITS)
        except WorkspaceInvalid:
            assert os.listdir(scratch) == ["archive"]  # noqa: PTH208 - names are all that is compared
        else:
            assert summary.files == sum(type_ != stat.S_IFDIR for type_, _, _ in tree_of(out).values())
