"""Build backends that attack the host: what they do in the folders that a build may write to harms nobody else."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from support.deployment import wait_until

from core.settings import Settings
from core.system.untrusted_folders import chown_tree
from gradient_cli.workspace.dependencies.declared import INSTALL
from worker.backends.base import LaunchError
from worker.backends.process.control_groups import control_group_support
from worker.backends.process.isolated_programs import Limits
from worker.environments.cache import EnvironmentCache, site_packages
from worker.environments.install_progress import InstallProgress
from worker.environments.installer import UvError
from worker.environments.prepare import has_module
from worker.environments.wanted import Wanted

pytestmark = pytest.mark.integration

PROJECT = "pr1"
PYTHON = Path(sys.executable).resolve()
BARE = Wanted(python=PYTHON)
BACKEND = """
import glob, os, shutil, sys, time
from pathlib import Path

cache = Path(os.environ["UV_CACHE_DIR"])
building, victim = cache.parent, Path({victim!r})

def attack():
{attack}

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    attack()
    sys.exit(1)
"""
LINK_CACHE = """
    cache.rename(building / "moved")
    cache.symlink_to(victim)
"""
LINK_ALL = """
    for path in [*building.iterdir(), *(building / f"new{number}" for number in range(9))]:
        if path.exists():
            path.rename(building / f"aside-{time.monotonic_ns()}")
        path.symlink_to(victim)
"""
REPLACE_OTHERS = """
    print("waiting", flush=True)
    Path("/paperspace/ready").touch()
    until = time.monotonic() + 60
    seen = {*building.glob('new*')}
    while time.monotonic() < until and not Path("/paperspace/stop").exists():
        time.sleep(0.0002)
        for path in {*building.glob('new*')} - seen:
            seen.add(path)
            try:
                path.rename(building / f"aside-{time.monotonic_ns()}")
                path.symlink_to(victim)
            except OSError:
                pass
"""
LEAVE = """
    for name in ("left", "left.new", "left-1", ".left"):
        (building / name).mkdir()
        (building / name / "big").write_bytes(bytes(1_000_000))
    deep = building / "deep"
    deep.mkdir()
    os.chdir(deep)
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    os.mkfifo(building / "fifo")
    (building / "left").chmod(0)
    with open(building / "sparse", "wb") as sparse:
        sparse.truncate(1 << 42)
"""
TAKE_MEMORY = """
    Path("/paperspace/began").touch()
    kept = [bytes(1 << 20) * 1 for _ in range(1)]
    while True:
        kept.append(os.urandom(1 << 22))
"""
FILL_DISK = """
    with open(building / "big", "wb") as big:
        while True:
            big.write(bytes(1 << 20))
            big.flush()
            time.sleep(0.01)
"""


@pytest.fixture
def cache(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return EnvironmentCache(Settings(home=home, process={"sandbox": "require"}))


@pytest.fixture
def victim(cache):
    """A folder of the service, which no build may see, with what must stay."""
    folder = cache.root.parent / "artifacts"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "kept").write_text("another person's")
    return folder


def state(folder):
    return {
        str(path.relative_to(folder)): (path.lstat().st_uid, path.lstat().st_mode, path.is_file() and path.read_bytes())
        for path in (folder, *sorted(folder.rglob("*")))
    }


def build(cache, tmp_path, victim, attack, name="a", limits=None):
    """Build a project whose build backend attacks; return what uv printed."""
    workspace = tmp_path / name
    workspace.mkdir()
    (workspace / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
    )
    (workspace / "evil.py").write_text(BACKEND.format(victim=str(victim), attack=attack))
    wanted = Wanted(
        python=PYTHON,
        project_id=PROJECT,
        commands=((*INSTALL, "."),),
        contents=(name,),
        workspace=workspace,
        folder=workspace,
        limits=limits,
    )
    with pytest.raises((LaunchError, UvError)) as caught:
        cache.use(wanted, None, InstallProgress("these", lambda *_: None, lambda: None))
    return caught.value


@pytest.mark.parametrize("attack", [LINK_CACHE, LINK_ALL], ids=["cache", "all"])
def test_links_among_the_builds_of_a_project_lead_nowhere(cache, tmp_path, victim, attack):
    before = state(victim)
    build(cache, tmp_path, victim, attack)
    cache.clean_caches()
    cache.evict(lambda _: 10**15, BARE)
    build(cache, tmp_path, victim, attack, "b")
    cache.evict(lambda _: 10**15, BARE)
    assert state(victim) == before


def test_a_build_replaces_nothing_of_another_one_that_the_service_opens(cache, tmp_path, victim):
    """One waits, and puts a link in the place of everything that the others make."""
    before, outside = state(victim), tmp_path / "waiting"
    waiting = threading.Thread(target=build, args=(cache, tmp_path, victim, REPLACE_OTHERS, "waiting"))
    waiting.start()
    try:
        wait_until((outside / "ready").exists, "the build that waits")
        for name in ("b", "c", "d"):
            probe = f'    Path("/paperspace/seen").write_text(str(os.listdir("/tmp") + os.listdir({str(victim)!r})))'
            build(cache, tmp_path, victim, probe, name)
            assert not (tmp_path / name / "seen").exists(), "it saw the folder, or its own /tmp is another's"
        bare = Wanted(python=PYTHON, project_id=PROJECT)
        try:
            folder, _ = cache.use(bare, None, InstallProgress("these", lambda *_: None, lambda: None))
        except (OSError, UvError):
            pass  # its own project's builds may spoil it
        else:
            assert not folder.is_symlink()
            assert folder.is_dir()
        assert state(victim) == before
    finally:
        (outside / "stop").touch()
        waiting.join()
    assert state(victim) == before


def test_what_builds_leave_is_removed(cache, tmp_path, victim):
    build(cache, tmp_path, victim, LEAVE)
    place = cache.root / PROJECT
    assert [path.name for path in (place / "building").iterdir()] == ["cache"]
    assert {path.name for path in place.iterdir()} <= {"building", "building.busy"} | {
        path.name for path in place.glob("*.lock")
    }


def test_a_build_has_the_memory_of_its_job(cache, tmp_path, victim):
    if control_group_support("auto")[0] is None:
        pytest.skip(f"no control groups here: {control_group_support('auto')[1]}")
    error = build(cache, tmp_path, victim, TAKE_MEMORY, limits=Limits("jabc-1", 256 << 20, None))
    assert (tmp_path / "a" / "began").exists()
    assert "more memory than the job's 256 MiB: submit with a larger --memoryMb" in str(error)


def test_a_build_may_add_what_a_job_may_hold_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.environments.installer.MEASURE_SECONDS", 0.2)
    cache = EnvironmentCache(Settings(home=tmp_path / "home", process={"sandbox": "require"}, disk={"job_mb": 20}))
    began = time.monotonic()
    error = build(cache, tmp_path, tmp_path, FILL_DISK)
    assert "but the limit of a job is 20 MiB" in str(error)
    assert time.monotonic() - began < 120
    assert not (cache.root / PROJECT / "building" / "big").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_that_is_given_away_is_no_link(tmp_path):
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(OSError, match="link"):
        chown_tree(tmp_path / "link", 61_234, 61_234)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(kept)
    chown_tree(tmp_path / "tree", 61_234, 61_234)
    assert {path.stat().st_uid for path in (kept, kept / "inner")} == {0}
    assert (tmp_path / "tree" / "link").lstat().st_uid == 61_234


def test_packages_are_found_where_no_link_leads(tmp_path):
    """A build may leave links to folders of the host in its environment."""
    environment, outside = tmp_path / "environment", tmp_path / "outside"
    (outside / "site-packages" / "module").mkdir(parents=True)
    (environment / "lib").mkdir(parents=True)
    (environment / "lib" / "python3.0").symlink_to(outside)
    with pytest.raises(FileNotFoundError):
        site_packages(environment)
    packages = environment / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "linked").symlink_to(outside / "site-packages")
    (packages / "package").mkdir()
    (packages / "package" / "inner.py").touch()
    assert site_packages(environment) == packages
    modules = ("package.inner", "package.absent", "linked", "linked.module", "absent", "absent.module")
    assert [module for module in modules if has_module(packages, module)] == ["package.inner", "linked"]
