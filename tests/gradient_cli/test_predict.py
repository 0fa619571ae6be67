"""`predict`, and hyper-parameters carried over by `--carry-from`."""

import json

import pytest

JOB = "j" + "a" * 13
ESTIMATE = {"value": 90.0, "low": 60.0, "high": 3600.0}
BOTTLENECK = {
    "kind": "input",
    "summary": "Bound by input: 80% of the running time.",
    "figures": [{"name": "input_share", "value": 0.8, "text": "80% of the running time waiting for input"}],
    "advice": ["Cache the prepared examples."],
    "missing": [],
}


def machine(name, **fields):
    made = {
        "machineType": name,
        "pricePerHour": 3.06,
        "stepSeconds": ESTIMATE,
        "seconds": ESTIMATE,
        "cost": {"value": 0.0765, "low": 0.051, "high": 3.06},
        "declined": None,
        "speedup": {"value": 2.5, "low": 1.25, "high": 5.0},
        "fits": True,
        "memoryBytes": 8e9,
        "correction": {"ratio": 1.5, "count": 2},
        "carryOver": {
            "replicas": 1,
            "batchSize": 64,
            "learningRate": 0.05,
            "weightDecay": 0.000125,
            "reasons": ["batch size 512 on 8 replicas is 64 on each"],
        },
        "notes": ["An assumption."],
    }
    return made | fields


NOT_PREDICTED = machine("GPU+", notes=[], **dict.fromkeys(("seconds", "cost", "speedup", "memoryBytes", "fits")))


def prediction(*machines, **fields):
    made = {
        "jobId": JOB,
        "machineType": "TPU",
        "simulated": False,
        "stepsPerSecond": 12.5,
        "seconds": 225.0,
        "cost": 0.28,
        "method": "Estimates by the roofline model.",
        "bottleneck": BOTTLENECK,
        "missing": [],
        "missingHyperparameters": [],
        "machines": list(machines),
        "results": ["Fastest, as estimated: V100."],
        "notes": ["An assumption.", "Not estimated for GPU+: About as fast."],
    }
    return made | fields


@pytest.fixture
def offered(server):
    """The server's answer about the job, and what it submits."""

    def offer(*machines, **fields):
        server.on("GET", f"/jobs/{JOB}/prediction", prediction(*machines, **fields))
        server.on("POST", "/jobs", {"id": JOB, "url": "http://server/"})

    return offer


def test_the_judgement_and_the_estimates_are_shown(cli, offered, server):
    offered(machine("V100"), NOT_PREDICTED)
    shown = cli("predict", JOB, "-m", "V100,GPU+", "--precision", "mixed")
    assert shown.returncode == 0, shown.stderr
    first, summary, figure, advice, _, fastest, head, v100 = shown.stdout.splitlines()
    assert first == "measured on TPU: 12.5 steps/s, 3m 45s, $0.2800"
    assert summary == BOTTLENECK["summary"]
    assert "80% of the running time waiting for input" in figure
    assert advice == "  advice: Cache the prepared examples."
    assert fastest == "Fastest, as estimated: V100."
    assert "ESTIMATED TIME" in head
    for text in (
        "1m 30s",
        "1m 00s to 1h 00m",
        "$0.0765",
        "2.5 x",
        "1.25 x to 5 x",
        "fits (7.5 GiB)",
        "2 measured, x 1.50",
    ):
        assert text in v100
    assert "note: Not estimated for GPU+: About as fast." in shown.stderr
    assert "note: An assumption." in shown.stderr
    assert "roofline" in shown.stderr
    (asked,) = server.requests_to("GET", f"/jobs/{JOB}/prediction")
    assert asked.query == {"machineType": "V100,GPU+", "precision": "mixed"}


def test_json(cli, offered):
    offered(machine("V100"))
    assert json.loads(cli("predict", JOB, "--json").stdout) == prediction(machine("V100"))


def test_missing_metrics_are_named_with_the_next_step_and_the_own_machine_is_shown(cli, offered):
    offered(machine("TPU", correction=None), missing=["flops_per_step"], stepsPerSecond=None, notes=[], results=[])
    shown = cli("predict", JOB)
    assert shown.returncode == 0
    assert "has not reported flops_per_step as numbers above 0" in shown.stderr
    assert "`gradient_jobs.watch(model)` reports them" in shown.stderr
    assert "roofline" not in shown.stderr, "nothing is estimated"
    assert [line.split()[0] for line in shown.stdout.splitlines()[-2:]] == ["MACHINE", "TPU"]


def test_an_array_is_no_job(cli):
    refused = cli("predict", "a5l8yozowgeqhl")
    assert refused.returncode == 2
    assert "error: a5l8yozowgeqhl is an array, but a single job is required" in refused.stderr
    assert "a5l8yozowgeqhl_0" in refused.stderr


CREATE = ("jobs", "create", "-m", "T4", "--workspace", "none", "--command", "python train.py", "--detach")


def test_hyperparameters_are_shown_and_not_applied(cli, offered, server):
    offered(machine("T4"))
    made = cli(*CREATE, "--carry-from", JOB)
    assert made.returncode == 0, made.stderr
    assert "batch size 512 on 8 replicas is 64 on each" in made.stderr
    assert "--batch-size 64 --learning-rate 0.05 --weight-decay 0.000125" in made.stderr
    assert "not applied; --apply-carry" in made.stderr
    assert server.requests_to("POST", "/jobs")[0].json["command"] == "python train.py"


def test_a_clone_takes_them_to_its_machine_type(cli, offered, server):
    offered(machine("T4"))
    server.on("GET", f"/jobs/{JOB}", {"id": JOB, "machineType": "TPU", "command": "python train.py"})
    server.on("POST", f"/jobs/{JOB}/clone", {"id": JOB})
    made = cli("jobs", "clone", JOB, "-m", "T4", "--carry-from", JOB, "--apply-carry", "--detach")
    assert made.returncode == 0, made.stderr
    sent = server.requests_to("POST", f"/jobs/{JOB}/clone")[0].json
    assert sent["command"].endswith("--batch-size 64 --learning-rate 0.05 --weight-decay 0.000125")
    assert server.requests_to("GET", f"/jobs/{JOB}/prediction")[0].query == {"machineType": "T4"}


def test_a_comparison_shows_them_for_each_machine_type(cli, offered, server):
    offered(machine("T4"), machine("TPU"))
    server.on("POST", "/comparisons", {"id": "c1", "url": "", "jobs": 2, "rows": []})
    options = ["-m", "T4,TPU", "--workspace", "none", "--command", "true", "--carry-from", JOB]
    made = cli("compare", "create", *options)
    assert made.returncode == 0, made.stderr
    assert made.stderr.count("arguments: --batch-size 64") == 2
    assert "not applied: all jobs of a comparison have the same command" in made.stderr


@pytest.mark.parametrize(
    ("words", "fields", "error"),
    [
        (["--apply-carry"], {}, "needs a job"),
        (["--carry-from", JOB], {"missingHyperparameters": ["batch_size"]}, "has not reported batch_size"),
    ],
)
def test_nothing_is_submitted_without_figures(cli, offered, server, words, fields, error):
    offered(machine("T4"), **fields)
    refused = cli(*CREATE, *words)
    assert refused.returncode == 2
    assert error in refused.stderr
    assert server.requests_to("POST", "/jobs") == []
