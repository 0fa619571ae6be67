import json
import re
import time
from datetime import UTC, datetime, timedelta

import pytest


def from_now(**left):
    return (datetime.now(UTC) + timedelta(seconds=30) + timedelta(**left)).isoformat(timespec="milliseconds")


WAITING = [
    ({"queuePosition": 3, "reason": "behind_jobs", "estimatedStartAt": {"minutes": 4}}, "3rd, ~4m"),
    ({"queuePosition": 1, "reason": "waiting_for_machine", "estimatedStartAt": {"minutes": -1}}, "1st, soon"),
    ({"queuePosition": 1211, "reason": "behind_jobs", "estimatedStartAt": {"hours": 30}}, "1,211th, ~1d"),
    ({"queuePosition": 22, "reason": "behind_jobs", "estimatedStartAt": None}, "22nd"),
    ({"queuePosition": 2, "reason": "no_worker", "estimatedStartAt": None}, "no worker"),
    ({"queuePosition": 2, "reason": "waiting_for_gpus", "estimatedStartAt": {"minutes": 2}}, "gpus, ~2m"),
    ({"state": "Running", "reason": "worker_unresponsive", "silentSince": {"minutes": -6}}, "silent, 5m"),
]


def test_the_list_says_what_a_job_waits_for(cli, server, protocol):
    rows = []
    for fields, _ in WAITING:
        times = {name: from_now(**left) for name, left in fields.items() if isinstance(left, dict)}
        rows.append(protocol.job(**{**fields, **times}))
    server.on("GET", "/jobs", {"jobs": [*rows, protocol.ended()], "next": None})
    head, *lines = cli("jobs", "list").stdout.splitlines()
    at = head.index("WAITS")
    assert [line[at : head.index("MACHINE")].strip() for line in lines] == [why for _, why in WAITING] + [""]
    assert "(queued)" not in lines[0], "said by the place"


def test_the_list_takes_page_after_page(cli, server, protocol):
    pages = [{"jobs": [protocol.job()] * size, "next": after} for size, after in ((200, "c1"), (60, "c2"), (40, None))]
    server.on("GET", "/jobs", *pages)
    found = json.loads(cli("jobs", "list", "--limit", "260", "--json").stdout)
    assert (len(found["jobs"]), found["next"]) == (260, "c2")
    assert [(r.query["limit"], r.query.get("after")) for r in server.requests] == [("200", None), ("60", "c1")]
    server.on("GET", "/jobs", *pages)
    shown = cli("jobs", "list", "--all")
    assert len(shown.stdout.splitlines()) == 301
    assert shown.stderr == ""


def test_a_cut_list_says_so_and_an_empty_one_what_to_do(cli, server, protocol):
    server.on("GET", "/jobs", {"jobs": [protocol.job()] * 2, "next": "c"})
    assert cli("jobs", "list", "--limit", "2").stderr == "only the newest 2; --limit N or --all lists more\n"
    sorted_list = cli("jobs", "list", "--limit", "2", "--sort=-cost")
    assert sorted_list.stderr == "only the first 2; --limit N or --all lists more\n"
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    assert "gradient-cli jobs create" in cli("jobs", "list").stderr
    assert "no matching jobs" in cli("jobs", "list", "--state", "Running").stderr
    assert cli("jobs", "list", "--limit", "0").returncode == 2


def test_show_says_why_and_what_next(cli, server, protocol):
    starts_at = from_now(minutes=4)
    waiting = protocol.job(
        message="No free A100.", reason="no-machine", queuePosition=3, envVars={"A": "1"}, estimatedStartAt=starts_at
    )
    server.on("GET", f"/jobs/{protocol.id}", waiting, protocol.ended(137, "Failed", reason="oom", simulated=True))
    shown = cli("jobs", "show", protocol.id)
    assert "state           Pending: No free A100.\n" in shown.stdout
    assert "queue position  3\n" in shown.stdout
    moment = f"{datetime.fromisoformat(starts_at).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    assert f"starts          in about 4m ({moment}, an estimate from earlier jobs)\n" in shown.stdout
    assert f"gradient-cli jobs stop {protocol.id}" in shown.stderr
    shown = cli("jobs", "show", protocol.id)
    assert "exit code     137\n" in shown.stdout
    assert "CPU (simulated)" in shown.stdout
    assert "would cost" in shown.stdout
    assert f"gradient-cli jobs artifacts list {protocol.id}" in shown.stderr
    assert json.loads(cli("jobs", "show", protocol.id, "--json").stdout)["exitCode"] == 137


@pytest.mark.parametrize(
    ("hours", "text"),
    [(1.5, "1.5 GPU hours"), (1.0, "1 GPU hour"), (1234.5, "1,234.5 GPU hours"), (0.001, "<0.01 GPU hours")],
)
def test_a_job_on_a_free_machine_costs_gpu_hours(cli, server, protocol, hours, text):
    job = protocol.ended(cost=0, pricePerHour=0, gpuHours=hours, machineType="A100")
    server.on("GET", f"/jobs/{protocol.id}", job)
    server.on("GET", "/jobs", {"jobs": [job], "next": None})
    assert f"{text} (A100)\n" in cli("jobs", "show", protocol.id).stdout
    assert text in cli("jobs", "list").stdout


def test_show_tells_gpus_and_what_was_used(cli, server, protocol):
    model = {"gpuName": "NVIDIA A100", "gpuMem": 42949672960, "gpuDriver": "550.54", "gpuCuda": "12.4", "gpuCount": 2}
    usage = {"peakMemoryBytes": 1.2e9, "peakCpuPercent": 180.4, "meanCpuPercent": 95.0, "peakGpuPercent": 99.0}
    usage |= {"meanGpuPercent": 71.2, "peakGpuMemoryBytes": 9.1e9}
    gpus = [{"index": "0"}, {"index": "3"}]
    asked = {"sharedMemMb": 2048, "workingDir": "src", "user": "1000:100", "python": "3.12"}
    job = protocol.job(**model, gpus=gpus, usage=usage, **asked)
    server.on("GET", f"/jobs/{protocol.id}", job, protocol.job(gpuCount=1, gpus=[{"index": "7"}], usage=None))
    shown = cli("jobs", "show", protocol.id).stdout
    assert "NVIDIA A100, 40 GiB each, driver 550.54 (CUDA 12.4), host GPUs 0 and 3\n" in shown
    assert "memory 1.1 GiB; CPU 180%, 95% on average; GPU 99%, 71% on average, 8.5 GiB of its memory\n" in shown
    assert [
        line.split()[-1] for line in shown.splitlines() if line.startswith(("shared", "working", "user", "python"))
    ] == ["GiB", "1000:100", "src", "3.12"]
    unknown = cli("jobs", "show", protocol.id).stdout
    assert "1 of unknown model, host GPU 7\n" in unknown
    assert "\nused " not in unknown


def test_stop_tells_what_happens(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(state="Running"), protocol.ended(), protocol.job())
    server.on(
        "POST",
        f"/jobs/{protocol.id}/stop",
        protocol.job(stopRequested=True),
        protocol.ended(),
        {**protocol.ended(None, "Cancelled"), "message": "Ended by a stop request."},
    )
    shown = cli("jobs", "stop", protocol.id)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "the job has 1m 00s to save its work" in shown.stderr
    assert "the job had already ended: Succeeded" in cli("jobs", "stop", protocol.id).stderr
    assert cli("jobs", "stop", protocol.id).stderr == "Cancelled: Ended by a stop request.\n"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_whose_outputs_are_collected_is_waited_for(cli, server, protocol, stopped):
    message = "Ended by a stop request." if stopped else "The command ended with exit code 0."
    fields = {"state": "Running", "phase": "collecting", "message": message, "stopRequested": stopped}
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(**fields))
    shown = cli("jobs", "show", protocol.id)
    state = "Stopping" if stopped else "Running"
    assert f" {state} (collecting outputs): {message}\n" in shown.stdout
    assert f"gradient-cli jobs wait {protocol.id}\n" in shown.stderr
    assert "jobs stop" not in shown.stderr


def test_a_job_that_is_being_stopped_is_waited_for(cli, server, protocol):
    soon = (datetime.now(UTC) + timedelta(seconds=90)).isoformat()
    job = protocol.job(state="Running", phase="running", stopRequested=True, stopsBy=soon)
    server.on("GET", f"/jobs/{protocol.id}", job)
    shown = cli("jobs", "show", protocol.id)
    assert re.search(r"^state +Stopping$", shown.stdout, re.MULTILINE)
    assert re.search(r"^killed +in about 1m, if it has not ended$", shown.stdout, re.MULTILINE)
    server.on("GET", "/jobs", {"jobs": [job, {**job, "arrayId": "a1", "arrayMembers": {"Running": 2}}], "next": None})
    assert re.findall(r" Stopping | stopping: 2 Running ", cli("jobs", "list").stdout) == [
        " Stopping ",
        " stopping: 2 Running ",
    ]
    assert f"gradient-cli jobs wait {protocol.id}\n" in shown.stderr


def test_people_read_succeeded_and_programs_read_stopped(cli, server, protocol):
    server.on("GET", "/jobs", {"jobs": [protocol.ended()], "next": None})
    assert re.search(r" Succeeded +CPU ", cli("jobs", "list").stdout)
    assert [job["state"] for job in json.loads(cli("jobs", "list", "--json").stdout)["jobs"]] == ["Stopped"]


@pytest.mark.parametrize("given", ["Stopped", "failed, STOPPED"])
def test_a_list_of_stopped_jobs_is_asked_about(cli, server, given):
    refused = cli("jobs", "list", "--state", given)
    assert (refused.returncode, server.requests) == (2, [])
    assert "succeeded or cancelled?" in refused.stderr


def test_times_are_shown_in_this_machines_zone(cli, server, protocol, monkeypatch):
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended(startedAt="2024-01-01T23:30:59.999Z"))
    with monkeypatch.context() as environment:
        environment.setenv("TZ", "Europe/Berlin")
        time.tzset()
        shown = cli("jobs", "show", protocol.id).stdout
    time.tzset()
    assert re.search(r"created +2024-05-01 12:00:00 CEST \(\d+d ago\)\n", shown)
    assert re.search(r"started +2024-01-02 00:30:59 CET \(\d+d ago\)\n", shown)


def test_delete_wants_a_name(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    server.on("DELETE", f"/jobs/{protocol.id}", protocol.Reply(status=204))
    cli("jobs", "create", "--machineType", "CPU", "--command", "x", "--workspace", "none", "--detach")
    refused = cli("jobs", "delete")
    assert refused.returncode == 2
    assert f"gradient-cli jobs delete {protocol.id}" in refused.stderr
    assert cli("jobs", "delete", protocol.id).returncode == 0
    assert len(server.requests_to("DELETE", f"/jobs/{protocol.id}")) == 1


def test_wait_takes_over_the_exit_code(cli, server, protocol):
    lost = protocol.Reply(breaks="unanswered")
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(), lost, lost, protocol.job(), protocol.ended(7, "Failed"))
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"files": [], "totalFiles": 1, "totalBytes": 9})
    shown = cli("jobs", "wait", protocol.id)
    assert shown.returncode == 7
    assert "Failed: The command ended." in shown.stderr
    assert shown.stderr.count("connection lost") == 1
    assert f"gradient-cli jobs artifacts get {protocol.id}" in shown.stderr


def test_a_failure_or_a_limit_of_the_server_ends_no_wait(cli, server, protocol):
    limited = protocol.error(429, "Limit reached.", name="LimitReached")
    limited.headers["Retry-After"] = "1"
    failed = protocol.error(500, "internal error")
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(), failed, limited, limited, protocol.ended(7, "Failed"))
    shown = cli("jobs", "wait", protocol.id)
    assert shown.returncode == 7
    assert shown.stderr.count("again") == shown.stderr.count("internal error, trying again…") == 1


@pytest.mark.parametrize("status", [None, 429, *(pytest.param(each, marks=pytest.mark.slow) for each in (500, 503))])
def test_wait_gives_up_in_time_while_the_server_cannot_answer(cli, server, protocol, status):
    away = protocol.error(status, "no answer now") if status else protocol.Reply(breaks="unanswered")
    away.headers["Retry-After"] = "60"
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(message="2 jobs ahead"), away)
    shown = cli("jobs", "wait", protocol.id, "--timeout", "2s")
    assert shown.returncode == 124
    assert f"job {protocol.id} has not ended within 2s: Pending: 2 jobs ahead" in shown.stderr


def test_wait_gives_up_in_time(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.job())
    shown = cli("jobs", "wait", protocol.id, "--timeout", "0.5s")
    assert shown.returncode == 124
    assert "has not ended within" in shown.stderr
    assert cli("jobs", "wait", protocol.id, "--timeout", "x").returncode == 2


def test_machine_types_are_shown_as_the_server_has_them(cli, server):
    kinds = [
        {"name": "TPU", "aliases": ["v2"], "backend": "process", "accelerator": "TPU v2", "count": 8, "memoryGb": 64,
         "pricePerHour": 4.5, "simulated": True, "available": True, "memoryBandwidthGbps": 700.0,
         "tflops": {"bf16": 180.0, "int8": 1.0}, "priceSource": "list price, set your own: Google, 2018",
         "priceIsOld": True},
        {"name": "X99", "aliases": [], "backend": "docker", "accelerator": None, "count": 0, "memoryGb": None,
         "pricePerHour": None, "simulated": False, "available": False},
    ]  # fmt: skip
    server.on("GET", "/machine-types", {"machineTypes": kinds})
    assert cli("machine-types").stdout.split("\n")[0].split() == ["NAME", "ACCELERATOR", "MEMORY", "PRICE", "AVAILABLE"]
    assert [line.split()[0] for line in cli("machine-types", "--available").stdout.splitlines()] == ["NAME", "TPU"]
    assert json.loads(cli("machine-types", "--available", "--json").stdout)["machineTypes"] == kinds[:1]
    shown = cli("machine-types", "--wide")
    _, unknown, tpu = shown.stdout.splitlines()
    assert " ".join(tpu.split()) == (
        "TPU 8 x TPU v2 64 GB 700 bf16 180 $4.50/hour Google, 2018 simulated process v2"
    ), "real ones come first"
    assert unknown.split() == ["X99", "no", "docker"]
    assert "simulated: for trying things out; jobs really run" in shown.stderr
    assert "prices older than six months: 1 of 2, for example TPU" in shown.stderr
    assert json.loads(cli("machine-types", "--json").stdout)["machineTypes"] == kinds


def test_projects(cli, server):
    project = {"id": "pr1", "name": "mnist", "jobCount": 4, "createdAt": None}
    server.on("GET", "/projects", {"projects": [project]})
    server.on("POST", "/projects", project)
    assert "pr1" in cli("projects", "list").stdout
    assert cli("projects", "create", "mnist").stdout == "pr1\n"
    assert server.requests[-1].json == {"name": "mnist"}


def test_init_writes_a_project_file_that_create_reads(cli, server, protocol):
    made = cli("projects", "init", "--machineType", "A100", "--command", 'python "my file.py"')
    assert made.returncode == 0
    ignore_file = cli.folder / ".gradientignore"
    assert all(line.startswith("#") for line in ignore_file.read_text().splitlines())
    assert f"wrote {ignore_file}: lists files that are not uploaded" in made.stderr
    assert f"jobs of this folder now go to the project {cli.folder.name!r}" in made.stderr
    (cli.folder / "sub").mkdir()
    (cli.folder / "sub" / ".gradientignore").write_text("mine\n")
    elsewhere = cli("projects", "init", "--json", cwd=cli.folder / "sub")
    assert json.loads(elsewhere.stdout)["ignoreFile"] is None
    assert (cli.folder / "sub" / ".gradientignore").read_text() == "mine\n"
    again = cli("projects", "init")
    assert again.returncode == 1
    assert "already exists" in again.stderr
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    assert cli("jobs", "create", "--detach").returncode == 0
    asked = server.requests_to("POST", "/jobs")[0].json
    assert asked == {"machineType": "A100", "command": 'python "my file.py"', "project": "project"}


def test_init_in_a_folder_that_cannot_be_written(cli):
    refused = cli("projects", "init", cwd="/proc")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: /proc/.gradient.toml: ")


def test_several_jobs_are_stopped_and_deleted_in_one_request(cli, server, protocol):
    error = {"name": "JobNotFound", "status": 404, "message": "No such job: 'jgone0000000000'."}
    ended = protocol.job(state="Cancelled", message=None, finishedAt="2026-01-01T00:00:00.000Z")
    stopped = {"id": protocol.id, "done": True, "job": ended}
    running = {"id": "jgoing00000000", "done": True, "job": protocol.job(state="Running", message=None)}
    unknown = {"id": "jgone000000000", "done": False, "error": error}
    server.on("POST", "/jobs/actions", {"results": [stopped, running, unknown]})
    shown = cli("jobs", "stop", protocol.id, "jgone000000000")
    assert shown.returncode == 4
    assert shown.stderr.splitlines() == [
        f"{protocol.id}  Cancelled",
        "jgoing00000000  stopping",
        "jgone000000000  error: No such job: 'jgone0000000000'.",
    ]
    assert json.loads(server.requests[-1].body) == {"action": "stop", "ids": [protocol.id, "jgone000000000"]}
    cli("jobs", "stop", "--now", protocol.id, "jgone000000000")
    assert json.loads(server.requests[-1].body)["now"] is True
    server.on("POST", "/jobs/actions", {"results": [{"id": protocol.id, "done": True, "job": None}]})
    shown = cli("jobs", "delete", protocol.id, "jgone000000000", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["results"][0]["done"]) == (0, True)


def test_diff_of_one_job_is_with_the_one_it_was_cloned_from(cli, server, protocol):
    first, second = protocol.job(id="jfirst12345678"), protocol.job(id="jsecond1234567", parentJobId="jfirst12345678")
    for job in (first, second):
        server.on("GET", f"/jobs/{job['id']}", job)
    difference = {"first": first["id"], "second": second["id"], "differences": {}, "hidden": [], "workspace": None}
    server.on("GET", f"/jobs/{first['id']}/diff", difference)
    assert "no option differs" in cli("jobs", "diff", second["id"]).stderr
    refused = cli("jobs", "diff", first["id"])
    assert (refused.returncode, "is not a clone" in refused.stderr) == (2, True)


@pytest.mark.parametrize(("left", "shown"), [({"seconds": -43}, "13s ago"), ({"days": 9}, "20"), ({}, "just now")])
def test_times_of_the_last_minute_differ(cli, server, protocol, left, shown):
    server.on("GET", "/jobs", {"jobs": [protocol.job(createdAt=from_now(**left))], "next": None})
    assert shown in cli("jobs", "list").stdout
