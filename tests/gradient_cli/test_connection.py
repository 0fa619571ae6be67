import json
import os
import socket
import stat
import threading

import pytest

from gradient_cli import config
from gradient_cli.api.transport import Transport
from gradient_cli.errors import ServerError


@pytest.fixture
def bare(cli):
    """A client without any configuration."""
    cli.env.pop("GRADIENT_URL")
    cli.env.pop("GRADIENT_API_KEY")
    return cli


def test_login_saves_what_works(bare, server):
    server.on("GET", "/projects", {"projects": []})
    made = bare("login", "--url", server.url + "/", "--apiKey", " secret-key\n")
    assert made.returncode == 0
    file = bare.home / ".config" / "gradient" / "config.json"
    assert json.loads(file.read_text()) == {"url": server.url, "apiKey": "secret-key"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert bare("projects", "list").returncode == 0
    assert server.requests[-1].headers["x-api-key"] == "secret-key"


def test_login_saves_nothing_that_does_not_work(bare, server, protocol):
    server.on("GET", "/projects", protocol.error(401, "unknown key", name="Unauthorized"))
    refused = bare("login", "--url", server.url, "--apiKey", "wrong")
    assert refused.returncode == 3
    assert "error: unknown key\n`gradient-cli login` saves a valid key" in refused.stderr
    assert not (bare.home / ".config").exists()


def test_login_asks_nobody_who_is_not_there(bare, server):
    assert "url: required" in bare("login").stderr
    refused = bare("login", "--url", server.url)
    assert refused.returncode == 2
    assert "--apiKey" in refused.stderr


def test_a_server_that_gradient_home_names_wins_over_a_login(bare, server):
    """`gradient-server up` prints its first command with that variable."""
    server.on("GET", "/projects", {"projects": []})
    login = bare.home / ".config" / "gradient"
    login.mkdir(parents=True)
    (login / "config.json").write_text(json.dumps({"url": server.url, "apiKey": "login"}))
    homes = {name: bare.home / name for name in (".gradient-jobs", "named", "empty")}
    for name, home in homes.items():
        home.mkdir()
        if name != "empty":
            (home / "cli.json").write_text(json.dumps({"url": server.url, "apiKey": name}))
    for variables in ({}, {"GRADIENT_HOME": str(homes["named"])}, {"GRADIENT_HOME": str(homes["empty"])}):
        assert bare("projects", "list", env=variables).returncode == 0
    assert [request.headers["x-api-key"] for request in server.requests] == ["login", "named", "login"]


def test_a_saved_key_is_never_sent_to_another_address(bare, server, protocol):
    folder = bare.home / ".config" / "gradient"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"url": "https://mine.example", "apiKey": "mine"}))
    server.on("GET", "/projects", protocol.error(401, "a key is needed"))
    assert bare("projects", "list", "--url", server.url).returncode == 3
    assert "x-api-key" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (None, "cli.json does not exist"),
        ({"url": "http://localhost:1", "apiKey": "other"}, "cli.json has a key for http://localhost:1"),
        ("same", "cli.json has this address but no key"),
    ],
)
def test_a_missing_key_is_explained_by_where_it_was_looked_for(bare, server, protocol, saved, told):
    if saved is not None:
        bare.home.joinpath(".gradient-jobs").mkdir()
        content = {"url": server.url} if saved == "same" else saved
        bare.home.joinpath(".gradient-jobs", "cli.json").write_text(json.dumps(content))
    server.on("GET", "/projects", protocol.error(401, "The request has no API key."))
    refused = bare("projects", "list", env={"GRADIENT_URL": server.url})
    assert refused.returncode == 3
    assert f"error: there is no API key for {server.url}\n" in refused.stderr
    assert told in refused.stderr
    assert "set GRADIENT_HOME to the folder that it prints as Data" in refused.stderr


def test_flags_win_over_environment_over_login(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config.write_json(config.login_file(), {"url": "http://saved/", "apiKey": "k-saved"})
    monkeypatch.delenv("GRADIENT_URL", raising=False)
    monkeypatch.delenv("GRADIENT_API_KEY", raising=False)
    assert (config.resolve(None, None).url, config.resolve(None, None).key) == ("http://saved", "k-saved")
    assert config.resolve("http://saved", None).key == "k-saved"
    assert config.resolve(None, "k-flag").key == "k-flag"
    monkeypatch.setenv("GRADIENT_URL", "http://env")
    monkeypatch.setenv("GRADIENT_API_KEY", "k-env")
    assert (config.resolve(None, None).url, config.resolve(None, None).key) == ("http://env", "k-env")
    assert config.resolve("http://flag", "k-flag").url == "http://flag"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"apiKey": hunter2', "not valid JSON: Expecting value: line 1 column 12"),
        (b"\xff\xfe[x", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (None, "Is a directory"),
        (b'{"url": 5}', "url is not text"),
        (b'{"url": "http://127.0.0.1:1", "apiKey": ["hunter2"]}', "apiKey is not text"),
        (b'{"url": "http://127.0.0.1:1", "apiKey": "hunter2 x"}', "characters that are not allowed in a key"),
        (b'{"url": "http://u:hunter2@host", "apiKey": "k"}', "may only have scheme, host and path"),
    ],
)
def test_a_broken_file_is_named(bare, content, told):
    file = bare.home / ".config" / "gradient" / "config.json"
    file.parent.mkdir(parents=True)
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    refused = bare("jobs", "list")
    assert refused.returncode == 2
    assert str(file) in refused.stderr
    assert told in refused.stderr
    assert "hunter2" not in refused.stderr
    assert len(refused.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1", "nothing answers at"),
        ("https://127.0.0.1:1", "nothing answers at"),
        ("http://no-such-host.invalid", "cannot be resolved"),
    ],
)
def test_an_address_that_does_not_work_is_explained(cli, url, told):
    refused = cli("jobs", "list", "--url", url)
    assert refused.returncode == 3
    assert told in refused.stderr
    assert len(refused.stderr.splitlines()) == 2, "one sentence and one thing to do"


@pytest.mark.parametrize(
    "url",
    [
        "http://größe.invalid",
        "localhost:8000",
        "http://host:99999",
        "http://[::1",
        "http://ho st",
        "ftp://host",
        "http://user:hunter2@host",
        "http://user:hun/ter2@host",
        "http://host/?token=hunter2",
        "http://user:hunt?hunter2@host",
        "http://user:hunter2#x@host",
        "host?token=hunter2",
        "http://host#hunter2",
    ],
)
def test_what_is_no_address_is_wrong_usage_and_is_told_without_its_password(cli, url):
    for source, refused in (
        ("--url", cli("jobs", "list", "--url", url)),
        ("GRADIENT_URL", cli("jobs", "list", env={"GRADIENT_URL": url})),
    ):
        assert refused.returncode == 2
        assert f"error: {source}: 'http" in refused.stderr or ("://" not in url or "ftp" in url)
        assert refused.stderr.splitlines()[1:] == ["An address looks like http://127.0.0.1:8780 or https://host/path."]
        assert "hun" not in refused.stderr


def test_a_key_that_cannot_be_one(cli, server):
    refused = cli("jobs", "list", "--apiKey", "a b\nc")
    assert refused.returncode == 2
    assert "--apiKey" in refused.stderr
    assert server.requests == []


@pytest.mark.parametrize(
    ("reply", "code", "told"),
    [
        ({"body": b"<html>hotel wifi</html>", "headers": {"Content-Type": "text/html"}}, 3, "(HTTP 200, text/html)"),
        ({"body": {"something": "else"}}, 3, "sent an unexpected response"),
        ({"body": b"[]"}, 3, "sent an unexpected response"),
        ({"body": b"oops", "status": 500}, 3, "failed: HTTP 500"),
        ({"body": b"", "status": 404}, 4, "refused: HTTP 404"),
        ({"body": {"error": "text"}, "status": 400}, 4, "refused: HTTP 400"),
        ({"status": 307, "headers": {"Location": "https://there/"}}, 3, "redirects to https://there/"),
        ({"body": b"{", "claim": 100}, 3, "lost in the middle of a response"),
        ({"breaks": "unanswered"}, 3, "closed the connection without a response"),
        (
            {"body": {"error": {"message": "no \x1b[2Jsuch\nthing", "field": "state"}}, "status": 422},
            4,
            "error: state: no such thing",
        ),
    ],
)
def test_an_answer_that_is_none_is_explained(cli, server, protocol, reply, code, told):
    server.on("GET", "/jobs", protocol.Reply(**reply))
    refused = cli("jobs", "list")
    assert refused.returncode == code
    assert told in refused.stderr
    assert refused.stdout == ""


def test_a_kept_connection_that_went_stale_is_opened_again(server):
    asking = Transport(server.url, "k")
    server.on("GET", "/health", {"status": "ok"})
    assert asking.json("GET", "/health") == {"status": "ok"}
    asking.kept.sock.shutdown(socket.SHUT_RDWR)
    assert asking.json("GET", "/health") == {"status": "ok"}
    asking.close()


def test_a_refusal_in_the_middle_of_an_upload_is_received():
    listener = socket.create_server(("127.0.0.1", 0))
    body = b'{"error": {"message": "too large", "field": "workspace"}}'

    def refuse():
        connection, _ = listener.accept()
        connection.recv(1000)
        head = f"HTTP/1.1 413 Too Large\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass
        connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    asking = Transport(f"http://127.0.0.1:{listener.getsockname()[1]}", "")
    pieces = iter([os.urandom(1 << 16)] * 100)
    with pytest.raises(ServerError, match="workspace: too large"):
        asking.open("POST", "/jobs", body=pieces, headers={"Content-Length": str(100 << 16)})
    asking.close()
    thread.join()
    listener.close()


def test_a_limit_of_the_server_is_waited_for_as_long_as_it_says(cli, server, protocol):
    limited = protocol.error(429, "Limit reached: 3 requests per minute for one key.", name="LimitReached")
    limited.headers["Retry-After"] = "1"
    server.on("GET", "/projects", limited, limited, {"projects": []})
    listed = cli("projects", "list")
    assert listed.returncode == 0
    assert len(server.requests_to("GET", "/projects")) == 3
    assert listed.stderr.count("Limit reached: 3 requests per minute for one key. Waiting 1 s") == 2
