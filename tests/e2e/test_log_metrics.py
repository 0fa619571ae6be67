"""Metrics that are read from a job's log, from the client to its charts."""

import csv
import io
import shlex

import pytest
from support.deployment import wait_until


def submit(service, command, *patterns, options=()):
    given = [part for pattern in patterns for part in ("--metric", pattern)]
    create = ["jobs", "create", "-m", "CPU", "--workspace", "none", "-d", "--command", command]
    return service.cli(*create, *given, *options).stdout.split()[-1]


def read(service, job_id):
    """Return the (step, value) points of each metric that the job has itself."""
    found = {}
    for row in csv.DictReader(io.StringIO(service.cli("jobs", "metrics", job_id, "--csv").stdout)):
        if row["source"] == "job":
            found.setdefault(row["name"], []).append((float(row["step"]) if row["step"] else None, float(row["value"])))
    return found


@pytest.mark.parametrize(
    ("output", "patterns", "expected"),
    [
        (r"loss 0.5\nother\nloss 0.25\n", ["loss=loss ([0-9.]+)"], {"loss": [(None, 0.5), (None, 0.25)]}),
        (
            r"epoch 1: loss 5e-1 acc .75\nepoch 2: loss 4e-1",  # no line feed at the end
            ["step=epoch (\\d+)", "loss=loss (\\S+)", "val/acc=acc (\\S+)"],
            {"loss": [(1, 0.5), (2, 0.4)], "val/acc": [(1, 0.75)]},
        ),
        (r"Epoch 7\nloss: 3\nloss: 2\n", ["step=Epoch (\\d+)", "loss=loss: (\\d)"], {"loss": [(7, 3.0), (7, 2.0)]}),
        (r"10%%|loss=3\r20%%|loss=2\r\n", ["loss=loss=(\\d)"], {"loss": [(None, 3.0), (None, 2.0)]}),
        (r"\033[1mloss\033[0m 4\n", ["loss=loss (\\d)"], {"loss": [(None, 4.0)]}),
        (r"Fehlermaß 0.5\n", ["maß=maß (.*)"], {"maß": [(None, 0.5)]}),
    ],
)
def test_numbers_in_the_log_become_metrics(service, output, patterns, expected):
    job_id = submit(service, f"printf '{output}'", *patterns)
    service.wait_ended(job_id)
    assert read(service, job_id) == expected


def test_metrics_of_the_log_and_of_the_file_are_there_while_the_job_runs(service):
    program = 'echo "loss 1"; echo \'{"acc": 2}\' >>"$GRADIENT_METRICS_FILE"; sleep 600'
    job_id = submit(service, program, "loss=loss (.*)")
    wait_until(lambda: set(read(service, job_id)) == {"loss", "acc"}, "both metrics")
    service.request("POST", f"/jobs/{job_id}/stop?now=true")
    service.wait_ended(job_id)
    assert read(service, job_id) == {"loss": [(None, 1.0)], "acc": [(None, 2.0)]}


def test_all_that_is_left_out_is_named_though_the_job_has_ended_long_after(service):
    lines = ['{"a": null, "x": 1}', '{"b": "0.5", "c": true, "x": 2}', '{"d": [1], "e": {"f": 1}, "good": 3}']
    job_id = submit(service, f"printf '%s\\n' {shlex.join(lines)} >>$GRADIENT_METRICS_FILE; sleep 600")
    wait_until(lambda: "good" in read(service, job_id), "the last line")
    service.request("POST", f"/jobs/{job_id}/stop?now=true")
    service.wait_ended(job_id)
    said = service.request("GET", f"/jobs/{job_id}/metrics").json()["leftOut"]
    assert "a (null), b (a string), c (true or false), d (a list), e (an object)" in said


@pytest.mark.parametrize(
    ("last", "values", "told"),
    [
        ('{"step": 2, "loss": 0.25}', [(1, 0.5), (2, 0.25)], None),
        ('{"step": 2, "lo', [(1, 0.5)], """the first is '{"step": 2, "lo'"""),  # killed while it wrote
    ],
)
def test_a_last_line_without_a_line_feed_is_read_or_named(service, last, values, told):
    lines = f'{{"step": 1, "loss": 0.5}}\n{last}'
    job_id = submit(service, f"printf %s {shlex.quote(lines)} >>$GRADIENT_METRICS_FILE")
    service.wait_ended(job_id)
    assert read(service, job_id) == {"loss": values}
    said = service.request("GET", f"/jobs/{job_id}/metrics").json()["leftOut"]
    assert told in said if told else said is None


@pytest.mark.faults
def test_no_line_is_lost_or_counted_twice_when_the_worker_is_killed(deployment):
    deployment.start_api()
    worker = deployment.start_worker()
    counts = 'i=0; while [ $i -lt 300 ]; do echo "step $i loss $i"; i=$((i+1)); sleep 0.01; done'
    job_id = submit(deployment, counts, "step=step (\\d+)", "loss=loss (\\d+)")
    wait_until(lambda: b"step 100\n" in deployment.raw_log(job_id).replace(b" loss 100", b""), "its first lines")
    worker.kill()
    deployment.start_worker()
    deployment.wait_ended(job_id)
    assert read(deployment, job_id) == {"loss": [(float(i), float(i)) for i in range(300)]}


def test_hostile_expressions_and_lines_do_not_keep_the_log(service):
    evil = ["a=(a+)+$", "b=((?:a|a)*)*b", "c=(?:x.{0,900}){0,1}(y)"]
    job_id = submit(service, "head -c 20000000 /dev/zero | tr '\\0' a; echo; yes aaaa | head -100000; echo end", *evil)
    assert service.wait_ended(job_id)["state"] == "Stopped"
    assert service.raw_log(job_id).endswith(b"end\n")


def test_a_metric_that_no_line_has_is_told(service):
    job_id = submit(service, "echo loss none", "loss=loss (\\S+)", "acc=acc (.)")
    service.wait_ended(job_id)
    shown = service.request("GET", f"/jobs/{job_id}/metrics").json()
    assert "--metric acc, loss" in str(shown)


@pytest.mark.parametrize(
    "pattern", ["loss", "=x", "a=(", "a=x", "a=(x)(y)", "a=(?=x)(y)", r"a=(x)\1", "a=(" + "x" * 600]
)
def test_an_expression_that_cannot_be_used_is_refused(service, pattern):
    create = ["jobs", "create", "-m", "CPU", "--workspace", "none", "--command", "true", "--metric", pattern]
    done = service.cli(*create, code=None)
    assert done.returncode != 0
    assert "loss=loss ([0-9.]+)" in done.stderr
