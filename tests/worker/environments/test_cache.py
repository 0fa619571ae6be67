"""Shared environments, installed by the real uv from an index on this machine."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.deployment import wait_until

from core.settings import Settings
from worker.backends.base import LaunchError
from worker.environments.cache import EnvironmentCache, Wanted, site_packages
from worker.environments.installer import UvError, explain
from worker.environments.job_layer import create_layer

pytestmark = pytest.mark.integration

DAY = 24 * 3600
PYTHON = Path(sys.executable).resolve()
BARE = Wanted(PYTHON, ())


@pytest.fixture
def attempt(tmp_path):
    """Make the scratch folder of an attempt."""

    def make(name="j1-1"):
        folder = tmp_path / "home" / "attempts" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return make


def use(cache, scratch, *lines, announce=lambda _: None, check=lambda: None):
    return cache.use(Wanted(PYTHON, lines), scratch, announce, lambda _: None, check)


def environments(cache):
    return sorted(one.name for one in cache.root.iterdir() if len(one.name) == 32)


def age(cache, digest, days):
    then = time.time() - days * DAY
    os.utime(cache.root / f"{digest}.lock", (then, then))


def test_requirements_are_installed_once_and_nothing_is_left_beside(index, cache, attempt):
    index.add_wheel("tiny", requires=("other",))
    index.add_wheel("other")
    folder, made = use(cache, attempt(), "tiny")
    assert made
    assert {"tiny.py", "other.py", "pip"} <= {one.name for one in site_packages(folder).iterdir()}
    asked = len(index.requests)
    assert use(cache, attempt("j2-1"), "tiny") == (folder, False)
    assert len(index.requests) == asked
    assert sorted(one.name for one in cache.root.glob("*.*")) == [f"{folder.name}.lock"]
    assert folder.stat().st_mode & 0o222 == 0, "jobs share it"
    assert (site_packages(folder) / "tiny.py").stat().st_mode & 0o222 == 0


def test_no_code_of_a_wheel_runs_while_it_is_installed(index, cache, attempt, tmp_path):
    index.add_wheel("tiny", start=f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    folder, _ = use(cache, attempt(), "tiny")
    assert not (tmp_path / "ran").exists()
    assert list((site_packages(folder) / "__pycache__").glob("tiny.*.pyc")), "the sandbox of a job cannot store it"
    subprocess.run([folder / "bin" / "python", "-c", ""], check=True)
    assert (tmp_path / "ran").exists(), "the wheel runs nothing, so this test could not fail"


def test_a_copied_package_is_compiled_and_a_change_of_it_makes_another_environment(cache, attempt, tmp_path):
    digests = []
    for version in (1, 2):
        package = tmp_path / str(version) / "ours"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"VERSION = {version}\n")
        wanted = Wanted(PYTHON, (), copied=(package,))
        folder, _ = cache.use(wanted, attempt(), lambda _: None, lambda _: None, lambda: None)
        digests.append(folder.name)
        show = [folder / "bin" / "python", "-c", "import ours; print(ours.VERSION)"]
        assert subprocess.run(show, capture_output=True, text=True, check=True).stdout == f"{version}\n"
        assert list((site_packages(folder) / "ours" / "__pycache__").iterdir())
    assert digests[0] != digests[1]


def test_the_default_environment_is_never_removed(index, cache):
    index.add_wheel("default")
    wanted = Wanted(PYTHON, ("default",))
    folder, _ = cache.use(wanted, None, lambda _: None, lambda _: None, lambda: None)
    age(cache, folder.name, 1000)
    assert cache.evict(lambda _: 10**12, wanted) == 0
    assert folder.is_dir()
    assert cache.evict(lambda _: 0, BARE) == 1


def test_two_at_once_install_once(index, cache, attempt):
    index.add_wheel("tiny")
    index.opened.clear()
    announced, results = [], []

    def run(name):
        results.append(use(cache, attempt(name), "tiny", announce=announced.append))

    threads = [threading.Thread(target=run, args=(f"j{number}-1",)) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(announced) == 2 and index.requests, "one to install and one to wait")
    index.opened.set()
    for thread in threads:
        thread.join()
    assert sorted(announced) == [False, True]
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
    assert list(cache.root.glob("*.new")) == environments(cache) == []


def test_a_package_that_has_to_be_built_runs_no_code_and_says_the_way_out(index, cache, attempt):
    index.add_source("built")
    with pytest.raises(UvError) as failed:
        use(cache, attempt(), "built")
    assert "GRADIENT_ENVIRONMENTS__BUILDS" in explain(failed.value)
    assert "pip install" in explain(failed.value)


def test_a_layer_has_the_sdk_unless_the_job_installs_its_own(index, cache, attempt, tmp_path):
    index.add_wheel("tiny")
    folder, _ = use(cache, attempt(), "tiny")
    layer = create_layer(attempt("j2-1"), folder)

    def run(command):
        environment = {"PATH": os.defpath, "GRADIENT_METRICS_FILE": "metrics.jsonl"} | layer.environment()
        environment["PATH"] += f":{os.defpath}"
        return subprocess.check_output(["sh", "-ec", command], env=environment, cwd=tmp_path, text=True).strip()

    program = "import gradient_jobs as g; g.log(step=1, loss=0.5); g.Client('http://127.0.0.1:1'); print(g.__file__)"
    assert run(f'python -c "{program}"').startswith(f"{layer.folder}/lib/")
    assert '"loss": 0.5' in (tmp_path / "metrics.jsonl").read_text()
    assert "gradient" not in run("pip list")
    (site_packages(layer.folder) / "gradient_jobs.py").write_text("")
    assert run("python -c 'import gradient_jobs as g; print(g.__file__)'").endswith("gradient_jobs.py")


def test_a_layer_is_writable_and_above_the_shared_packages(index, cache, attempt, tmp_path):
    index.add_wheel("tiny")
    folder, _ = use(cache, attempt(), "tiny")
    newer = index.add_wheel("tiny", "2.0")
    bare, _ = use(cache, attempt("j3-1"))
    for scratch, shared in (attempt("j2-1"), folder), (attempt("j3-1"), bare):
        layer = create_layer(scratch, shared)
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
    old, used, fresh = (use(cache, attempt(f"{name}-1"), name)[0].name for name in ("old", "used", "fresh"))
    (attempt("old-1") / "environment").unlink()
    (attempt("fresh-1") / "environment").unlink()
    age(cache, old, 31)
    age(cache, used, 31)
    assert cache.evict(lambda _: 0, BARE) == 1
    assert environments(cache) == sorted([used, fresh])
    assert not (cache.root / f"{old}.lock").exists()
    assert use(cache, attempt("old-1"), "old")[1], "it is installed again"


def test_over_the_limit_downloads_go_first_then_the_least_recently_used(index, cache, attempt):
    for name in ("first", "second", "third"):
        index.add_wheel(name)
    first, second, third = (use(cache, attempt(f"{name}-1"), name)[0].name for name in ("first", "second", "third"))
    for name, days in ((first, 3), (second, 2), (third, 1)):
        age(cache, name, days)
    (attempt("second-1") / "environment").unlink()
    (attempt("third-1") / "environment").unlink()
    over = 10**12
    sizes = iter([over, over, over, 0])
    assert cache.evict(lambda _: next(sizes), BARE) == 1
    assert environments(cache) == sorted([first, third]), "the first is in use"
    assert not any(path.suffix == ".whl" for path in cache.installer.cache.rglob("*"))
    sizes = iter([over, 0])
    assert cache.evict(lambda _: next(sizes), BARE) == 0, "without the downloads, it fits"


def test_what_a_dead_worker_left_is_replaced(index, cache, attempt):
    index.add_wheel("tiny")
    digest = Wanted(PYTHON, ("tiny",)).digest
    lock = cache.root / f"{digest}.lock"
    cache.root.mkdir(parents=True)
    lock.touch()
    (cache.root / f"{digest}.{lock.stat().st_ino}.new" / "bin").mkdir(parents=True)
    folder, made = use(cache, attempt(), "tiny")
    assert made
    assert folder.name == digest
    assert list(cache.root.glob("*.new")) == []


def test_a_frozen_worker_holds_nobody_up(index, cache, attempt):
    index.add_wheel("tiny")
    digest = Wanted(PYTHON, ("tiny",)).digest
    cache.root.mkdir(parents=True)
    with (cache.root / f"{digest}.lock").open("w") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        half = cache.root / f"{digest}.{os.fstat(frozen.fileno()).st_ino}.new"
        half.mkdir()
        os.utime(frozen.fileno(), (time.time() - 60,) * 2)
        assert use(cache, attempt(), "tiny")[1]
        assert half.exists(), "the frozen worker may wake"
    os.utime(half, (0, 0))
    cache.evict(lambda _: 0, BARE)
    assert not half.exists()


def test_of_two_that_install_the_same_the_first_counts(index, cache, attempt):
    index.add_wheel("tiny")
    first = cache.root / Wanted(PYTHON, ("tiny",)).digest / "bin"

    def finish_elsewhere():
        if index.requests:
            first.mkdir(parents=True, exist_ok=True)

    folder, _ = use(cache, attempt(), "tiny", check=finish_elsewhere)
    assert list(folder.iterdir()) == [first]
    assert list(cache.root.glob("*.new")) == []


def test_a_full_disk_ends_the_installation(index, tmp_path, attempt):
    index.add_wheel("tiny")
    cache = EnvironmentCache(Settings(home=tmp_path / "home", disk={"min_free_mb": 10**9}))
    with pytest.raises(LaunchError, match="disk_full"):
        use(cache, attempt(), "tiny")


def test_an_index_that_a_job_names_cannot_link_to_files_of_this_machine(index, cache, attempt, monkeypatch, tmp_path):
    index.add_wheel("tiny")
    naming = (f"--index-url {index.url}", "tiny")
    assert use(cache, attempt(), *naming)[1], "an index may have its own files"
    wheel = index.add_wheel("other").rename(tmp_path / "other-1.0-py3-none-any.whl")
    link = f'<!DOCTYPE html><html><body><a href="{wheel.as_uri()}">{wheel.name}</a></body></html>'
    monkeypatch.setattr(index, "respond", lambda _: link.encode())
    for _ in range(2):  # the second time from uv's cache
        with pytest.raises(UvError, match="file of the worker's machine") as refused:
            use(cache, attempt(), *naming[:1], "other")
        assert "other-1.0 is a file of the worker's machine" in explain(refused.value)
    assert len(environments(cache)) == 1
    assert use(cache, attempt(), "other")[1], "an administrator's index may have files"


def test_a_wheel_that_a_job_names_cannot_require_files_of_this_machine(index, cache, attempt, tmp_path):
    secret = index.add_wheel("other").rename(tmp_path / "other-1.0-py3-none-any.whl")
    wheel = index.add_wheel("tiny", requires=(f"other @ {secret.as_uri()}",))
    with pytest.raises(UvError, match="file of the worker's machine"):
        use(cache, attempt(), f"tiny @ {index.url.removesuffix('/simple')}/files/{wheel.name}")
