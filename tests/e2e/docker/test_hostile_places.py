"""Containers that plant links and worse wherever they can write, while the service works on their folders."""

import os
import re
from pathlib import Path

import pytest
from support.backups import back_up_while_jobs_run
from support.deployment import Deployment, wait_until
from support.servers.private_docker_engine import SHELL_IMAGE

SECRET = "canary-of-the-host"
ROUNDS = 25
ATTACK = r"""
round=0
while [ "$round" -lt ROUNDS ]; do
    round=$((round + 1))
    for folder in /paperspace /artifacts /storage /tmp "$HOME"; do
        cd "$folder" 2>/dev/null || continue
        for target in TARGETS; do
            ln -sfn "$target" "link-$round" && ln -sf "$target/secret" "file-$round"
        done
        mkfifo "fifo-$round"; mkdir -p "closed-$round/inner" && chmod 0 "closed-$round"
        truncate -s 1T "sparse-$round"
        for name in $(ls | head -3); do
            mv "$name" "aside-$round-$name" && ln -s "$(echo TARGETS | cut -d ' ' -f 1)" "$name"
        done
    done 2>/dev/null
done
echo planted
"""


def state(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for top, _, files in os.walk(folder):
        for path in (Path(top), *(Path(top, name) for name in files)):
            status = path.lstat()
            found[str(path)] = status.st_uid, status.st_mode, status.st_mtime_ns, path.is_file() and path.read_bytes()
    return found


@pytest.fixture
def service(docker_server, tmp_path):
    deployment = Deployment(tmp_path / "home", **docker_server.service_settings, GRADIENT_WORKER__SWEEP_SECONDS="1")
    yield deployment
    deployment.stop()


def test_nothing_that_a_container_plants_leads_the_service_anywhere(service, tmp_path):
    outside, inside = tmp_path / "outside", service.home / "artifacts" / "can" / "canary"
    for tree in (outside, inside):
        (tree / "inner").mkdir(parents=True)
        for folder in (tree, tree / "inner"):
            (folder / "secret").write_text(SECRET)
            (folder / "secret").chmod(0o600)
    before = {tree: state(tree) for tree in (outside, inside)}
    api, worker = service.start_api(), service.start_worker()
    script = ATTACK.replace("TARGETS", f"{outside} {inside} {service.home} /root").replace("ROUNDS", str(ROUNDS))
    hostile = [service.submit(script, container=SHELL_IMAGE, outputs=["**"], files={"a": "a"}) for _ in range(2)]
    retried = service.submit(f"{script}\nkill -9 $$", container=SHELL_IMAGE, maxAttempts=2)
    honest = [service.submit("echo 1 >/artifacts/made", container=SHELL_IMAGE, project="honest") for _ in range(2)]
    wait_until(lambda: service.job(retried)["state"] == "Running", "all to plant")
    back_up_while_jobs_run(service, tmp_path / "backup")
    for process in (worker, api):
        process.kill()
    service.start_api()
    worker = service.start_worker()
    for job in (*hostile, retried):
        service.wait_ended(job)
        assert b"planted" in service.raw_log(job)
        for file in service.artifacts(job)["files"]:
            assert not file["path"].startswith("inner/")
            assert file["size"] != len(SECRET)
    for job in honest:
        assert service.wait_ended(job)["exitCode"] == 0
        assert service.artifact(job, "made") == b"1\n"
    for words in (("prune",), ("disk",), ("doctor",)):
        operation = service.start(*words)
        operation.wait()
        assert not re.search(f"Traceback|{SECRET}", operation.read_log())
    for job in (*hostile, retried):
        assert service.request("DELETE", f"/jobs/{job}").status_code < 300
    wait_until(lambda: service.scratch() == [], "their folders to go")
    assert {tree: state(tree) for tree in (outside, inside)} == before
    assert not re.search(f"Traceback|{SECRET}", worker.read_log())
