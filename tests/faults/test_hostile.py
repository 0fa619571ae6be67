"""Hostile jobs and uploads, each through the whole service; what they try in detail is tested beside each store."""

import io
import json
import stat
import tarfile
import time
import zipfile

import pytest
from support.faults.control_folder_attacks import SECRET, run_control_folder_attacks
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 240)]

REFUSAL_SECONDS = 10.0
"""Time limit for an answer on a machine that is busy with other tests."""


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
    with fault_trial("F25", deployment, seconds=600) as one:
        job_id = deployment.submit(recorded_command(hostile))
        neighbour = deployment.submit(recorded_command("leave model weights; say done"))
        deployment.wait_ended(job_id, 600)
        one.mark_lifted()
        assert deployment.wait_ended(neighbour)["artifactsState"] == "complete"
        listed = deployment.artifacts(job_id)
        assert {file["path"] for file in listed["files"]} == {"good", "real/inner"}
        assert {"link", "folder", "hard", "fifo", "dangling"} <= {skipped["path"] for skipped in listed["skipped"]}
    kept = [path for path in (deployment.home / "artifacts").rglob("*") if not path.is_dir()]
    assert not [path for path in kept if path.is_symlink() or SECRET in path.read_text(errors="replace")]


def test_jobs_that_fight_their_control_folder_harm_only_themselves(deployment):
    deployment.start_api()
    run_control_folder_attacks(deployment, deployment.start_worker(GRADIENT_WORKER__SLOTS="4"), recorded_command)


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
    with fault_trial("F27", deployment) as one:
        spec = json.dumps({"machineType": "CPU", "command": "true"})
        hostile = hostile_workspaces()
        one.tries = len(hostile)
        for name, archive in hostile.items():
            began = time.monotonic()
            files = {"spec": (None, spec, "application/json"), "workspace": ("w", archive, "application/octet-stream")}
            answer = deployment.request("POST", "/jobs", files=files)
            assert answer.status_code in {400, 413, 422}, f"{name}: {answer.status_code} {answer.text}"
            assert time.monotonic() - began < REFUSAL_SECONDS, name
        one.mark_lifted()
        deployment.submit(recorded_command())
    assert [path for path in (deployment.home / "workspaces").rglob("*") if path.is_file()] == []
    assert not list(deployment.home.parent.rglob("escaped"))
