import hashlib
import json
import unicodedata
from urllib.parse import quote

import pytest


def listed(path, data, *, digest=True):
    sha256 = hashlib.sha256(data).hexdigest() if digest else None
    return {"path": path, "size": len(data), "sha256": sha256, "mode": 0o644, "modified": "2024-05-01T10:00:00.000Z"}


@pytest.fixture
def left(server, protocol):
    """Make the job have left these files."""

    def leave(files, state="complete", *, digest=True):
        entries = [listed(path, data, digest=digest) for path, data in files.items()]
        server.on(
            "GET", f"/jobs/{protocol.id}/artifacts", {"state": state, "files": entries, "skipped": [], "next": None}
        )
        for path, data in files.items():
            server.on("GET", f"/jobs/{protocol.id}/artifacts/file/{quote(path)}", protocol.Reply(data))

    return leave


def test_list_shows_every_page(cli, server, protocol):
    skipped = [{"path": "pipe", "why": "not a file"}]
    server.on(
        "GET",
        f"/jobs/{protocol.id}/artifacts",
        {"state": "partial", "files": [listed("a", b"1")], "skipped": skipped, "next": "a"},
        {"state": "partial", "files": [listed("b", b"2", digest=False)], "skipped": [], "next": None},
    )
    shown = cli("jobs", "artifacts", "list", protocol.id)
    assert [row.split()[0] for row in shown.stdout.splitlines()] == ["PATH", "a", "b"]
    assert hashlib.sha256(b"1").hexdigest()[:12] in shown.stdout
    assert "not stored: pipe: not a file" in shown.stderr
    assert "still being stored" in shown.stderr
    assert server.requests[-1].query["after"] == "a"


@pytest.fixture
def contents(server, protocol):
    """Make the server send these files joined, as the client asks for them."""

    def serve(*replies):
        server.on("POST", f"/jobs/{protocol.id}/artifacts/contents", *replies)

    return serve


@pytest.fixture
def ignores_case(monkeypatch):
    """Let names lie where a file system that ignores case and composition has them."""
    folded = "gradient_cli.workspace.transfer.download.to_local_name"
    monkeypatch.setattr(folded, lambda name: unicodedata.normalize("NFC", name).casefold())


@pytest.mark.usefixtures("ignores_case")
@pytest.mark.parametrize(
    "names", [("a.txt", "A.txt"), ("d/x", "D/x"), ("\u00e9", "e\u0301"), ("stra\u00dfe", "STRASSE")]
)
@pytest.mark.parametrize(("size", "alike"), [(3, True), (3, False), (2**20 + 1, False)])
def test_a_file_whose_name_is_taken_for_that_of_another_is_left_out(cli, protocol, left, contents, names, size, alike):
    first, second = names
    files = {first: b"1" * size, "other": b"3", second: b"1" * size if alike else b"2" * size}
    left(files)
    contents(protocol.Reply(b"".join(data for data in files.values() if len(data) < 2**20)))
    for _ in range(2):
        got = cli("jobs", "artifacts", "get", protocol.id)
        assert got.returncode == 1, got.stderr
        assert f"left out: {second}: this file system does not distinguish its name from {first}\n" in got.stderr
        folder = cli.folder / f"artifacts-{protocol.id}"
        assert (folder / unicodedata.normalize("NFC", first).casefold()).read_bytes() == files[first]
        assert (folder / "other").read_bytes() == b"3"
    assert "; 2 already downloaded" in got.stderr


def test_small_files_come_in_one_request(cli, server, protocol, left, contents):
    files = {"a/1": b"one", "a/2": b"", "b/3": b"three" * 100}
    left({**files, "large": bytes(2**20 + 1)})
    contents(protocol.Reply(b"".join(files.values())))
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert (got.returncode, "4 files" in got.stderr) == (0, True)
    assert {name: (cli.folder / "out" / name).read_bytes() for name in files} == files
    (asked,) = server.requests_to("POST", f"/jobs/{protocol.id}/artifacts/contents")
    assert asked.json == {"paths": ["a/1", "a/2", "b/3"]}
    single = [request.path for request in server.requests if "/file/" in request.path]
    assert single == [f"/jobs/{protocol.id}/artifacts/file/large"]
    server.requests.clear()
    again = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert "0 files (0 B)" in again.stderr
    assert [request.method for request in server.requests] == ["GET"], "only the list"


def test_joined_files_that_break_off_are_continued(cli, server, protocol, left, contents):
    left({"a": b"first", "b": b"second", "c": b"third"})
    contents(protocol.Reply(b"firstsec", claim=16), protocol.Reply(b"secondthird"))
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out").returncode == 0
    asked = server.requests_to("POST", f"/jobs/{protocol.id}/artifacts/contents")
    assert [request.json["paths"] for request in asked] == [["a", "b", "c"], ["b", "c"]]
    assert [(cli.folder / "out" / name).read_bytes() for name in "abc"] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("body", [b"firstEVIL!!third", b"first", b"", b"firstsecondthirdmore"])
def test_joined_files_that_are_not_as_listed_are_fetched_one_by_one(cli, protocol, left, contents, body):
    files = {"a": b"first", "b": b"second", "c": b"third"}
    left(files)
    contents(protocol.Reply(body))
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out").returncode == 0
    assert {name: (cli.folder / "out" / name).read_bytes() for name in files} == files
    assert len(list((cli.folder / "out").iterdir())) == 4, "no parts are left"


def test_joined_files_keep_what_is_there(cli, server, protocol, left, contents):
    left({"a": b"first", "b": b"second"})
    contents(protocol.Reply(b"second"))
    (cli.folder / "out").mkdir()
    (cli.folder / "out" / "a").write_bytes(b"mine!")
    refused = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert "exists with other contents; nothing was downloaded" in refused.stderr
    assert (cli.folder / "out" / "a").read_bytes() == b"mine!"
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out", "--force").returncode == 0
    assert (cli.folder / "out" / "a").read_bytes() == b"first"
    assert server.requests_to("POST", f"/jobs/{protocol.id}/artifacts/contents")[0].json == {"paths": ["b"]}


def test_patterns_choose(cli, protocol, left):
    left({"model/a.bin": b"1", "model/b.txt": b"2", "c.bin": b"3"})
    for patterns, expected in (
        (["model/*.bin"], {"model/a.bin"}),
        (["model"], {"model/a.bin", "model/b.txt"}),
        (["*.bin", "./c.bin"], {"model/a.bin", "c.bin"}),
    ):
        to = cli.folder / "-".join(patterns).replace("/", "_").replace("*", "_")
        shown = cli("jobs", "artifacts", "get", protocol.id, *patterns, "--to", to, "--json")
        assert {file["path"] for file in json.loads(shown.stdout)["files"]} == expected
        assert {str(p.relative_to(to)) for p in to.rglob("*") if p.is_file()} == expected | {".gitignore"}
        assert (to / ".gitignore").read_text() == "*\n"
    refused = cli("jobs", "artifacts", "get", protocol.id, "*.zip")
    assert refused.returncode == 1
    assert "no artifact matches '*.zip'" in refused.stderr


def test_a_pattern_alone_is_for_the_last_job(cli, server, protocol, left):
    server.on("POST", "/jobs", protocol.job())
    cli("jobs", "create", "--machineType", "CPU", "--command", "x", "--workspace", "none", "--detach")
    left({"a": b"1", "b": b"2"})
    assert cli("jobs", "artifacts", "get", "a", "--to", "out").returncode == 0
    assert sorted(path.name for path in (cli.folder / "out").iterdir()) == [".gitignore", "a"]


def test_a_download_that_breaks_off_is_continued(cli, server, protocol, left):
    data = bytes(range(256)) * 2000
    left({"big": data})
    file = f"/jobs/{protocol.id}/artifacts/file/big"
    rest = protocol.Reply(data[300_000:], 206, {"Content-Range": f"bytes 300000-{len(data) - 1}/{len(data)}"})
    server.on("GET", file, protocol.Reply(data[:300_000], claim=len(data)), rest)
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert got.returncode == 0
    assert (cli.folder / "out" / "big").read_bytes() == data
    asked = server.requests_to("GET", file)[-1].headers
    assert asked["Range"] == "bytes=300000-"
    assert asked["If-Range"] == f'"{hashlib.sha256(data).hexdigest()}"'


def test_what_is_left_of_an_earlier_try_is_not_trusted(cli, server, protocol, left):
    data = b"0123456789"
    left({"big": data})
    out = cli.folder / "out"
    out.mkdir()
    (out / f".{hashlib.sha256(data).hexdigest()[:32]}.part").write_bytes(b"XXXX")
    part = protocol.Reply(data[4:], 206)
    server.on("GET", f"/jobs/{protocol.id}/artifacts/file/big", part, protocol.Reply(data))
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out").returncode == 0
    assert [path.name for path in out.iterdir()] == ["big"]
    assert (out / "big").read_bytes() == data


def test_a_damaged_file_never_gets_its_name(cli, server, protocol, left):
    left({"model": b"good"})
    server.on("GET", f"/jobs/{protocol.id}/artifacts/file/model", protocol.Reply(b"evil"))
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert got.returncode == 1
    assert "model arrived damaged twice" in got.stderr
    assert [path.name for path in (cli.folder / "out").iterdir()] == [".gitignore"]


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a//b", "", "a\\..\\evil", "./a"])
def test_nothing_is_written_outside(cli, server, protocol, path):
    entries = [listed(path, b"x")]
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"state": "complete", "files": entries, "next": None})
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert got.returncode == 1
    assert "outside the folder" in got.stderr
    assert len(server.requests) == 1
    assert list(cli.folder.iterdir()) == []


def test_names_with_escapes_are_written_as_the_job_had_them(cli, protocol, left):
    left({"a%5Cb/per%2541.txt": b"x", "%2E%2E/c": b"y"})
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out").returncode == 0
    assert (cli.folder / "out" / "a\\b" / "per%41.txt").read_bytes() == b"x"
    assert (cli.folder / "out" / "%2E%2E" / "c").read_bytes() == b"y"
    assert "2 already downloaded" in cli("jobs", "artifacts", "get", protocol.id, "--to", "out").stderr


def test_a_link_in_the_way_is_not_followed(cli, protocol, left):
    out, elsewhere = cli.folder / "out", cli.folder / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "model").symlink_to(elsewhere)
    left({"model/weights": b"x"})
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert got.returncode == 1
    assert "outside the folder" in got.stderr
    assert list(elsewhere.iterdir()) == []


def test_a_link_of_the_same_name_is_replaced(cli, protocol, left):
    target = cli.folder / "precious"
    target.write_text("mine")
    (cli.folder / "out").mkdir()
    (cli.folder / "out" / "a").symlink_to(target)
    left({"a": b"theirs"})
    assert cli("jobs", "artifacts", "get", protocol.id, "--to", "out").returncode == 0
    assert target.read_text() == "mine"
    assert (cli.folder / "out" / "a").read_text() == "theirs"


def test_a_job_without_artifacts(cli, protocol, left):
    left({}, state="none")
    assert "no artifacts" in cli("jobs", "artifacts", "list", protocol.id).stderr
    assert cli("jobs", "artifacts", "get", protocol.id).returncode == 0


def test_a_folder_that_cannot_be_made_is_told(cli, protocol, left):
    left({"a": b"x"})
    (cli.folder / "out").write_text("a file")
    got = cli("jobs", "artifacts", "get", protocol.id, "--to", "out")
    assert got.returncode == 1
    assert "--to" in got.stderr


def test_a_file_of_other_contents_is_overwritten_only_by_force(cli, protocol, left):
    left({"a": b"theirs", "b": b"new"})
    out = cli.folder / "out"
    out.mkdir()
    (out / "a").write_text("mine")
    get = ["jobs", "artifacts", "get", protocol.id, "-o", "out"]
    refused = cli(*get)
    assert refused.returncode == 1
    assert "out/a exists with other contents" in refused.stderr
    assert [file.name for file in out.iterdir()] == ["a"], "nothing was downloaded"
    assert cli(*get, "--force").returncode == 0
    assert (out / "a").read_text() == "theirs"
    assert cli(*get).returncode == 0, "the same contents are no conflict"
