"""Transfers to and from a project's storage that break off."""

import json
import os

import pytest

from core.storage.artifacts.paths import to_public_path
from gradient_cli.workspace.transfer import public_names

STORAGE = "/projects/p1/storage"
DATA = bytes(range(256)) * 2000
ENTRY = {"path": "big", "kind": "file", "size": len(DATA), "modified": "2024-05-01T10:00:00.123Z", "etag": "7d000-18f"}


@pytest.fixture
def project(server):
    found = {"id": "p1", "name": "default"}
    server.on("GET", "/projects", {"projects": [found]})
    server.on("POST", "/projects", found)
    server.on("GET", STORAGE, {"entries": [ENTRY], "next": None})


@pytest.mark.usefixtures("project")
def test_sizes_of_folders_with_too_many_files_are_left_out_with_a_word(cli, server):
    folder = {"path": "big", "kind": "folder", "size": None, "modified": ENTRY["modified"]}
    server.on("GET", STORAGE, {"entries": [folder, ENTRY | {"path": "big/1"}], "next": "n"}, {"entries": [folder]})
    listed = cli("storage", "ls")
    assert listed.stdout.splitlines()[1].split()[0] == "big/"
    assert listed.stderr == (
        "sizes of folders are not shown, because they contain many files; --recursive adds them up\n"
    )


@pytest.mark.usefixtures("project")
def test_a_download_that_breaks_off_is_continued(cli, server, protocol):
    rest = protocol.Reply(DATA[300_000:], 206, {"Content-Range": f"bytes 300000-{len(DATA) - 1}/{len(DATA)}"})
    server.on("GET", f"{STORAGE}/big", protocol.Reply(DATA[:300_000], claim=len(DATA)), rest)
    got = cli("storage", "get", "big")
    assert got.returncode == 0, got.stderr
    assert (cli.folder / "big").read_bytes() == DATA
    assert (cli.folder / "big").stat().st_mtime_ns == 1714557600123 * 10**6
    asked = server.requests_to("GET", f"{STORAGE}/big")[-1].headers
    assert (asked["Range"], asked["If-Range"]) == ("bytes=300000-", '"7d000-18f"')


@pytest.mark.usefixtures("project")
def test_a_stored_file_whose_name_is_taken_for_that_of_another_is_left_out(cli, server, protocol, monkeypatch):
    monkeypatch.setattr("gradient_cli.workspace.transfer.download.to_local_name", str.casefold)
    stored = [ENTRY | {"path": f"set/{name}", "size": 1} for name in ("a", "A")]
    folders = [ENTRY | {"path": path, "kind": "folder", "size": None} for path in ("set", "set/D", "set/d")]
    pipe = ENTRY | {"path": "set/pipe", "kind": "other", "size": None}
    server.on("GET", STORAGE, {"entries": [*folders, *stored, pipe], "next": None})
    for name in ("a", "A"):
        server.on("GET", f"{STORAGE}/set/{name}", protocol.Reply(name.encode()))
    got = cli("storage", "get", "set", "--json")
    answer = json.loads(got.stdout)
    assert (got.returncode, answer["files"], answer["leftOut"]) == (1, ["set/a"], ["set/A", "d", "set/pipe"])
    assert (cli.folder / "set" / "a").read_bytes() == b"a"


@pytest.mark.usefixtures("project")
def test_an_upload_that_breaks_off_is_repeated(cli, server, protocol):
    server.on("PUT", f"{STORAGE}/new", protocol.Reply(breaks="unanswered"), {"path": "new"})
    (cli.folder / "new").write_bytes(DATA)
    os.utime(cli.folder / "new", (1714557600, 1714557600))
    done = cli("storage", "put", "new", "--json")
    assert json.loads(done.stdout) == {"files": ["new"], "bytes": len(DATA), "unchanged": 0, "leftOut": []}
    sent = server.requests_to("PUT", f"{STORAGE}/new")
    assert [request.body for request in sent] == [DATA, DATA]
    assert sent[1].query["modified"] == "2024-05-01T10:00:00.000Z"


@pytest.mark.usefixtures("project")
def test_a_path_that_leads_out_of_the_folder_is_refused(cli, server):
    server.on("GET", STORAGE, {"entries": [ENTRY | {"path": "set/../../evil"}], "next": None})
    refused = cli("storage", "get", "set", "here")
    assert refused.returncode == 1
    assert "outside the folder" in refused.stderr


@pytest.mark.usefixtures("project")
def test_what_an_upload_does_not_keep_is_named(cli, server):
    for name in ("set/empty/deeper", "set/bin"):
        (cli.folder / name).mkdir(parents=True)
    for name, mode in (("run.sh", 0o755), ("a.txt", 0o644)):
        (cli.folder / "set" / "bin" / name).write_text("x")
        (cli.folder / "set" / "bin" / name).chmod(mode)
        server.on("PUT", f"{STORAGE}/set/bin/{name}", {"path": name})
    left_out = ["set/empty/deeper: an empty folder", "permission to execute: set/bin/run.sh"]
    assert json.loads(cli("storage", "put", "set", "--json").stdout)["leftOut"] == left_out
    said = cli("storage", "put", "set").stderr
    assert [f"left out: {one}" in said for one in left_out] == [True, True]


@pytest.mark.parametrize("name", ["a", "95%best", "100%", "a%2Fb", "a\\b", os.fsdecode(b"\xff%fe"), "\u00e9%C3%A9"])
def test_a_name_is_the_same_after_a_round_trip(name):
    public = public_names.to_public_name(name)
    assert public == to_public_path(name)
    assert public_names.to_local_name(public) == name
