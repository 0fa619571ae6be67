"""TPU jobs from the client to a simulated cloud and back, by a service in processes of its own."""

import json
import time

import pytest
from support.deployment import Deployment, wait_until
from support.google.tpu_faults import HANG, TpuFault
from support.google.tpu_simulator import NO_RESOURCES, ZONES, running_simulator, split_times, tpu_options


@pytest.fixture(scope="module")
def running():
    with running_simulator(create_seconds=0.3) as running:
        yield running


@pytest.fixture
def simulator(running):
    running.cloud.record.clear()
    running.cloud.room = 100
    return running


@pytest.fixture(scope="module")
def service(running, tmp_path_factory):
    made, constants = split_times(tpu_options(running, provision_timeout_seconds=600.0))
    settings = {
        f"GRADIENT_TPU__{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in made.items()
    }
    deployment = Deployment(
        tmp_path_factory.mktemp("service") / "home", GRADIENT_WORKER__SWEEP_SECONDS="0.5", **settings, **constants
    )
    deployment.start_up()
    yield deployment
    deployment.stop()


def nothing_left(simulator):
    wait_until(lambda: simulator.cloud.remaining_resources() == NO_RESOURCES, "everything to be gone")
    return True


def test_a_job_beside_its_device_is_entered(service, simulator):
    job_id = service.submit("echo up; exec sleep 600", machineType="TPU")
    wait_until(lambda: service.raw_log(job_id), "its first line")
    done = service.cli("jobs", "exec", job_id, "--", "sh", "-c", 'echo "$TPU_GRPC_URL"; exit 3', code=3)
    assert done.stdout == "grpc://{}:{}\n".format(*simulator.cloud.device)
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert nothing_left(simulator)


def test_one_command_gets_a_device_runs_beside_it_and_gives_it_back(service, simulator):
    create = ["jobs", "create", "--machineType", "TPU", "--workspace", "none"]
    command = 'echo "at $TPU_GRPC_URL"; echo model >"$GRADIENT_ARTIFACTS_DIR/model"; sleep 1; exit 3'
    began = time.monotonic()
    done = service.cli(*create, "--command", command, code=3)
    elapsed = time.monotonic() - began
    address, port = simulator.cloud.device
    assert done.stdout == f"at grpc://{address}:{port}\n"
    job = service.request("GET", "/jobs").json()["jobs"][0]
    assert (job["state"], job["backend"], job["simulated"]) == ("Failed", "tpu-simulator", True)
    place = {"zone": job["tpu"]["zone"], "name": f"gj-{job['id']}-1", "type": "v2-8"}
    assert job["tpu"] == place | {"grpcUrl": f"grpc://{address}:{port}", "nodes": []}
    shown = service.cli("jobs", "show", job["id"]).stdout
    assert f"{place['zone']}/{place['name']}, v2-8, grpc://{address}:{port}" in shown
    original = service.request("GET", f"/original/jobs/getJob?jobId={job['id']}").json()
    assert (original["tpuName"], original["tpuType"]) == (place["name"], "v2-8")
    assert original["tpuGrpcUrl"] == f"grpc://{address}:{port}"
    assert service.artifact(job["id"], "model") == b"model\n"
    said = [event for event in service.events(job["id"]) if event["kind"] == "phase"]
    assert [event["phase"] for event in said if event["phase"] == "waiting"]
    assert nothing_left(simulator)
    assert simulator.cloud.record == [
        ("created", f"queuedResources/gj-{job['id']}-1"),
        ("created", f"nodes/gj-{job['id']}-1"),
        ("deleted", f"nodes/gj-{job['id']}-1"),
        ("deleted", f"queuedResources/gj-{job['id']}-1"),
    ]
    second = 4.5 / 3600
    assert second <= job["cost"] <= second * elapsed, "it bills from READY to its deletion"


def test_whose_a_tpu_is_and_what_it_costs_is_listed(service, simulator):
    job_id = service.submit("sleep 600", machineType="TPU")
    wait_until(lambda: service.job(job_id)["state"] == "Running", "the job to run")
    [tpu] = service.request("GET", "/tpus").json()["tpus"]
    assert (tpu["jobId"], tpu["zone"], tpu["provisioning"]) == (job_id, ZONES[0], "queued")
    assert (tpu["state"], tpu["health"]) == ("READY", "HEALTHY")
    for page in ("/ui/machines", "/ui/tpus"):
        assert f"gj-{job_id}-1" in service.request("GET", page).text
    first = wait_until(lambda: service.job(job_id)["cost"], "it to cost something")
    wait_until(lambda: service.request("GET", "/tpus").json()["tpus"][0]["cost"] > first, "it to cost more")
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert nothing_left(simulator)
    wait_until(lambda: service.request("GET", "/tpus").json()["tpus"] == [], "the record to say so")


def test_a_job_that_waits_uses_no_slot_and_survives_its_worker(service, simulator):
    """One slot: other jobs run while a TPU is waited for, and a worker that takes over goes on waiting."""
    service.processes[-1].kill()
    service.start_up(GRADIENT_WORKER__SLOTS="1")
    simulator.cloud.room = 0
    waits = service.submit("echo ran", machineType="TPU")
    wait_until(lambda: service.job(waits)["phase"] == "waiting", "the wait")
    assert service.wait_ended(service.submit("echo meanwhile"))["state"] == "Stopped"
    assert service.job(waits)["state"] == "Pending"
    service.processes[-1].kill()
    service.start_up(GRADIENT_WORKER__SLOTS="1")
    assert service.wait_ended(service.submit("echo again"))["state"] == "Stopped"
    simulator.cloud.room = 1
    job = service.wait_ended(waits)
    assert (job["state"], job["attempt"], service.raw_log(waits)) == ("Stopped", 1, b"ran\n")
    assert nothing_left(simulator)
    assert len([name for what, name in simulator.cloud.record if what == "created"]) == 2


@pytest.mark.faults
def test_a_worker_killed_between_create_and_store_loses_no_tpu(service, simulator):
    """The request reached the cloud, its response reached nobody: the next worker finds it by its recorded name."""
    simulator.inject("CreateQueuedResource", TpuFault(seconds=HANG, done=True))
    job_id = service.submit("echo ran", machineType="TPU")
    wait_until(lambda: simulator.cloud.remaining_resources()[1], "the queued resource")
    service.processes[-1].kill()
    service.start_up()
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"], service.raw_log(job_id)) == ("Stopped", 1, b"ran\n")
    assert nothing_left(simulator)
    assert [name for what, name in simulator.cloud.record if what == "created"] == [
        f"queuedResources/gj-{job_id}-1",
        f"nodes/gj-{job_id}-1",
    ]


@pytest.mark.faults
def test_a_worker_killed_while_a_job_runs_beside_its_tpu_loses_no_line(service, simulator):
    job_id = service.submit('for n in $(seq 1 40); do echo "line $n"; sleep 0.1; done', machineType="TPU")
    wait_until(lambda: service.raw_log(job_id), "the first line")
    service.processes[-1].kill()
    service.start_up()
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 1), job["message"]
    assert service.raw_log(job_id) == b"".join(b"line %d\n" % number for number in range(1, 41))
    assert len([name for what, name in simulator.cloud.record if what == "created"]) == 2
    assert nothing_left(simulator)


@pytest.mark.parametrize("room", [0, 1], ids=["waiting", "running"])
def test_a_deleted_job_leaves_no_tpu(service, simulator, room):
    simulator.cloud.room = room
    job_id = service.submit("sleep 600", machineType="TPU", stopGrace=1)
    wait_until(lambda: simulator.cloud.remaining_resources()[1 - room], "its node or its request")
    service.request("DELETE", f"/jobs/{job_id}")
    wait_until(lambda: service.request("GET", f"/jobs/{job_id}").status_code == 404, "the job to be gone")
    assert nothing_left(simulator)
