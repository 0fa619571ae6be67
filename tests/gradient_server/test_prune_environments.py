"""`gradient-server prune --environments` and `disk`: the Python environments of jobs on this host."""

import json
import os

import pytest

from core.settings import Settings
from core.settings.worker import EnvironmentSettings
from gradient_server.commands import disk
from gradient_server.commands.prune import environments
from worker.environments.cache import EnvironmentCache
from worker.environments.default_environment import DefaultEnvironment, service_python

UNUSED, USED, SIZE = "a" * 32, "b" * 32, 400_000


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", environments=EnvironmentSettings(default=["numpy"]))


@pytest.fixture
def root(settings):
    """An environment that no job uses, one of a running job, the default one, and a download."""
    cache = EnvironmentCache(settings)
    default = cache.folder_of(DefaultEnvironment(settings.environments, cache).wanted(service_python()))
    unused, used = cache.root / "pr1" / UNUSED, cache.root / "pr2" / USED
    for folder, day, lines in ((unused, 1, ["a==1", *"bcde"]), (used, 2, ["torch"]), (default, 3, ["numpy"])):
        packages = folder / "lib"
        packages.mkdir(parents=True)
        (packages / "module.py").write_bytes(os.urandom(SIZE))
        folder.with_suffix(".lock").write_text(json.dumps({"lines": lines}))
        os.utime(folder.with_suffix(".lock"), (day * 86400, day * 86400))
    attempt = settings.root / "attempts" / "j1-1"
    attempt.mkdir(parents=True)
    (attempt / "environment").symlink_to(used)
    downloads = unused.parent / "building" / "cache" / "wheels-v6"
    downloads.mkdir(parents=True)
    (downloads / "download").write_bytes(os.urandom(SIZE))
    return cache.root


def folders(root):
    return {one.name for one in root.glob("*/*") if len(one.name) == 32}


def test_environments_that_no_job_uses_are_removed_with_all_downloads(settings, root, capsys):
    before = folders(root)
    assert environments.run(settings, dry_run=True, as_json=True) == 0
    planned = json.loads(capsys.readouterr().out)
    assert folders(root) == before
    assert [one["id"] for one in planned["environments"]] == [UNUSED]
    assert planned["environments"][0]["requirements"] == ["a==1", "b", "c", "d", "e"]

    assert environments.run(settings, dry_run=False, as_json=True) == 0
    removed = json.loads(capsys.readouterr().out)
    assert folders(root) == before - {UNUSED}
    assert not list(root.rglob("download"))
    assert removed["bytes"] >= 2 * SIZE
    assert abs(removed["bytes"] - planned["bytes"]) < SIZE / 10


@pytest.mark.usefixtures("root")
def test_disk_names_each_environment(settings, capsys):
    disk.run(settings, as_json=False)
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert ["bbbbbbbb", "in", "use", "torch"] in [line[2:] for line in shown]
    disk.run(settings, as_json=True)
    found = json.loads(capsys.readouterr().out)["environments"]
    assert [(one["id"], one["inUse"]) for one in found][:2] == [(UNUSED, False), (USED, True)]
    assert found[0]["bytes"] >= SIZE
