"""`gradient-server disk`: says what holds the disk."""

import json
import os

import pytest

from core.settings import Settings
from gradient_server.commands import disk

JOBS = [f"j{number:013}" for number in range(12)]
BLOCK = 4096


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


def write(settings, path, size, at=1_700_000_000):
    file = settings.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))
    os.utime(file, (at, at))
    return file


def shown(settings, capsys, *, as_json):
    assert disk.run(settings, as_json=as_json) == 0
    return capsys.readouterr().out


def test_every_kind_and_the_largest_jobs_are_shown(settings, capsys):
    write(settings, "workspaces/ab/" + "ab" * 32, 8 * BLOCK)
    for number, job in enumerate(JOBS):
        write(settings, f"logs/{job[:3]}/{job}/raw", BLOCK * (number + 1), at=1_700_000_000 + number)
    model = write(settings, f"attempts/{JOBS[0]}-1/artifacts/model", 100 * BLOCK)
    stored = settings.root / "artifacts" / JOBS[0][:3] / JOBS[0] / "1" / "files" / "model"
    stored.parent.mkdir(parents=True)
    os.link(model, stored)
    write(settings, "gradient.db", 3 * BLOCK)
    write(settings, "gradient.db-wal", BLOCK)
    write(settings, "environments/cache/tiny.whl", 2 * BLOCK)
    write(settings, "cli.json", 10)
    found = json.loads(shown(settings, capsys, as_json=True))
    kinds = found["kinds"]
    assert [kinds[name]["files"] for name in ("workspaces", "logs", "database", "other")] == [1, 12, 2, 1]
    assert kinds["attempts"]["files"] + kinds["artifacts"]["files"] == 1, "a file with two names is there once"
    assert kinds["database"]["bytes"] == 4 * BLOCK
    assert kinds["environments"]["bytes"] == 2 * BLOCK
    assert kinds["logs"]["oldest"] == "2023-11-14T22:13:20.000Z"
    assert [job["id"] for job in found["largestJobs"]] == [JOBS[0], *JOBS[:2:-1]]
    assert found["largestJobs"][0]["bytes"] == 101 * BLOCK
    text = shown(settings, capsys, as_json=False)
    assert "workspaces      32.8 kB         1  2023-11-14 22:13  uploaded folders\n" in text
    assert f"    413.7 kB  {JOBS[0]}\n" in text
    assert " free\n" in text
