"""Shared environments, installed by the real uv from an index on this machine."""

import fcntl
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.deployment import wait_until

from core.settings import Settings
from gradient_cli.workspace.dependencies.declared import INSTALL
from worker.backends.base import LaunchError
from worker.environments.cache import EnvironmentCache, site_packages
from worker.environments.install_progress import InstallProgress
from worker.environments.prepare import create_layer
from worker.environments.wanted import Wanted

pytestmark = pytest.mark.integration

DAY = 24 * 3600
PYTHON = Path(sys.executable).resolve()
BARE = Wanted(python=PYTHON)
PROJECT = "pr1"
DATA = "tiny-1.0.data/purelib/tiny.py"


@pytest.fixture
def attempt(tmp_path):
    """Make the scratch folder of an attempt."""

    def make(name="j1-1"):
        folder = tmp_path / "home" / "attempts" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return make


def wanted(*lines, project=PROJECT, copied=()):
    commands = ((*INSTALL, *lines),) if lines else ()
    return Wanted(python=PYTHON, project_id=project, commands=commands, lines=lines, copied=copied)


def progress(report=lambda *_: None, check=lambda: None):
    return InstallProgress("these", report, check)


def use(cache, scratch, *lines, report=lambda *_: None, check=lambda: None, project=PROJECT):
    return cache.use(wanted(*lines, project=project), scratch, progress(report, check))


def environments(cache, project=PROJECT):
    return sorted(one.name for one in (cache.root / project).iterdir() if len(one.name) == 32)


def half_made(cache):
    return [path for path in cache.root.glob("*/building/*") if path.name != "cache"]


def is_idle(folder):
    """Return whether no build of the environment's project runs."""
    with (folder.parent / "building.busy").open() as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def age(folder, days):
    then = time.time() - days * DAY
    os.utime(folder.with_suffix(".lock"), (then, then))


def test_requirements_are_installed_once_and_nothing_is_left_beside(index, cache, attempt):
    index.add_wheel("tiny", requires=("other",))
    index.add_wheel("other")
    folder, made = use(cache, attempt(), "tiny")
    assert made
    assert {"tiny.py", "other.py", "pip"} <= {one.name for one in site_packages(folder).iterdir()}
    asked = len(index.requests)
    assert use(cache, attempt("j2-1"), "tiny") == (folder, False)
    assert len(index.requests) == asked
    wait_until((folder / "compiled").exists, "the end of the work in the background")
    kept = {folder.name, f"{folder.name}.lock", "building", "building.busy"}
    wait_until(lambda: {path.name for path in folder.parent.iterdir()} == kept, "no other folder")
    assert [path.name for path in (folder.parent / "building").iterdir()] == ["cache"]
    wait_until(lambda: folder.stat().st_mode & 0o222 == 0, "it to be sealed again: jobs share it")
    assert (site_packages(folder) / "tiny.py").stat().st_mode & 0o222 == 0


def test_no_project_has_the_environments_and_downloads_of_another(index, cache, attempt):
    index.add_wheel("tiny")
    first, _ = use(cache, attempt(), "tiny")
    asked = len(index.requests)
    second, made = use(cache, attempt("j2-1"), "tiny", project="pr2")
    assert made
    assert first.name == second.name
    assert first.parent != second.parent
    assert len(index.requests) > asked


def test_bytecode_is_written_once_for_each_wheel_while_jobs_run(index, cache, attempt, tmp_path):
    """No code of a wheel runs for it, though its `.pth` file would run whenever the environment's Python starts."""
    index.add_wheel("tiny", start=f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    index.add_wheel("more")
    first, _ = use(cache, attempt(), "tiny")
    wait_until((first / "compiled").exists, "the bytecode")
    (compiled,) = (site_packages(first) / "__pycache__").glob("tiny.*.pyc")
    assert not (tmp_path / "ran").exists()
    second, _ = use(cache, attempt("j2-1"), "tiny", "more")
    assert (site_packages(second) / "__pycache__" / compiled.name).exists(), "it is there at once"
    wait_until((second / "compiled").exists, "the bytecode of the other")
    assert len(list((site_packages(second) / "__pycache__").glob("*.pyc"))) == 2
    assert site_packages(second).stat().st_mode & 0o222 == 0
    assert cache.remove(second) is False, "it is in use"
    subprocess.run([first / "bin" / "python", "-c", ""], check=True)
    assert (tmp_path / "ran").exists(), "the wheel runs nothing, so this test could not fail"


def test_a_wheel_with_a_data_folder_is_installed_again_after_its_bytecode_was_written(index, cache, attempt):
    wheel = index.add_wheel("tiny")
    with zipfile.ZipFile(wheel) as made:
        files = {name: made.read(name).decode() for name in made.namelist()}
    with zipfile.ZipFile(wheel, "w") as moved:
        for name, text in files.items():
            moved.writestr(name.replace("tiny.py", DATA), text.replace("tiny.py", DATA))
    index.add_wheel("more")
    first, _ = use(cache, attempt(), "tiny")
    wait_until((first / "compiled").exists, "the bytecode")
    second, _ = use(cache, attempt("j2-1"), "tiny", "more")
    assert (site_packages(second) / "tiny.py").exists()


def test_a_change_of_a_copied_package_makes_another_environment(cache, attempt, tmp_path):
    digests = []
    for version in (1, 2):
        package = tmp_path / str(version) / "ours"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"VERSION = {version}\n")
        copied = wanted(project=None, copied=(package,))
        folder, _ = cache.use(copied, attempt(), progress())
        digests.append(folder.name)
        show = [folder / "bin" / "python", "-c", "import ours; print(ours.VERSION)"]
        assert subprocess.run(show, capture_output=True, text=True, check=True).stdout == f"{version}\n"
    assert digests[0] != digests[1]


def test_the_default_environment_is_never_removed(index, cache):
    index.add_wheel("default")
    default = wanted("default", project=None)
    folder, _ = cache.use(default, None, progress())
    age(folder, 1000)
    assert cache.evict(lambda _: 10**12, default) == 0
    assert folder.is_dir()
    assert cache.evict(lambda _: 0, BARE) == 1


def test_two_at_once_install_once(index, cache, attempt):
    index.add_wheel("tiny")
    index.opened.clear()
    told, results = [], []

    def run(name):
        results.append(use(cache, attempt(name), "tiny", report=lambda _, detail: told.append(detail)))

    def announced():
        return [sum(text in detail for detail in told) for text in ("only once", "another job is installing")]

    threads = [threading.Thread(target=run, args=(f"j{number}-1",)) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(announced()) == 2 and index.requests, "one to install and one to wait")
    index.opened.set()
    for thread in threads:
        thread.join()
    assert announced() == [1, 1]
    assert sorted(made for _, made in results) == [False, True]
    assert len({folder for folder, _ in results}) == 1


def test_a_stop_ends_the_installation_and_leaves_nothing(index, cache, attempt):
    index.add_wheel("tiny")
    index.opened.clear()

    def stop():
        if index.requests:
            raise LaunchError("stopped_by_user", "now")

    with pytest.raises(LaunchError, match="stopped_by_user"):
        use(cache, attempt(), "tiny", check=stop)
    assert half_made(cache) == environments(cache) == []


def test_a_layer_has_the_sdk_unless_the_job_installs_its_own(index, cache, attempt, tmp_path):
    index.add_wheel("tiny")
    folder, _ = use(cache, attempt(), "tiny")
    layer = create_layer(attempt("j2-1"), folder, Mock())

    def run(command):
        environment = {"PATH": os.defpath, "GRADIENT_METRICS_FILE": "metrics.jsonl"} | layer.environment()
        environment["PATH"] += f":{os.defpath}"
        return subprocess.check_output(["sh", "-ec", command], env=environment, cwd=tmp_path, text=True).strip()

    program = "import gradient_jobs as g; g.log(step=1, loss=0.5); g.Client('http://127.0.0.1:1'); print(g.__file__)"
    assert run(f'python -c "{program}"').startswith(f"{folder}/gradient_jobs-")
    assert '"loss": 0.5' in (tmp_path / "metrics.jsonl").read_text()
    assert "gradient" not in run("pip list")
    (site_packages(layer.folder) / "gradient_jobs.py").write_text("")
    assert run("python -c 'import gradient_jobs as g; print(g.__file__)'").endswith("gradient_jobs.py")


def test_the_names_of_a_layers_programs_are_no_files_of_their_own(cache, attempt):
    programs = create_layer(attempt("j2-1"), use(cache, attempt())[0], Mock()).folder / "bin"
    files = {path.name: path.lstat().st_ino for path in programs.iterdir()}
    assert {"python", "python3", "pip", "pip3"} < set(files)
    assert len(set(files.values())) == len({"python", "pip", "uv"})
    assert len(files) > len(set(files.values()))


def test_a_layer_is_writable_and_above_the_shared_packages(index, cache, attempt, tmp_path):
    index.add_wheel("tiny")
    folder, _ = use(cache, attempt(), "tiny")
    newer = index.add_wheel("tiny", "2.0")
    bare, _ = use(cache, attempt("j3-1"))
    for scratch, shared in (attempt("j2-1"), folder), (attempt("j3-1"), bare):
        layer = create_layer(scratch, shared, Mock())
        environment = {"PATH": os.defpath} | layer.environment()
        environment["PATH"] += f":{os.defpath}"

        def run(command, environment=environment):
            done = subprocess.run(
                ["sh", "-ec", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.split()

        if shared == folder:
            assert run("tiny") == ["1.0", str(layer.folder)], "programs of packages run in the layer"
        run(f"pip install --quiet --no-index '{newer}'")
        assert run("tiny; python3 -c 'import tiny; print(tiny.VERSION)'") == ["2.0", str(layer.folder), "2.0"]
    assert "VERSION = '1.0'" in (site_packages(folder) / "tiny.py").read_text()
    service = subprocess.run([sys.executable, "-c", "import tiny"], capture_output=True, check=False)
    assert service.returncode == 1


def test_unused_environments_go_and_used_ones_stay(index, cache, attempt):
    for name in ("old", "used", "fresh"):
        index.add_wheel(name)
    old, used, fresh = (use(cache, attempt(f"{name}-1"), name)[0] for name in ("old", "used", "fresh"))
    (attempt("old-1") / "environment").unlink()
    (attempt("fresh-1") / "environment").unlink()
    age(old, 31)
    age(used, 31)
    assert cache.evict(lambda _: 0, BARE) == 1
    assert environments(cache) == sorted([used.name, fresh.name])
    assert not old.with_suffix(".lock").exists()
    assert use(cache, attempt("old-1"), "old")[1], "it is installed again"


def test_over_the_limit_downloads_go_first_then_the_least_recently_used(index, cache, attempt):
    for name in ("first", "second", "third"):
        index.add_wheel(name)
    first, second, third = (use(cache, attempt(f"{name}-1"), name)[0] for name in ("first", "second", "third"))
    for folder, days in ((first, 3), (second, 2), (third, 1)):
        age(folder, days)
    (attempt("second-1") / "environment").unlink()
    (attempt("third-1") / "environment").unlink()
    for folder in (first, second, third):
        wait_until((folder / "compiled").exists, "the bytecode")
    wait_until(lambda: is_idle(first), "the end of the work in the background")
    over = 10**12
    sizes = iter([over, over, over, 0])
    assert cache.evict(lambda _: next(sizes), BARE) == 1
    assert environments(cache) == sorted([first.name, third.name]), "the first is in use"
    assert not list((first.parent / "building").iterdir())
    sizes = iter([over, 0])
    assert cache.evict(lambda _: next(sizes), BARE) == 0, "without the downloads, it fits"


def test_what_a_dead_worker_left_is_replaced(index, cache, attempt):
    index.add_wheel("tiny")
    (cache.root / PROJECT).mkdir(parents=True)
    lock = cache.folder_of(wanted("tiny")).with_suffix(".lock")
    lock.touch()
    (lock.parent / "building" / "new1" / "bin").mkdir(parents=True)
    folder, made = use(cache, attempt(), "tiny")
    assert made
    assert folder == lock.with_suffix("")
    assert half_made(cache) == []


def test_what_a_dead_worker_started_may_still_write(index, cache, attempt):
    index.add_wheel("tiny")
    lock = cache.folder_of(wanted("tiny")).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    lock.touch()
    left = lock.parent / "building" / "new1" / "bin"
    writes = f"i=0; while mkdir -p {left} && : >{left}/$i; do i=$((i+1)); done"
    with subprocess.Popen(["/bin/sh", "-c", f"{writes} 2>/dev/null"], start_new_session=True) as writer:
        try:
            wait_until(lambda: len(list(left.glob("*"))) > 100, "it to write")
            folder, _ = use(cache, attempt(), "tiny")
        finally:
            writer.kill()
    assert not [one for one in (folder / "bin").iterdir() if one.name.isdigit()]


def test_a_frozen_worker_holds_nobody_up(index, cache, attempt):
    index.add_wheel("tiny")
    folder = cache.folder_of(wanted("tiny"))
    folder.parent.mkdir(parents=True)
    with folder.with_suffix(".lock").open("w") as frozen, (folder.parent / "building.busy").open("w") as busy:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        fcntl.flock(busy, fcntl.LOCK_SH)
        half = folder.parent / "building" / "new1"
        half.mkdir(parents=True)
        os.utime(frozen.fileno(), (time.time() - 60,) * 2)
        assert use(cache, attempt(), "tiny")[1]
        wait_until((folder / "compiled").exists, "the end of the work in the background")
        cache.evict(lambda _: 0, BARE)
        assert half.exists(), "the frozen worker may wake"
    wait_until(lambda: is_idle(folder), "the end of the work in the background")
    cache.evict(lambda _: 0, BARE)
    assert not half.exists()


def test_of_two_that_install_the_same_the_first_counts(index, cache, attempt):
    index.add_wheel("tiny")
    first = cache.folder_of(wanted("tiny")) / "bin"

    def finish_elsewhere():
        if index.requests:
            first.mkdir(parents=True, exist_ok=True)

    folder, _ = use(cache, attempt(), "tiny", check=finish_elsewhere)
    assert list(folder.iterdir()) == [first]
    assert half_made(cache) == []


def test_a_full_disk_ends_the_installation(index, tmp_path, attempt):
    index.add_wheel("tiny")
    cache = EnvironmentCache(Settings(home=tmp_path / "home", disk={"min_free_mb": 10**9}))
    with pytest.raises(LaunchError, match="disk_full"):
        use(cache, attempt(), "tiny")
