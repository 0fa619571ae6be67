"""Jobs over several nodes, from the command line to their ends: they start together, meet, and end together."""

import json
import subprocess

import pytest
from support.all_reduce import ALL_REDUCE
from support.deployment import CLI_PROGRAM, Deployment, wait_until


@pytest.fixture(scope="module", params=["sandbox", pytest.param("plain processes", marks=pytest.mark.slow)])
def service(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("service") / "home"
    settings = {"GRADIENT_PROCESS__SANDBOX": "require"} if request.param == "sandbox" else {}
    if settings:
        request.getfixturevalue("bubblewrap")
    deployment = Deployment(home, **settings)
    deployment.start_api()
    for name in ("w1", "w2"):  # of one host, with two slots each
        deployment.start_worker(name, GRADIENT_WORKER__SLOTS="2")
    wait_until(lambda: len(deployment.request("GET", "/workers").json()["workers"]) == 2, "both workers")
    yield deployment
    deployment.stop()


@pytest.fixture
def cli(service, tmp_path):
    (tmp_path / ".gradient.toml").write_text('machineType = "CPU"\n')
    (tmp_path / "main.py").write_text(ALL_REDUCE)

    def cli(*arguments):
        return subprocess.run(
            [str(CLI_PROGRAM), *arguments],
            env=service.client_environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return cli


def test_nodes_of_two_workers_meet_and_their_logs_and_artifacts_are_kept_by_rank(cli, tmp_path):
    made = cli("jobs", "create", "--nodes", "3", "--command", "python main.py", "--name", "reduce")
    assert made.returncode == 0, made.stderr
    listed = json.loads(cli("jobs", "list", "--json").stdout)["jobs"]
    first = next(job for job in listed if job["name"] == "reduce")
    assert (first["nodes"], first["arrayMembers"]) == (3, {"Stopped": 3})
    array_id = first["arrayId"]
    said = [f"[{rank}] sum 6 after rank {(rank - 1) % 3}" for rank in range(3)]
    assert cli("jobs", "logs", array_id).stdout.splitlines() == said
    assert cli("jobs", "logs", array_id, "--rank", "1").stdout == "sum 6 after rank 0\n"
    assert f"rank: {array_id} has 3 nodes, of rank 0 to 2" in cli("jobs", "logs", array_id, "--rank", "3").stderr
    assert "has no nodes" in cli("jobs", "logs", f"{array_id}_1", "--rank", "1").stderr
    got = cli("jobs", "artifacts", "get", array_id, "--to", "got")
    assert got.returncode == 0, got.stderr
    assert [(tmp_path / "got" / str(rank) / "sum.txt").read_text() for rank in range(3)] == ["6"] * 3


def members(cli, array_id):
    return json.loads(cli("jobs", "show", array_id, "--json").stdout)["jobs"]


def create(cli, command, *options):
    made = cli("jobs", "create", "--workspace", "none", "--detach", "--command", command, *options)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_the_failure_of_one_rank_ends_all(cli):
    """One that has succeeded already keeps its exit code."""
    array_id = create(cli, "case $RANK in 0) sleep 600;; 1) sleep 1; exit 3;; esac", "--nodes", "3")
    assert cli("jobs", "wait", array_id).returncode == 1
    zero, one, two = members(cli, array_id)
    assert (one["reason"], one["exitCode"]) == ("exit_nonzero", 3)
    assert (two["reason"], two["exitCode"]) == ("completed", 0)
    assert zero["reason"] == "node_failed"
    assert "Rank 1, on " in zero["message"]
    assert "exit code 3" in zero["message"]
    shown = cli("jobs", "show", array_id)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [row[:2] for row in rows if row[:1] in ([zero["id"]], [one["id"]], [two["id"]])] == [
        [job["id"], rank] for job, rank in ((zero, "0"), (one, "1"), (two, "2"))
    ]
    assert zero["message"] in shown.stderr
    assert f"0 of 3 nodes, {array_id}" in cli("jobs", "show", f"{array_id}_0").stdout


def test_all_ranks_run_again_also_one_that_had_succeeded(cli):
    command = "echo attempt $GRADIENT_ATTEMPT; test $RANK = 0 || test $GRADIENT_ATTEMPT = 2"
    array_id = create(cli, command, "--nodes", "2", "--maxAttempts", "2")
    assert cli("jobs", "wait", array_id).returncode == 0
    assert [(job["attempt"], job["state"]) for job in members(cli, array_id)] == [(2, "Stopped")] * 2
    lines = cli("jobs", "logs", array_id).stdout.splitlines()
    assert sorted(lines) == [f"[{rank}] attempt {attempt}" for rank in (0, 1) for attempt in (1, 2)]


def test_the_preemption_of_one_rank_is_one_of_all(cli):
    array_id = create(cli, "sleep 600", "--nodes", "2", "--maxAttempts", "2", "-e", "SIMULATE_PREEMPT_AFTER=0.5")
    wait_until(lambda: all(job["attempt"] > 1 for job in members(cli, array_id)), "the second attempt")
    assert cli("jobs", "stop", f"{array_id}_1", "--now").returncode == 0
    assert cli("jobs", "wait", array_id).returncode == 1
    first, second = members(cli, array_id)
    assert first["state"] == second["state"] == "Cancelled"
    assert first["attempt"] == second["attempt"]
    assert first["machineFaults"] == second["machineFaults"] >= 1


def test_nodes_wait_until_all_have_room_and_say_so(cli):
    small = create(cli, "sleep 600", "--array", "0-1")
    wait_until(lambda: {job["state"] for job in members(cli, small)} == {"Running"}, "the small jobs to run")
    array_id = create(cli, "true", "--nodes", "3")
    first = members(cli, array_id)[0]
    assert first["reason"] == "waiting_for_nodes"
    assert first["message"].startswith("The job needs 3 slots at once; 2 are free on ")
    assert {job["state"] for job in members(cli, array_id)} == {"Pending"}
    after = create(cli, "true", "--name", "after")
    assert cli("jobs", "wait", after).returncode == 0, "a job behind them uses what is free"
    assert {job["state"] for job in members(cli, array_id)} == {"Pending"}
    assert cli("jobs", "stop", f"{small}_0", "--now").returncode == 0
    assert cli("jobs", "wait", array_id).returncode == 0
    assert cli("jobs", "stop", small, "--now").returncode == 0


def test_stopping_one_rank_stops_all(cli):
    array_id = create(cli, "sleep 600", "--nodes", "2")
    wait_until(lambda: {job["state"] for job in members(cli, array_id)} == {"Running"}, "both ranks to run")
    assert cli("jobs", "stop", f"{array_id}_1", "--now").returncode == 0
    assert cli("jobs", "wait", array_id).returncode == 1
    assert [(job["state"], job["reason"]) for job in members(cli, array_id)] == [("Cancelled", "stopped_by_user")] * 2
    queued = create(cli, "true", "--nodes", "2", "--after", array_id + ":ended")
    assert cli("jobs", "wait", queued).returncode == 0


def test_a_copy_has_all_nodes(cli):
    array_id = create(cli, 'test "$RANK" = 0', "--nodes", "2")
    assert cli("jobs", "wait", array_id).returncode == 1
    copied = cli("jobs", "clone", array_id, "--command", 'echo "$RANK of $WORLD_SIZE"', "--detach")
    assert copied.returncode == 0, copied.stderr
    assert cli("jobs", "wait", copied.stdout.strip()).returncode == 0
    assert cli("jobs", "logs", copied.stdout.strip()).stdout == "[0] 0 of 2\n[1] 1 of 2\n"
    for words in (("clone", f"{array_id}_1"), ("clone", array_id, "--onlyFailed")):
        refused = cli("jobs", *words)
        assert refused.returncode != 0
        assert "cloned together" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--nodes", "5"),
            "5 nodes, which must start together on one machine, but no machine has room for more than 4 (",
        ),
        (("--nodes", "2", "--array", "0-1"), "An array cannot have nodes."),
        (("--nodes", "2", "--machineType", "TPU"), "are the hosts of its slice"),
        (("--nodes", "2", "--ports", "8080"), "Nodes have no ports on their host."),
        (("--nodes", "0"), "nodes"),
    ],
)
def test_what_cannot_be_nodes_is_refused(cli, options, message):
    refused = cli("jobs", "create", "--workspace", "none", "--command", "true", *options)
    assert refused.returncode != 0
    assert message in refused.stderr
