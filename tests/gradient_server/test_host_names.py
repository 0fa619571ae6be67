"""Jobs' ports and the dashboard have different host names, or nothing starts; commands for sessions and keys."""

import json

import pytest

from core.db import migrations
from core.db.database import Database
from core.security import api_keys
from core.security.sessions import open_session
from core.settings import Settings
from core.settings.api import ApiSettings
from core.system.canonical_host import canonical_host
from gradient_server import entrypoints
from gradient_server.main import main

EVERY = "0.0.0.0"  # noqa: S104 - the case under test
PUBLIC = ApiSettings(public_url="https://jobs.example.org")


@pytest.mark.parametrize("command", ["up", "api", "worker"])
def test_nothing_starts_where_links_to_ports_would_lead_to_the_dashboard(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRADIENT_API__PUBLIC_URL", "https://jobs.example.org")
    monkeypatch.setenv("GRADIENT_WORKER__ADDRESS", "jobs.example.org")
    assert main([command]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: Links to jobs' ports would point to jobs.example.org")
    assert "GRADIENT_WORKER__ADDRESS" in said
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["up", "api", "worker"])
@pytest.mark.parametrize(("bind", "url"), [(EVERY, "http://127.0.0.1:8780"), ("127.0.0.1", "http://localhost:8780")])
def test_nothing_starts_where_a_job_s_page_could_lead_to_the_dashboard_s_name(
    tmp_path, monkeypatch, capsys, command, bind, url
):
    """Its link has another name; from there it leads to the dashboard's, and on, which then is the same site."""
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRADIENT_API__PUBLIC_URL", url)
    monkeypatch.setenv("GRADIENT_PORTS__BIND", bind)
    monkeypatch.setenv("GRADIENT_WORKER__ADDRESS", "127.0.0.3")
    monkeypatch.setattr(entrypoints, "_open_database_when_ready", _must_not_open)
    assert main([command]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: Jobs' ports would be opened at {bind}")
    assert "GRADIENT_PORTS__BIND" in said


def _must_not_open(*_, **__):
    raise AssertionError("it started")


@pytest.mark.parametrize("spelling", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.1."])
def test_all_spellings_of_an_address_are_one(spelling):
    assert canonical_host(spelling) == "127.0.0.1"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path))
    settings = Settings(home=tmp_path)
    database = Database(settings.database_url)
    migrations.upgrade(database)
    yield settings, database
    database.close()


def said(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_sessions_are_listed_and_ended(home, capsys):
    settings, database = home
    with database.write() as session:
        key, _ = api_keys.create(session, "laptop")
        for _ in range(3):
            open_session(session, key.id, settings.sign_in)
    listed = json.loads(said(capsys, "sessions", "list", "--json"))
    assert [(one["keyId"], one["keyName"]) for one in listed] == [(key.id, "laptop")] * 3
    assert said(capsys, "sessions", "end", listed[0]["id"]).startswith("1 session ended")
    assert listed[0]["id"] not in said(capsys, "sessions", "list")
    assert main(["sessions", "end", listed[0]["id"]]) == 1
    assert said(capsys, "sessions", "end", "--all").startswith("2 sessions ended")
    assert said(capsys, "sessions", "list") == "There are no open sessions.\n"


def test_a_new_signing_key_is_put_before_the_one_there_is(home, capsys):
    settings, _ = home
    said(capsys, "signing", "rotate")
    first = (settings.root / "session.key").read_bytes()
    said(capsys, "signing", "rotate")
    assert (settings.root / "session.key").read_bytes()[32:] == first[:32]
    said(capsys, "signing", "rotate", "--forget")
    assert len((settings.root / "session.key").read_bytes()) == 32
