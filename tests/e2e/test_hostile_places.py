"""Jobs and builds that plant links, pipes, sockets, holes and closed folders wherever they can write.

They find those places by walking all that they see, and put names in one another's place without a pause, while the
service starts, copies, lists, ends, measures, prunes, evicts, deletes, restarts, is backed up and restored. What lies
outside stays as it is, nothing of it is read, and other people's jobs end as they should.
"""

import hashlib
import os
import re
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from support.backups import back_up_while_jobs_run, restore
from support.deployment import ORDINARY, Deployment, wait_until
from support.servers.package_index import PackageIndex

SECRET = "canary-of-the-host"
ATTACK = """
import os, random, socket, stat, sys, time
from pathlib import Path

KEPT = "attack.py evil.py pyproject.toml log".split()  # the log tells that all was planted
KINDS = "link_in link_file fifo socket sparse closed deep rename file".split()


def writable():
    places = []
    for top, folders, _ in os.walk("/"):
        folders[:] = [name for name in folders if (top, name) not in {("/", "proc"), ("/", "sys"), ("/", "dev")}]
        if os.access(top, os.W_OK) and not os.path.islink(top):
            places.append(top)
    return places


def plant(folder, targets):
    kind, number = random.choice(KINDS), random.randrange(1000)
    path = Path(folder, f"{kind}-{number}")
    if kind == "rename":
        names = [name for name in os.listdir(folder) if name not in KEPT]
        if names:
            name = random.choice(names)
            aside = Path(folder, f"aside-{number}")
            Path(folder, name).rename(aside)
            Path(folder, name).symlink_to(random.choice(targets))
    elif kind == "link_in":
        path.symlink_to(random.choice(targets))
    elif kind == "link_file":
        path.symlink_to(os.path.join(random.choice(targets), "secret"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "sparse":
        with open(path, "wb") as sparse:
            sparse.truncate(1 << 40)
    elif kind == "closed":
        path.mkdir()
        (path / "inner").mkdir()
        path.chmod(0)
    elif kind == "deep":
        os.makedirs(path.joinpath(*["d"] * 90))
    else:
        path.write_text("x" * 100)


def attack(targets, count):
    places, made = writable(), 0
    print("places", len(places), flush=True)
    while made < count:
        for folder in random.sample(places, min(10, len(places))):
            try:
                plant(folder, targets)
                made += 1
            except OSError:
                pass
        time.sleep(0.005)
    print("planted", count, flush=True)


if __name__ == "__main__":
    attack(sys.argv[2:], int(sys.argv[1]))
"""
BACKEND = """
import sys
from attack import attack
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    attack({targets!r}, {count})
    sys.exit(1)
build_editable = build_wheel
"""
PROJECT = (
    '[project]\nname = "evil"\nversion = "1"\n'
    '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
)
PLANTED = 200
SPOILT = "Could not acquire lock|Failed to initialize cache"
"""Errors of a build that was started again with its worker, after it had planted something in its own downloads."""
INSIDE = [
    pytest.param((), id="worker-as-it-is"),
    pytest.param(ORDINARY, id="worker-of-another-user"),
]


@pytest.fixture
def index(tmp_path, monkeypatch):
    served = PackageIndex(tmp_path / "index")
    monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
    served.add_wheel("tiny")
    served.add_wheel("other")
    yield served
    served.close()


def state(folder: Path) -> dict[str, object]:
    """Return owners, permissions, times and content of a tree."""
    found: dict[str, object] = {}
    for top, _, files in os.walk(folder):
        status = os.lstat(top)
        found[top] = status.st_uid, status.st_mode, status.st_mtime_ns
        for name in files:
            path = Path(top, name)
            status = path.lstat()
            found[str(path)] = status.st_uid, status.st_mode, hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def canaries(home: Path) -> list[Path]:
    """Make trees that nobody but the service's user, or root, may change: beside the home, and in it."""
    trees = [home.parent / "outside", home / "artifacts" / "can" / "canary", home / "workspaces" / "canary"]
    for tree in trees:
        (tree / "inner" / "deep").mkdir(parents=True)
        for folder in (tree, tree / "inner", tree / "inner" / "deep"):
            (folder / "secret").write_text(SECRET)
            (folder / "secret").chmod(0o600)
    return trees


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("inside", INSIDE)
def test_nothing_that_others_plant_leads_the_service_anywhere(tmp_path, inside):
    deployment = Deployment(tmp_path / "home", GRADIENT_PROCESS__SANDBOX="require")
    (tmp_path / "home").mkdir(mode=0o700)
    trees = canaries(tmp_path / "home")
    try:
        run_attacks(deployment, trees, inside)
    finally:
        deployment.stop()


def run_attacks(deployment: Deployment, trees: list[Path], inside: tuple[str, ...]) -> None:
    before = {tree: state(tree) for tree in trees}
    backup = deployment.home.parent / "backup"
    timers = {
        "GRADIENT_WORKER__SLOTS": "6",
        "GRADIENT_WORKER__SWEEP_SECONDS": "0.5",
        "GRADIENT_ENVIRONMENTS__MAX_MB": "1",
        "GRADIENT_WORKER__LEASE_SECONDS": "2",
    }
    api, worker = deployment.start_api(), deployment.start_worker(inside=inside, **timers)
    targets = [*map(str, trees), str(deployment.home), "/root", "/etc"]
    command = f"python attack.py {PLANTED} {' '.join(targets)}"
    backend = BACKEND.format(targets=targets, count=PLANTED)
    build = {"attack.py": ATTACK, "pyproject.toml": PROJECT, "evil.py": backend}
    hostile = [
        deployment.submit(command, files={"attack.py": ATTACK}, maxAttempts=2),
        deployment.submit(f"{command}; kill -9 $$", files={"attack.py": ATTACK}, maxAttempts=2),
        deployment.submit("python -c 'pass'", files=build, project="built"),
        deployment.submit("python -c 'pass'", files={**build, "requirements.txt": "."}, project="listed"),
        deployment.submit(command, files={"attack.py": ATTACK}, array="0-2", outputs=["**"]),
    ]
    honest = []
    while len(honest) < 3 or not all(is_over(deployment, job) for job in hostile):
        honest.append(submit_honest(deployment, ("tiny", "other")[len(honest) % 2]))
        operate(deployment, hostile)
        back_up_while_jobs_run(deployment, backup)
        if len(honest) == 2:
            for process in (worker, api):
                process.kill()
            api, worker = deployment.start_api(), deployment.start_worker(inside=inside, **timers)
    for job in hostile[:4]:
        assert re.search(f"planted {PLANTED}|{SPOILT}", deployment.raw_log(job).decode()), deployment.job(job)
    assert {deployment.job(job)["reason"] for job in hostile[2:4]} == {"requirements_install"}
    for job in honest:
        ended = deployment.wait_ended(job)
        assert ended["exitCode"] == 0, (ended, deployment.raw_log(job))
        assert deployment.artifact(job, "made") == b"1"
    for job in hostile:
        answer = deployment.request("GET", f"/jobs/{job}/artifacts")
        for file in answer.json().get("files", []):
            assert SECRET.encode() not in deployment.artifact(job, quote(file["path"]))
        assert deployment.request("DELETE", f"/jobs/{job}").status_code < 300
    wait_until(lambda: not deployment.scratch(), "all folders of attempts to be removed")
    assert {tree: state(tree) for tree in trees} == before
    assert not re.search(f"Traceback|{SECRET}", worker.read_log())
    check_restored(restore(backup, deployment.home.parent / "restored"))
    left = {path.name for path in (deployment.home / "environments").glob("*/building/*")}
    assert left <= {"cache"}


def check_restored(restored: Deployment) -> None:
    """Check that nothing of the host has come into a backup, and that the service works on what it has."""
    for top, _, files in os.walk(restored.home):
        for path in (Path(top, name) for name in files):
            is_file = stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < 1 << 20  # no hole of a terabyte
            if is_file and "canary" not in path.parts:
                assert SECRET.encode() not in path.read_bytes(), path
    operate(restored, [])


def submit_honest(deployment: Deployment, package: str) -> str:
    program = f"import {package}\nopen('/artifacts/made', 'w').write('1')\n"
    files = {"requirements.txt": f"{package}\n", "main.py": program}
    return deployment.submit("python main.py", files=files, project="honest")


def operate(deployment: Deployment, hostile: list[str]) -> None:
    """Do what people and administrators do meanwhile."""
    for job in hostile:
        for path in (f"/jobs/{job}", f"/jobs/{job}/artifacts", f"/jobs/{job}/logs/raw", f"/jobs/{job}/metrics"):
            answer = deployment.request("GET", path)
            assert answer.status_code < 500, (path, answer.text)
            assert SECRET not in answer.text
    for words in (("prune", "--environments"), ("disk",), ("doctor",)):
        operation = deployment.start(*words)
        operation.wait()
        assert not re.search(f"Traceback|{SECRET}", operation.read_log())


def is_over(deployment: Deployment, job: str) -> bool:
    return deployment.job(job)["state"] in {"Stopped", "Failed", "Error", "Cancelled"}
