"""Hostile jobs and uploads, each through the whole service; what they try in detail is tested beside each store."""

import io
import json
import stat
import tarfile
import time
import zipfile

import pytest
from deployment import wait_until
from faults.table import FULL, trial, tries
from faults.truth import recorded

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL else 240)]

SECRET = "nobody may read this"
REFUSAL_SECONDS = 10.0
"""For an answer on a machine that is busy with other tests."""


def test_artifacts_that_lead_elsewhere_are_named_and_not_read(deployment):
    secret = deployment.home.parent / "secret"
    secret.mkdir()
    (secret / "inner").write_text(SECRET)
    swaps = tries(300, 10_000)
    hostile = f"""
cd "$GRADIENT_ARTIFACTS_DIR"
ln -s {secret}/inner link; ln -s {secret} folder; ln {secret}/inner hard; mkfifo fifo; ln -s nowhere dangling
mkdir real; echo good >real/inner
i=0; while [ $i -lt {swaps} ]; do i=$((i+1)); mv real away; ln -s {secret} real; rm real; mv away real; done
leave good kept; say done
"""
    deployment.start_up(GRADIENT_WORKER__SYNC_SECONDS="0.05")
    with trial("F25", deployment, seconds=600) as one:
        job_id = deployment.submit(recorded(hostile))
        neighbour = deployment.submit(recorded("leave model weights; say done"))
        deployment.wait_ended(job_id, 600)
        one.lifted()
        assert deployment.wait_ended(neighbour)["artifactsState"] == "complete"
        listed = deployment.artifacts(job_id)
        assert {file["path"] for file in listed["files"]} == {"good", "real/inner"}
        assert {"link", "folder", "hard", "fifo", "dangling"} <= {skipped["path"] for skipped in listed["skipped"]}
    kept = [path for path in (deployment.home / "artifacts").rglob("*") if not path.is_dir()]
    assert not [path for path in kept if path.is_symlink() or SECRET in path.read_text(errors="replace")]


# What a job does to the folder that its wrapper and its worker talk through, and how it is then shown.
CONTROL = {
    "exit is a link": 'rm -f "$control/exit"; ln -s "$GRADIENT_STORAGE_DIR/precious" "$control/exit"; say done',
    "exit is a fifo": 'rm -f "$control/exit"; mkfifo "$control/exit"; say done; kill -9 $PPID',
    "exit is huge": 'truncate -s 10G "$control/exit"; say done; kill -9 $PPID',
    "exit lies": 'echo 0 >"$control/exit"; say done',
    "log is gone": 'say done; rm "$control/log"; sleep 0.2',
    "log is a link": 'say done; rm "$control/log"; ln -s "$GRADIENT_STORAGE_DIR/precious" "$control/log"; sleep 0.2',
    "metrics are a fifo": 'rm -f "$GRADIENT_METRICS_FILE"; mkfifo "$GRADIENT_METRICS_FILE"; say done',
    "started is a lie": 'echo 1 >"$control/started"; say done',
    "all is gone": 'say done; rm -rf "$control"',
}


def test_jobs_that_fight_their_control_folder_harm_only_themselves(deployment):
    deployment.start_api()
    worker = deployment.start_worker(GRADIENT_WORKER__SLOTS="4")
    with trial("F26", deployment, judged=False) as one:
        one.tries = len(CONTROL)
        precious = deployment.home / "storage" / "precious"
        precious.parent.mkdir(exist_ok=True)
        precious.write_text(SECRET)
        begin = 'control=$(dirname "$GRADIENT_METRICS_FILE"); '
        jobs = {how: deployment.submit(recorded(begin + what, 3)) for how, what in CONTROL.items()}
        neighbours = [deployment.submit(recorded("say done; leave model weights", 5)) for _ in CONTROL]
        for job_id in (*jobs.values(), *neighbours):
            deployment.wait_ended(job_id)
        one.lifted()
        for job_id in neighbours:
            job = deployment.job(job_id)
            assert (job["exitCode"], job["artifactsState"]) == (5, "complete")
            assert deployment.raw_log(job_id) == b"done\n"
        for job_id in jobs.values():
            assert SECRET.encode() not in deployment.raw_log(job_id)
        assert precious.read_text() == SECRET, "nobody followed a link and wrote"
        wait_until(lambda: not deployment.running() and not deployment.scratch(), "nothing to be left")
    assert worker.alive()


def a_zip(name, content=b"x", mode=0o644, count=1):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            entry = zipfile.ZipInfo(name if count == 1 else f"{name}{number}")
            entry.external_attr = mode << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def a_tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, kind, target in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry, io.BytesIO())
    return out.getvalue()


def hostile_workspaces():
    honest = a_zip("main.py", b"print(1)")
    return {
        "slip": a_zip("../escaped"),
        "absolute": a_zip("/tmp/escaped"),
        "link": a_zip("link", b"/etc/passwd", stat.S_IFLNK | 0o777),
        "chain": a_tar(("a", tarfile.SYMTYPE, ".."), ("a/escaped", tarfile.REGTYPE, "")),
        "device": a_tar(("zero", tarfile.CHRTYPE, "")),
        "bomb": a_zip("zeros", bytes(tries(64, 1024) * 1024**2)),
        "entries": a_zip("f", b"", count=tries(101_000, 1_000_000)),
        "torn": honest[: len(honest) // 2],
    }


def test_hostile_workspaces_are_refused_and_leave_nothing(deployment):
    deployment.start_up()
    with trial("F27", deployment) as one:
        spec = json.dumps({"machineType": "CPU", "command": "true"})
        hostile = hostile_workspaces()
        one.tries = len(hostile)
        for name, archive in hostile.items():
            began = time.monotonic()
            files = {"spec": (None, spec, "application/json"), "workspace": ("w", archive, "application/octet-stream")}
            answer = deployment.request("POST", "/jobs", files=files)
            assert answer.status_code in {400, 413, 422}, f"{name}: {answer.status_code} {answer.text}"
            assert time.monotonic() - began < REFUSAL_SECONDS, name
        one.lifted()
        deployment.submit(recorded())
    assert [path for path in (deployment.home / "workspaces").rglob("*") if path.is_file()] == []
    assert not list(deployment.home.parent.rglob("escaped"))
