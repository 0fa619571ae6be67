"""Nodes of one job on two hosts: two workers that share no folder, each with an address of its own."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.all_reduce import ALL_REDUCE
from support.deployment import Deployment, wait_until
from support.far_worker import FarWorker

pytestmark = pytest.mark.usefixtures("hosts")

REPAIRS = {"GRADIENT_WORKER__SWEEP_SECONDS": "0.5", "GRADIENT_WORKER__LOST_AFTER_SECONDS": "6"}
ADDRESSES = {"ada": "127.0.0.1", "bob": "127.0.0.2"}


def start_host(deployment, folder, name, **settings):
    url = deployment.cli_json["url"]
    host = FarWorker(
        deployment,
        folder / name,
        url,
        name,
        GRADIENT_WORKER__SLOTS="1",
        GRADIENT_WORKER__NODES_ADDRESS=ADDRESSES[name],
        **REPAIRS,
        **settings,
    )
    return host, host.start()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **REPAIRS)
    deployment.start_api()
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def hosts(service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    return {name: start_host(service, folder, name) for name in ADDRESSES}


def create(service, *words, folder="/", code=0):
    made = service.cli("jobs", "create", "--machineType", "CPU", *words, "--json", folder=folder, code=code)
    return json.loads(made.stdout)["arrayId"] if code == 0 else made.stderr


def listed(service, array_id):
    return json.loads(service.cli("jobs", "show", array_id, "--json").stdout)["jobs"]


def members(service, array_id):
    return [service.wait_ended(member["id"]) for member in listed(service, array_id)]


def wait_until_requeued(service, array_id):
    for job in listed(service, array_id):
        wait_until(lambda job=job: "requeued" in [one["kind"] for one in service.events(job["id"])], "the requeue")


def worker_of(service, job):
    """The worker for which it was claimed last; its host has the same name."""
    return [one["message"].split()[-1] for one in service.events(job["id"]) if one["kind"] == "claimed"][-1]


def test_nodes_of_two_hosts_connect_and_their_logs_and_artifacts_are_at_the_service(service, tmp_path):
    (tmp_path / "main.py").write_text(ALL_REDUCE)
    array_id = create(service, "--nodes", "2", "--command", "python main.py", folder=tmp_path)
    ranks = members(service, array_id)
    logs = [service.raw_log(job["id"]).decode() for job in ranks]
    assert [job["reason"] for job in ranks] == ["completed"] * 2, logs
    assert logs == ["sum 3 after rank 1\n", "sum 3 after rank 0\n"]
    assert {worker_of(service, job) for job in ranks} == {"ada", "bob"}
    assert [service.artifact(job["id"], "sum.txt") for job in ranks] == [b"3"] * 2


def test_the_failure_of_a_rank_ends_that_of_another_host(service):
    array_id = create(service, "--nodes", "2", "--workspace", "none", "--command", "[ $RANK = 1 ] && exit 3; sleep 600")
    zero, one = members(service, array_id)
    assert (one["reason"], one["exitCode"]) == ("exit_nonzero", 3)
    assert zero["reason"] == "node_failed"
    assert f"Rank 1, on {worker_of(service, one)}: " in zero["message"]


def post(service, nodes, command, **more):
    body = {"machineType": "CPU", "command": command, "nodes": nodes} | more
    return service.request("POST", "/jobs", json=body).json()["arrayId"]


def test_jobs_of_the_same_moment_run_one_after_the_other_also_behind_those_without_room(service, tmp_path):
    (tmp_path / "main.py").write_text(ALL_REDUCE)
    many = [post(service, 3, "true", waitAnyway=True) for _ in range(11)]
    with ThreadPoolExecutor(3) as pool:
        arrays = list(pool.map(lambda _: post(service, 2, f"python3 {tmp_path}/main.py"), range(3)))
    for array_id in arrays:
        assert [(job["reason"], job["attempt"]) for job in members(service, array_id)] == [("completed", 1)] * 2
    service.cli("jobs", "stop", *many)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--nodes", "3"), "3 nodes, but the machines that can share a job's nodes have room for only 2"),
        (("--nodes", "2", "--network", "none"), "no machine has room for more than 1"),
    ],
)
def test_nodes_that_two_hosts_cannot_have_are_refused(service, words, why):
    assert why in create(service, *words, "--workspace", "none", "--command", "true", code=4)


@pytest.mark.slow
def test_a_host_that_is_lost_before_it_starts_its_rank_leaves_nothing_waiting_and_nothing_twice(service, hosts):
    host, worker = hosts["bob"]
    worker.kill()  # its claims count on it until it is missed
    command = 'echo "attempt $GRADIENT_ATTEMPT"'
    array_id = create(service, "--nodes", "2", "--workspace", "none", "--maxAttempts", "2", "--command", command)

    wait_until(lambda: [job["attempt"] for job in listed(service, array_id)] == [1, 1], "the claim")
    wait_until_requeued(service, array_id)
    hosts["bob"] = host, host.start()
    ranks = members(service, array_id)
    assert [(job["state"], job["attempt"], job["machineFaults"]) for job in ranks] == [("Stopped", 2, 1)] * 2
    assert [service.raw_log(job["id"]) for job in ranks] == [b"attempt 2\n"] * 2


@pytest.mark.slow
def test_a_host_that_takes_no_nodes_any_more_once_it_has_been_given_one_is_a_fault_of_the_machine(service, hosts):
    host, worker = hosts["bob"]
    worker.kill()
    worker = host.start(GRADIENT_FAILPOINT="claimed")
    array_id = post(service, 2, "true")
    worker.wait()
    worker = host.start(GRADIENT_WORKER__NODES_ADDRESS="192.0.2.77")  # no address of this machine
    wait_until_requeued(service, array_id)
    worker.kill()
    hosts["bob"] = host, host.start()
    assert [(job["reason"], job["machineFaults"]) for job in members(service, array_id)] == [("completed", 1)] * 2


@pytest.mark.slow
def test_a_host_that_is_lost_while_it_stores_outputs_does_not_wait_for_a_rank_that_has_ended(service, hosts):
    host, worker = hosts["bob"]
    worker.kill()
    worker = host.start(GRADIENT_FAILPOINT="collected")
    array_id = post(service, 2, "true", maxAttempts=2)
    worker.wait()
    ends = [(worker_of(service, job), job["state"], job["reason"]) for job in members(service, array_id)]
    assert sorted(ends) == [("ada", "Stopped", "completed"), ("bob", "Failed", "worker_lost")]
    hosts["bob"] = host, host.start()
