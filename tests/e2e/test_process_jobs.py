"""Jobs under the process backend: what they see, and how each way to end is reported."""

import html
import io
import zipfile

import pytest
from support.deployment import wait_until


def run(service, command, **spec):
    job_id = service.submit(command, **spec)
    return service.wait_ended(job_id), service.raw_log(job_id).decode(errors="replace")


def test_a_job_finds_its_environment(service):
    job, log = run(service, "env", envVars={"LEARNING_RATE": "0.1", "TEXT": "two\nlines ✓"})
    env = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    assert env["GRADIENT_JOB_ID"] == env["PS_JOB_ID"] == job["id"]
    assert env["GRADIENT_ATTEMPT"] == "1"
    assert env["GRADIENT_MACHINE_TYPE"] == "CPU"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["LEARNING_RATE"] == "0.1"
    assert env["GRADIENT_WORKSPACE_DIR"] == env["PS_JOBSPACE"] == env["PWD"]
    assert env["GRADIENT_ARTIFACTS_DIR"] == env["PS_MODEL_PATH"]
    assert {"GRADIENT_STORAGE_DIR", "GRADIENT_METRICS_FILE", "PS_HOSTNAME", "HOME", "PATH"} <= env.keys()
    assert "TEXT=two\nlines ✓\n" in log
    assert "SECRET_OF_THE_SERVICE" not in env
    assert "GRADIENT_HOME" not in env


BINDS = """
import os, socket, time
listener = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
print("up", flush=True)
while not os.path.exists(os.environ["GRADIENT_STORAGE_DIR"] + "/over"):
    time.sleep(0.05)
"""


def test_two_jobs_have_a_port_each_for_their_processes_to_meet(service):
    """Though they share this host's network."""
    assert run(service, 'echo "$MASTER_PORT"', envVars={"MASTER_PORT": "7"})[1] == "7\n"
    jobs = [service.submit(f"python3 - <<'END'\n{BINDS}\nEND") for _ in range(2)]
    for job in jobs:
        wait_until(lambda job=job: b"up" in service.raw_log(job), "it to listen")
    (service.storage / "over").touch()
    assert [service.wait_ended(job)["exitCode"] for job in jobs] == [0, 0]


@pytest.mark.parametrize(
    ("command", "state", "code", "reason", "says"),
    [
        ("exit 0", "Stopped", 0, "completed", "exit code 0"),
        ("exit 3", "Failed", 3, "exit_nonzero", "exit code 3"),
        ("set -o pipefail; (exit 3) | tee log.txt", "Failed", 3, "exit_nonzero", "exit code 3"),
        ("#!/usr/bin/env python3\nraise SystemExit(3)", "Failed", 3, "exit_nonzero", "exit code 3"),
        ("cd /\r\n[ $PWD = / ] && exit 5\r\n", "Failed", 5, "exit_nonzero", "exit code 5"),
        ("#!/usr/bin/env python3\r\nraise SystemExit(3)\r\n", "Failed", 3, "exit_nonzero", "exit code 3"),
        ("no-such-program", "Failed", 127, "command_not_found", "spelling"),
        ("touch a; ./a", "Failed", 126, "command_not_executable", "chmod +x"),
        ("kill -9 $$", "Failed", 137, "killed", "memory"),
        ("kill -SEGV $$", "Failed", 139, "signalled", "SIGSEGV"),
        ("sh -c 'kill -TERM $$'", "Failed", 143, "signalled", "SIGTERM"),
        ("kill -TERM $$", "Failed", 143, "signalled", "SIGTERM"),
        (
            "exit 137",
            "Failed",
            137,
            "exit_nonzero",
            "exit code 137: either its own, or the signal SIGKILL",
        ),
        ("set -u; echo $1", "Failed", 127, "exit_nonzero", "exit code 127"),
        ("conda activate x", "Failed", 127, "command_not_found", "requirements.txt"),
    ],
)
def test_every_exit_is_explained(service, command, state, code, reason, says):
    job, _ = run(service, command)
    assert (job["state"], job["exitCode"], job["reason"]) == (state, code, reason)
    assert says in job["message"]


def test_files_left_in_the_working_directory_are_named(service):
    job, _ = run(service, "echo weights > model.pt; mkdir -p outputs; echo x > outputs/a.png; exit 3")
    note = (
        "2 files of the workspace were not kept: model.pt 8 B, outputs/a.png 2 B. "
        "Write to $GRADIENT_ARTIFACTS_DIR, or use --outputs model.pt --outputs 'outputs/**'."
    )
    assert job["notes"] == [note]
    assert note in [event["message"] for event in service.events(job["id"])]
    page = service.request("GET", f"/ui/jobs/{job['id']}", headers={"accept": "text/html"}).text
    assert note in html.unescape(page)
    assert run(service, "echo x > $GRADIENT_ARTIFACTS_DIR/a")[0]["notes"] == []


@pytest.mark.parametrize("end", ["exit 0", "exit 3", "sleep 60"])
def test_outputs_become_artifacts_at_every_end(service, end):
    command = f"mkdir -p outputs/deep; echo x > outputs/deep/a.png; echo y > b.txt; echo ready; {end}"
    job_id = service.submit(command, outputs=["outputs/**"])
    if end == "sleep 60":
        wait_until(lambda: service.raw_log(job_id), "output")
        service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    assert [file["path"] for file in service.artifacts(job_id)["files"]] == ["outputs/deep/a.png"]
    assert job["outputs"] == ["outputs/**"]
    assert "b.txt 2 B" in job["notes"][0]


def test_a_preempted_job_with_attempts_left_runs_again(service):
    command = '[ "$GRADIENT_ATTEMPT" = 2 ] && { echo second; exit 0; }; echo first; sleep 600'
    job, log = run(service, command, envVars={"SIMULATE_PREEMPT_AFTER": "3"}, maxAttempts=2, stopGrace=5)
    assert (job["state"], job["attempt"], job["machineFaults"]) == ("Stopped", 2, 1)
    assert log == "first\nTerminated\nsecond\n", "the shell says how what it waited for ended"


def test_files_and_links_among_artifacts_reach_the_next_attempt_and_every_download(service):
    command = (
        'cd "$GRADIENT_ARTIFACTS_DIR"; echo "$GRADIENT_ATTEMPT" >>steps; '
        "cat last.ckpt best/weights && exit; mkdir epoch1; echo w1 >epoch1/weights; "
        'ln -s epoch1/weights last.ckpt; ln -s "$PWD/epoch1" best; ln -s /etc/passwd out; exit 1'
    )
    job, log = run(service, command, maxAttempts=2)
    assert (job["state"], job["attempt"], log[-6:]) == ("Stopped", 2, "w1\nw1\n")
    # What the first attempt closed is not written to.
    for attempt, steps in ((1, b"1\n"), (2, b"1\n2\n")):
        listed = service.request("GET", f"/jobs/{job['id']}/artifacts?attempt={attempt}").json()
        assert {file["path"] for file in listed["files"]} == {"best/weights", "epoch1/weights", "last.ckpt", "steps"}
        one = service.request("GET", f"/jobs/{job['id']}/artifacts/file/steps?attempt={attempt}")
        assert one.content == steps
        zipped = service.request("GET", f"/jobs/{job['id']}/artifacts.zip?attempt={attempt}").content
        with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
            files = [archive.read(entry) for entry in archive.infolist() if not entry.is_dir()]
            assert sorted(files) == [steps, b"w1\n", b"w1\n", b"w1\n"]
    listed = service.request("GET", f"/jobs/{job['id']}/artifacts?attempt=1").json()
    assert listed["skipped"] == [
        {"path": "out", "why": ("a symbolic link to a target outside the folder is not followed")}
    ]


def test_progress_bars_binary_noise_and_a_line_without_end(service):
    noise = (
        "import os, sys; out = sys.stdout.buffer;"
        "[out.write(b'\\r%d%%' % p) for p in range(0, 101, 10)]; out.write(b'\\n');"
        "out.write(bytes(range(256)) + b'\\n'); out.write(b'x' * 20_000_000)"
    )
    job, _ = run(service, f'python -c "{noise}"')
    rows = service.request("GET", f"/jobs/{job['id']}/logs").json()
    assert rows["complete"]
    assert rows["lines"][0]["message"] == "100%"
    assert [row["line"] for row in rows["lines"]] == [1, 2, 3, 4]
    assert "20,000,000" in rows["lines"][3]["message"]
    assert len(rows["lines"][3]["message"]) < 20_000
    raw = service.raw_log(job["id"])
    assert raw.endswith(bytes(range(256)) + b"\n" + b"x" * 20_000_000)


def test_system_metrics_are_sampled(service):
    job_id = service.submit("python -c 'while True: pass'")

    def sampled():
        series = {one["name"]: one for one in service.request("GET", f"/jobs/{job_id}/metrics").json()["series"]}
        return series if "cpu_percent" in series and series["cpu_percent"]["max"] > 1 else None

    series = wait_until(sampled, "more than a hundredth of a CPU, beside whatever else is busy")
    service.request("POST", f"/jobs/{job_id}/stop?now=true")
    service.wait_ended(job_id)
    assert series["memory_bytes"]["source"] == "system"
    assert series["memory_bytes"]["max"] > 1024**2
