"""Parameters of jobs, from the client and from a program, to the list and the next job."""

import json

PROGRAM = """\
echo "$GRADIENT_PARAMS"
echo '{"params": {"depth": 12, "opt": "sgd", "lr": 9, "seed": 2, "hf_token": "x", "a b": 1}}' >>"$GRADIENT_METRICS_FILE"
echo '{"params": {"release": "2.10"}}' >>"$GRADIENT_METRICS_FILE"
echo '{"step": 1, "loss": 0.5}' >>"$GRADIENT_METRICS_FILE"
"""


def submit(service, command, *options):
    create = ["jobs", "create", "-m", "CPU", "--workspace", "none", "-d", "--command", command]
    return service.cli(*create, *options).stdout.split()[-1]


def test_parameters_go_to_the_job_and_come_back_from_its_program(service):
    given = ("--param", "lr=1e-2", "--param", "opt=adam", "--param", "amp=true", "--name", "whole")
    job_id = submit(service, f"{PROGRAM}: --seed 1 --warmup=10", *given)
    assert service.wait_ended(job_id)["state"] == "Stopped"
    log = service.cli("jobs", "logs", job_id).stdout
    assert json.loads(log) == {"lr": 0.01, "opt": "adam", "amp": True}
    shown = json.loads(service.cli("jobs", "show", job_id, "--json").stdout)
    assert shown["params"] == {
        "amp": True,
        "depth": 12,
        "lr": 0.01,
        "opt": "adam",
        "seed": 2,
        "release": "2.10",
        "warmup": 10,
    }
    metrics = service.request("GET", f"/jobs/{job_id}/metrics").json()
    assert [series["name"] for series in metrics["series"] if series["source"] == "job"] == ["loss"]
    assert "'hf_token' (it may be a secret); 'a b' (a name begins with" in metrics["leftOut"]
    listed = service.cli(
        "jobs", "list", "-q", "depth=12 lr<0.1 release=2.10", "--columns", "name,params.lr,params.depth"
    )
    assert listed.stdout.splitlines()[0].split() == ["ID", "NAME", "lr", "depth"]
    assert listed.stdout.splitlines()[1].split() == [job_id, "whole", "0.01", "12"]
    listed = service.cli("jobs", "list", "--columns", "name,loss,gone")
    assert listed.stdout.split() == ["ID", "NAME", "loss", "gone", job_id, "whole", "0.5"]
    assert "no job in this list has gone; they have: " in listed.stderr
    clone = service.cli("jobs", "clone", job_id, "-d", "--param", "lr=0.5").stdout.split()[-1]
    ended = service.wait_ended(clone)
    assert (ended["params"]["lr"], ended["params"]["opt"]) == (0.5, "adam")
    ordered = service.cli("jobs", "list", "--sort=-params.lr", "--columns", "params.lr").stdout.split()
    assert ordered[:4] == ["ID", "lr", clone, "0.5"]
