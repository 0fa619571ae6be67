"""The options of a job: one list for the service, and one line for each in the client."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.live_service import LiveServer

from core.jobs.spec.job_spec import JobSpec
from core.settings.cloud import TpuSettings
from gradient_cli.workspace import job_spec as flags
from service.main import create_app
from service.schemas.jobs import JobView, ResolvedJob, SubmitJob

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "service", "client")
RECIPE = {
    "core/jobs/spec/job_spec.py": ("    code_commit:", '    toy_level: Annotated[int | None, "a toy"] = None\n'),
    "client/gradient_cli/workspace/job_spec.py": ('    "cpus":', '    "toyLevel": (_integer, "N", "a toy"),\n'),
}
"""The line that the recipe in docs/code.md adds to each file, and the line that it goes before."""
_NO_SIGNAL = "is not a signal for jobs. Use TERM, INT, HUP, QUIT, USR1, USR2."
JOURNEY = """
import argparse, json, sys
from fastapi.testclient import TestClient
from core.db.database import Database
from core.jobs.scheduling import claims
from core.security import api_keys
from core.settings import Settings
from gradient_cli.workspace import job_spec as flags
from service.main import create_app

parser = argparse.ArgumentParser()
flags.add_options(parser)
line = ["--machineType", "CPU", "--command", "true", "--workspace", "none"]
filed, *_ = flags.resolve(parser.parse_args(line))
asked, workspace, _ = flags.resolve(parser.parse_args([*line, "--toyLevel", "7"]))
settings = Settings(home=sys.argv[1])
database = Database(settings.database_url)
with database.write() as session:
    secret = api_keys.create(session, "tests")[1]
with TestClient(
    create_app(settings, database=database, wake=lambda: None), "http://127.0.0.1", headers={"x-api-key": secret}
) as client:
    made = client.post("/jobs", json=asked | {"workspace": workspace}).raise_for_status().json()
    shown = client.get(f"/jobs/{made['id']}").json()
    refused = client.post("/jobs", json=asked | {"toyLevel": "seven"}).status_code
with database.write() as session:
    launched = claims.claim(session, claims.WorkerOffer("w", "h", ("process",))).spec
print(json.dumps([filed["toyLevel"], made["toyLevel"], shown["toyLevel"], launched.toy_level, refused]))
"""


def test_the_client_has_a_flag_for_every_option():
    named = {flags.SENT_AS.get(name, name) for name in [*flags.FIELDS, *flags.FLAGS]}
    of_the_service = {field.alias for field in SubmitJob.model_fields.values()}
    assert named | {
        "workspace",
        "envVars",
        "tags",
        "ports",
        "outputs",
        "dataDisks",
        "slurmOptions",
        "packages",
        "extras",
        "groups",
        "after",
        "inputs",
        "notify",
        "metricPatterns",
        "params",
        "registryPassword",
    } == of_the_service - {"workspaceSha256", "codeCommit", "codeBranch", "codeDirty", "codeDescribe"}


def test_every_option_is_in_requests_and_responses():
    for model in (SubmitJob, JobView, ResolvedJob):
        own = {"workspace_contents"} if model is SubmitJob else set()  # which the service computes
        assert set(JobSpec.__slots__) - own == model.model_fields.keys() & set(JobSpec.__slots__)
        assert model is not SubmitJob or all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize(
    ("machine_type", "capacity", "words"),
    [
        ("CPU", "spot", "CPU is not a TPU. Leave capacity out."),
        ("TPU", "cheap", "'cheap' is not a kind of capacity. Use standard, spot, flex-start, reserved."),
    ],
)
def test_a_capacity_that_a_machine_does_not_have_is_refused(client, machine_type, capacity, words):
    refused = client.post("/jobs", json={"machineType": machine_type, "command": "true", "capacity": capacity})
    error = refused.json()["error"]
    assert (refused.status_code, error["field"], error["message"]) == (400, "capacity", words)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"stopSignal": "KILL"}, "stopSignal", f"'KILL' {_NO_SIGNAL}"),
        ({"warnBefore": "5m:KILL"}, "warnBefore", f"'KILL' {_NO_SIGNAL}"),
        ({"warnBefore": "5m:"}, "warnBefore", f"'' {_NO_SIGNAL}"),
        ({"warnBefore": "soon"}, "warnBefore", "'soon' is not TIME or TIME:SIGNAL, such as 300s or 5m:USR1."),
        ({"warnBefore": "0"}, "warnBefore", "'0' is out of range: 1 to 86,400 seconds."),
        ({"warnBefore": "1m", "timeLimit": 60}, "warnBefore", "'1m' is not shorter than the time limit of 1m."),
    ],
)  # fmt: skip
def test_a_signal_that_no_job_can_have_is_refused(client, options, field, message):
    refused = client.post("/jobs", json={"machineType": "CPU", "command": "true", **options})
    error = refused.json()["error"]
    assert (refused.status_code, error["field"], error["message"]) == (400, field, message)


@pytest.mark.parametrize("limit", [None, 604_801])
def test_flex_start_capacity_needs_a_time_limit_that_google_grants(client, limit):
    job = {"machineType": "TPU v6e", "command": "true", "capacity": "flex-start"}
    refused = client.post("/jobs", json=job | {"timeLimit": limit})
    words = "Flex-start capacity is available for a limited time. Set a time limit of at most 7 days (604,800 seconds)."
    error = refused.json()["error"]
    assert (refused.status_code, error["field"], error["message"]) == (400, "timeLimit", words)
    accepted = client.post("/jobs", json=job | {"timeLimit": 604_800}).json()
    assert (accepted["capacity"], accepted["timeLimit"]) == ("flex-start", 604_800)


def test_the_simulated_cloud_has_no_flex_start_capacity(settings, database, api_key):
    tpu = TpuSettings(simulator_address="127.0.0.1:1", zones=["us-west4-a"])
    app = create_app(settings.model_copy(update={"tpu": tpu}), database=database, wake=lambda: None)
    job = {"machineType": "TPU v6e", "command": "true", "capacity": "flex-start", "timeLimit": 60}
    server = LiveServer(app, api_key)
    with server.client() as client:
        refused = client.post("/jobs", json=job)
    server.stop()
    words = "The simulated cloud has no flex-start capacity. Use standard or spot."
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, words)


@pytest.fixture
def disk_client(settings, database, api_key):
    """A client of a server with TPUs and data disks."""
    disks = ["us-west4-a/imagenet", "us-east5-a/imagenet", "us-west4-a/scratch", "us-east5-b/elsewhere"]
    tpu = TpuSettings(project="p", zones=["us-west4-a"], data_disks=disks)
    server = LiveServer(
        create_app(settings.model_copy(update={"tpu": tpu}), database=database, wake=lambda: None), api_key
    )
    with server.client() as client:
        yield client
    server.stop()


@pytest.mark.parametrize(
    ("machine_type", "disks", "words"),
    [
        ("TPU v5e", ["Scratch"], "'Scratch' is not a disk. Give its name, such as imagenet, or imagenet:rw to write"),
        ("TPU v5e", ["scratch:rx"], "'scratch:rx' is not a disk."),
        ("TPU v5e", ["scratch", "scratch:rw"], "scratch is named twice."),
        ("TPU v5e", [f"disk-{number}" for number in range(9)], "9 disks; at most 8"),
        ("TPU v5e", ["other"], "other is not a disk for jobs."),
        ("TPU v5e", ["elsewhere"], "None of the zones in GRADIENT_TPU__ZONES has these disks."),
        ("TPU v5e", ["elsewhere", "scratch"], "elsewhere in us-east5-b; scratch in us-west4-a"),
        ("TPU v5e-16", ["scratch:rw"], "scratch cannot be written by 4 hosts"),
        ("TPU", ["scratch"], "jobs on TPU do not run on one"),
        ("CPU", ["scratch"], "jobs on CPU do not run on one"),
    ],
)
def test_data_disks_that_a_job_cannot_have_are_refused(disk_client, machine_type, disks, words):
    refused = disk_client.post("/jobs", json={"machineType": machine_type, "command": "true", "dataDisks": disks})
    error = refused.json()["error"]
    assert (refused.status_code, error["field"]) == (400, "dataDisks")
    assert words in error["message"]


def test_data_disks_of_a_job_are_kept(disk_client):
    spec = {"machineType": "TPU v5e-16", "command": "true", "dataDisks": ["imagenet", "scratch:ro"]}
    job = disk_client.post("/jobs", json=spec).json()
    assert disk_client.get(f"/jobs/{job['id']}").json()["dataDisks"] == ["imagenet", "scratch:ro"]


def test_a_guard_of_a_disk_that_is_not_measured_is_refused(disk_client):
    spec = {"command": "true", "onDisk": "stop:90"}
    refused = disk_client.post("/jobs", json={**spec, "machineType": "TPU v5e-16"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "onDisk")
    assert disk_client.post("/jobs", json={**spec, "machineType": "CPU"}).status_code == 201


def test_an_option_goes_from_the_flag_to_the_launched_job(tmp_path, settings):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, line) in RECIPE.items():
        file = tmp_path / "copy" / name
        text = file.read_text(encoding="utf-8")
        assert text.count(f"\n{before}") == 1
        file.write_text(text.replace(f"\n{before}", f"\n{line}{before}"), encoding="utf-8")
    (tmp_path / ".gradient.toml").write_text("toyLevel = 6\n", encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-c", JOURNEY, settings.home],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}/copy:{tmp_path}/copy/client"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == [6, 7, 7, 7, 422]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("packages", ["six\n--index-url https://x"]),
        ("packages", [""]),
        ("packages", ["# a comment"]),
        ("packages", ["six"] * 501),
        ("requirementsFile", "../r.txt"),
        ("requirementsFile", "/etc/passwd"),
        ("extras", ["--all"]),
        ("groups", ["a b"]),
    ],
)
def test_requirements_that_nobody_intends_are_refused(client, field, value):
    answer = client.post("/jobs", json={"machineType": "CPU", "command": "true", field: value})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
