"""Jobs on TPU VMs with production settings: the start-up script runs, and reaches Google as the worker does."""

import os
import subprocess
import time

import pytest
from support.deployment import wait_until
from support.google.production import GENERATIONS, PROJECT
from support.google.tpu_simulator import NO_RESOURCES, expect_launch_error

from core.catalogue.machine_types import Catalogue
from worker.attempt.scratch import read_missing
from worker.backends.base import WRAPPER
from worker.backends.tpu.vm import client

pytestmark = pytest.mark.integration

ON_VM = {"placement": "vm", "vm_poll_seconds": 0.05, "probe_seconds": 60.0, "unhealthy_seconds": 20.0}


@pytest.fixture
def make_vm_harness(make_google_harness):
    def make(machine_type="TPU v5e", **options):
        return make_google_harness(machine_type, **ON_VM | options)

    return make


def ended(place, handle):
    exit_ = place.wait(handle)
    place.backend.destroy(handle)
    return exit_


def artifact(spec, name):
    found = spec.artifacts / name
    return found.read_text() if found.exists() else None


def test_a_command_that_begins_slowly_on_its_vm_is_not_lost(make_vm_harness, tmp_path, monkeypatch):
    """On a busy machine the wrapper's file can stay empty for a while before its pid is in it."""
    slow = tmp_path / "run.sh"
    write = 'echo $$ 1<>"$gradient_control/started"'
    assert write in WRAPPER.read_text()
    slow.write_text(WRAPPER.read_text().replace(write, '{ sleep 1 && echo $$; } 1<>"$gradient_control/started"'))
    monkeypatch.setattr(client, "WRAPPER", slow)
    place = make_vm_harness()
    spec = place.spec("echo it ran; exit 3")
    assert ended(place, place.launch(spec)).code == 3
    assert place.output(spec) == b"it ran\n"


@pytest.mark.parametrize("way", ["queued", pytest.param("node", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "accelerator", "runtime", "zone"),
    [
        ("TPU v4", "v4-8", "tpu-ubuntu2204-base", "us-central2-b"),
        ("TPU v5e", "v5litepod-8", "v2-alpha-tpuv5-lite", "us-west4-a"),
        pytest.param("TPU v5p", "v5p-8", "v2-alpha-tpuv5", "us-east5-a", marks=pytest.mark.slow),
        ("TPU v6e", "v6e-8", "v2-alpha-tpuv6e", "us-east5-b"),
    ],
)
def test_a_generation_has_its_type_runtime_and_zone(make_vm_harness, google, name, accelerator, runtime, zone, way):
    """Placement is left to its default; zones in the order of their names are not in that of the types."""
    machine = Catalogue.load().get(name)
    place = make_vm_harness(machine.name, placement=None, provisioning=way, zones=sorted(GENERATIONS))
    spec = place.spec('echo "$TPU_NAME ${TPU_GRPC_URL-none} $TPU_MODEL_DIR"')
    handle = place.launch(spec)
    node = google.node()
    assert (node.accelerator_type, node.runtime_version) == (accelerator, runtime)
    assert node.name.startswith(f"projects/{PROJECT}/locations/{zone}/nodes/")
    assert not node.network_config.enable_external_ips
    assert ended(place, handle).code == 0
    bucket = f"{PROJECT}-gradient-{zone.rpartition('-')[0]}"
    assert place.output(spec).decode() == f"local none gs://{bucket}/jobs/{place.job_id}/model\n"
    assert len(google.made()) == 1
    assert (google.cloud.remaining_resources(), google.objects()) == (NO_RESOURCES, [])
    begin, end = google.cloud.bills[node.name.rpartition("/")[2]]
    assert end > begin


@pytest.mark.slow
def test_a_kill_does_not_cut_an_upload_off_that_takes_long(make_vm_harness, google):
    """Nor is it a silence; test_large_artifact.py shows that of one without a kill."""
    google.storage.faults.slow(8.0, method="UPLOAD", path="/model/big")
    place = make_vm_harness(vm_silent_seconds=4.0, vm_poll_seconds=0.4)
    spec = place.spec('echo up; echo x >"$GRADIENT_ARTIFACTS_DIR/big"')
    began = time.monotonic()
    handle = place.launch(spec)
    wait_until(lambda: any("%2Fmodel%2Fbig" in one for one in google.storage.requests), "the upload to begin")
    for grace in (True, False):
        place.backend.signal(handle, grace=grace)
    exit_ = ended(place, handle)
    assert (exit_.code, exit_.reason) == (0, None)
    assert time.monotonic() - began > 8.0
    assert artifact(spec, "big") == "x\n"


def test_a_vm_that_cannot_prepare_its_job_is_given_up_with_its_words(make_vm_harness, google):
    google.storage.faults.fail(403, 1000, method="GET", path="workspace.tar.gz")
    reason, detail = expect_launch_error(make_vm_harness(vm_start_seconds=2.0))
    assert reason == "launch_failed"
    assert "HTTP Error 403" in detail
    assert google.nodes == []


@pytest.mark.parametrize("saves", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_last_seconds_of_spot_capacity_are_the_jobs(make_vm_harness, google, saves):
    """Google runs the shutdown script when it takes a VM back; polls are slow, as by default."""
    place = make_vm_harness(spot=True, vm_poll_seconds=2.0, watch_seconds=600.0)
    save = 'trap "echo saved >\\"$GRADIENT_ARTIFACTS_DIR/model\\"; exit 0" TERM' if saves else "exit 0"
    spec = place.spec(f'{save}; : >"$GRADIENT_ARTIFACTS_DIR/up"; while :; do sleep 0.05; done')
    handle = place.launch(spec)
    node = google.node()
    disk = google.vms.disk(node.name)
    assert node.scheduling_config.spot
    # It waits for its end, or has ended by itself, and all is told.
    wait_until((disk / ("artifacts/up" if saves else "reported")).exists, "the job to be where it is to be")
    began = time.monotonic()
    script = ["bash", "-c", node.metadata["shutdown-script"]]
    subprocess.run(script, env={"GRADIENT_VM_PLACE": str(disk), "PATH": os.environ["PATH"]}, check=True)
    assert time.monotonic() - began < 30, "as long as Google allows"
    google.preempt()
    exit_ = ended(place, handle)
    assert (exit_.code, exit_.reason) == ((None, "preempted") if saves else (0, None))
    assert artifact(spec, "model") == ("saved\n" if saves else None)


def test_a_vm_that_restarts_is_no_fault_of_the_job(make_vm_harness, google):
    place = make_vm_harness()
    spec = place.spec("echo up; sleep 600")
    handle = place.launch(spec)
    wait_until(lambda: place.backend.ended(handle) or place.output(spec), "the job to run")
    node = google.node()
    google.vms.end_host(node.name, 0)  # as Google restarts a VM for maintenance
    (google.vms.disk(node.name) / "boot-id").write_text("of an earlier start")
    google.vms.start(node.name, node.metadata["startup-script"])
    exit_ = ended(place, handle)
    assert (exit_.reason, "restarted" in str(exit_)) == ("tpu_lost", True), exit_


def test_a_vm_is_not_billed_for_ever_for_artifacts_that_cannot_be_sent(make_vm_harness, google):
    google.storage.faults.fail(503, 10_000, method="UPLOAD", path="/model/big")
    place = make_vm_harness(vm_collect_seconds=3.0)
    spec = place.spec('echo kept >"$GRADIENT_ARTIFACTS_DIR/small"; echo x >"$GRADIENT_ARTIFACTS_DIR/big"')
    exit_ = ended(place, place.launch(spec))
    assert (exit_.code, exit_.reason, google.nodes) == (0, None, [])
    ([missing], _) = read_missing(spec.artifacts)
    assert "on the TPU VM, not sent in 3 s: 1 of the artifacts: 'big'" in missing.why
    assert artifact(spec, "small") == "kept\n"


def test_an_artifact_whose_name_google_refuses_is_named_and_all_others_are_sent(make_vm_harness):
    place = make_vm_harness(vm_collect_seconds=6.0)
    spec = place.spec('cd "$GRADIENT_ARTIFACTS_DIR"; echo x >"$(printf "a\\nb")"; mkdir sub; echo kept >sub/model')
    assert ended(place, place.launch(spec)).code == 0
    ([missing], _) = read_missing(spec.artifacts)
    assert "on the TPU VM, refused by the bucket: 1 of the artifacts: 'a\\nb'" in missing.why
    assert artifact(spec, "sub/model") == "kept\n"
