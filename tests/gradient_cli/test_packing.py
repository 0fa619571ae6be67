import hashlib
import json
import os
import re
import socket
import tarfile
from pathlib import Path

import pytest

from gradient_cli.errors import ClientError, UsageError
from gradient_cli.workspace.packing import archive as packing
from gradient_cli.workspace.packing.manifest import FolderManifest
from gradient_cli.workspace.packing.pack import create_pack


def paths(folder):
    return [entry.path for entry in packing.WorkspaceFolder(str(folder)).entries]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def manifest_of(folder):
    return FolderManifest(packing.WorkspaceFolder(str(folder)), "http://x", lambda _done: None)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_the_manifest_holds_contents_modes_and_links(tmp_path):
    write(tmp_path, {"run.sh": "echo", "pkg/ünïcode 🎉.txt": "x"})
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "pkg" / "up").symlink_to("../run.sh")
    (tmp_path / "whole").symlink_to(tmp_path / "pkg")
    (tmp_path / "empty").mkdir(mode=0o750)
    manifest = json.loads(manifest_of(tmp_path).data)
    assert [(path, mode, size) for path, mode, size, _ in manifest["files"]] == [
        ("pkg/ünïcode 🎉.txt", (tmp_path / "pkg" / "ünïcode 🎉.txt").stat().st_mode & 0o777, 1),
        ("run.sh", 0o755, 4),
    ]
    assert ["empty", 0o750] in manifest["folders"]
    assert manifest["links"] == [["pkg/up", "../run.sh"], ["whole", "pkg"]], "an absolute link must work elsewhere too"


def test_a_file_name_that_is_not_utf8_is_refused_by_name(tmp_path):
    (tmp_path / os.fsdecode(b"bad\xff.txt")).write_text("x")
    with pytest.raises(ClientError, match="bad"):
        manifest_of(tmp_path)


def test_pipes_and_sockets_stay_out_with_a_note(tmp_path, monkeypatch):
    write(tmp_path, {"a": ""})
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
        folder = packing.WorkspaceFolder(str(tmp_path))
    assert [entry.path for entry in folder.entries] == ["a"]
    assert sorted(folder.skipped) == [("door", "neither a file nor a folder"), ("pipe", "neither a file nor a folder")]


NOT_WANTED = (
    ".venv/lib/x.py",
    "envs/mine/pyvenv.cfg",
    "envs/mine/bin/python",
    "web/node_modules/a/index.js",
    "wandb/run/log",
    "mlruns/0/meta.yaml",
    "nb/.ipynb_checkpoints/a.ipynb",
    "artifacts-jabcdefgh12345/model.npz",
    ".env",
    "conf/.env.production",
    "conf/server.pem",
    ".netrc",
    "id_ed25519",
    ".aws/credentials",
)


def test_environments_runs_and_credentials_stay_out_and_are_named(tmp_path):
    wanted = ("main.py", ".env.example", "venv.py", "env/settings.py", "artifacts-old/x", "id_rsa.pub")
    write(tmp_path, dict.fromkeys((*NOT_WANTED, *wanted), "x"))
    folder = packing.WorkspaceFolder(str(tmp_path))
    assert {entry.path for entry in folder.files} == set(wanted)
    assert {entry.path for entry in folder.entries if entry.kind == "folder"} == {
        "env",
        "envs",
        "artifacts-old",
        "conf",
        "nb",
        "web",
    }
    assert folder.left_out == sorted(
        {
            ".aws",
            ".env",
            ".netrc",
            ".venv",
            "artifacts-jabcdefgh12345",
            "conf/.env.production",
            "conf/server.pem",
            "envs/mine",
            "id_ed25519",
            "mlruns",
            "nb/.ipynb_checkpoints",
            "wandb",
            "web/node_modules",
        }
    )
    said = list(packing.describe_skipped(folder))[-1]
    assert said.startswith("left out .aws, .env, ")
    assert said.endswith("mlruns and 3 more by default; --include PATTERN uploads such files")


@pytest.mark.parametrize(
    ("include", "brought"),
    [
        ([".env"], {".env"}),
        (["data"], {"data/a/big.bin", "data/b"}),
        (["data/a"], {"data/a/big.bin"}),
        (["*/*.pem", "/.env"], {"conf/x.pem", ".env"}),
        (["node_modules/mine/**"], {"node_modules/mine/index.js"}),
        (["./conf/x.pem", "./.env"], {"conf/x.pem", ".env"}),
        (["wandb/**/*.json"], {"wandb/a.json", "wandb/run/files/deep/b.json"}),
        (["**/deep/*.json"], {"wandb/run/files/deep/b.json"}),
        (["data", "!data/b"], {"data/a/big.bin"}),
        (["main.py"], set()),
    ],
)
def test_include_brings_back_what_is_excluded(tmp_path, include, brought):
    always = {"main.py", ".gitignore"}
    write(
        tmp_path,
        {
            ".gitignore": "data/\n",
            **dict.fromkeys(
                [
                    "main.py",
                    ".env",
                    "conf/x.pem",
                    "data/a/big.bin",
                    "data/b",
                    "node_modules/mine/index.js",
                    "node_modules/other/.env",
                    "wandb/a.json",
                    "wandb/run/files/deep/b.json",
                    ".git/config",
                ],
                "x",
            ),
        },
    )
    folder = packing.WorkspaceFolder(str(tmp_path), include)
    files = {entry.path for entry in folder.files}
    assert files == always | brought
    folders = {entry.path for entry in folder.entries if entry.kind == "folder"}
    assert {str(Path(path).parent) for path in files} - {"."} <= folders
    assert not brought & set(folder.left_out)


@pytest.mark.parametrize("pattern", [".git", "absent", "./", "./a.pem", "data/**/*.txt", "#", ""])
def test_an_include_pattern_that_matches_no_file_is_refused(tmp_path, pattern):
    write(tmp_path, {".gitignore": "data/\n", "data/x/b.bin": "x", "conf/a.pem": "x", ".git/config": "x"})
    with pytest.raises(UsageError, match=re.escape(f"include: {pattern!r} matches no file in {tmp_path}")):
        packing.WorkspaceFolder(str(tmp_path), ["data/", pattern])


def test_a_folder_marked_as_excluded_is_left_out_itself(tmp_path):
    write(tmp_path, {"cache/.gitignore": "*\n", "cache/a": "x", "kept/.gitignore": "*.pt\n", "kept/a.pt": "x"})
    assert paths(tmp_path) == ["kept", "kept/.gitignore"]


def test_unreadable_files_are_all_named(tmp_path, monkeypatch):
    write(tmp_path, {"a": "", "b": "", "c": ""})
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: allowed(path, mode) and not path.endswith(("/a", "/c")))
    with pytest.raises(ClientError, match="cannot read 2 files: a, c") as failure:
        packing.WorkspaceFolder(str(tmp_path))
    assert ".gradientignore" in failure.value.hint


def test_a_file_that_is_deleted_meanwhile_is_left_out_with_a_note(tmp_path, monkeypatch):
    write(tmp_path, {"a": "", "b": ""})
    monkeypatch.setattr(os, "access", lambda path, _mode: not path.endswith("/a") or Path(path).unlink())
    folder = packing.WorkspaceFolder(str(tmp_path))
    assert [entry.path for entry in folder.entries] == ["b"]
    assert folder.skipped == [("a", "it was deleted in the meantime")]


@pytest.mark.parametrize("before", [b"", b"x" * 9, b"x" * 70_000], ids=["empty", "small", "large"])
def test_a_file_that_grows_meanwhile_is_sent_as_it_was_with_a_note(tmp_path, capsys, monkeypatch, before):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    write(source, {"log.txt": ""})
    (source / "log.txt").write_bytes(before)
    folder = packing.WorkspaceFolder(str(source))
    with (source / "log.txt").open("ab") as log:
        log.write(b"workspace: ...")
    digest = hashlib.sha256(before).hexdigest()
    manifest = FolderManifest(folder, "http://x", lambda _done: None)
    assert json.loads(manifest.data)["files"] == [
        ["log.txt", (source / "log.txt").stat().st_mode & 0o777, len(before), digest]
    ]
    with create_pack(str(source), manifest.contents, {}, lambda _done: None) as pack, tarfile.open(pack.path) as tar:
        assert tar.extractfile(digest).read() == before
    [said] = capsys.readouterr().err.splitlines()
    assert f"log.txt is being written to; its first {len(before):,} bytes are sent" in said


def test_a_file_that_shrinks_meanwhile_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    source, scratch = tmp_path / "source", tmp_path / "scratch"
    write(source, {"log": "longer than after"})
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    manifest = manifest_of(source)
    folder = packing.WorkspaceFolder(str(source))
    (source / "log").write_text("short")
    with pytest.raises(ClientError, match="log changed while it was being packed"):
        FolderManifest(folder, "http://x", lambda _done: None)
    with pytest.raises(ClientError, match="log changed while it was being packed"):
        create_pack(str(source), manifest.contents, {}, lambda _done: None)
    assert list(scratch.iterdir()) == []


def test_a_full_disk_is_told_with_the_place_to_change(tmp_path, monkeypatch):
    write(tmp_path, {"source/a": "x" * 100})
    manifest = manifest_of(tmp_path / "source")
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "gone")))
    (tmp_path / "gone").touch()
    with pytest.raises(ClientError, match="No space left on device") as failure:
        create_pack(manifest.root, manifest.contents, manifest.read, lambda _done: None)
    assert "TMPDIR" in failure.value.hint


def test_an_archive_must_be_one(tmp_path):
    (tmp_path / "code.zip").write_bytes(b"not a zip")
    with pytest.raises(ClientError, match="neither a zip nor a tar"):
        packing.open_archive(str(tmp_path / "code.zip"))
    (tmp_path / "code.zip").write_bytes(b"PK\x03\x04")
    with packing.open_archive(str(tmp_path / "code.zip")) as archive:
        assert archive.size == 4
    assert (tmp_path / "code.zip").exists(), "what the user made is not removed"
