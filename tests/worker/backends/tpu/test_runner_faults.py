"""The runner on a TPU VM is killed, or loses the bucket, in the middle of a job: nothing is lost or doubled."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.deployment import wait_until
from support.google.tpu_simulator import NO_RESOURCES
from support.google.tpu_vm_deployment import find_runner

from worker.backends.base import WRAPPER
from worker.backends.tpu.vm import client

pytestmark = [pytest.mark.integration, pytest.mark.faults]

ON_VM = {"placement": "vm", "vm_poll_seconds": 0.05, "probe_seconds": 60.0}
COUNT = 'for n in $(seq 1 100); do echo "line $n"; sleep 0.01; done; echo kept >"$GRADIENT_ARTIFACTS_DIR/model"; exit 3'
COUNTED = b"".join(b"line %d\n" % number for number in range(1, 101))


def expect_one_whole_run(place, spec, handle, runs):
    exit_ = place.wait(handle)
    place.backend.destroy(handle)
    assert (exit_.code, exit_.reason) == (3, None), exit_
    assert place.output(spec) == COUNTED
    assert (spec.artifacts / "model").read_text() == "kept\n"
    assert runs.read_text() == "run\n"


@pytest.fixture
def slow_wrapper(tmp_path, monkeypatch):
    """A wrapper that waits between its lock and its pid."""
    slow = tmp_path / "run.sh"
    write = 'echo $$ 1<>"$gradient_control/started"'
    assert write in WRAPPER.read_text()
    slow.write_text(WRAPPER.read_text().replace(write, '{ sleep 2 && echo $$; } 1<>"$gradient_control/started"'))
    monkeypatch.setattr(client, "WRAPPER", slow)


@pytest.mark.parametrize(
    "moment",
    ["start", "collection", *(pytest.param(name, marks=pytest.mark.slow) for name in ("preparation", "run", "end"))],
)
@pytest.mark.usefixtures("slow_wrapper")
def test_a_runner_that_is_killed_continues(make_google_harness, google, tmp_path, moment):
    def requested(words):
        return any(words in request for request in google.storage.requests)

    def disk():
        return google.vms.disk(google.node().name)

    conditions = {
        "preparation": lambda: requested("workspace.tar.gz?alt=media"),
        "start": lambda: google.nodes and (disk() / "control" / "start.lock").exists(),
        "run": lambda: requested("log%2F0"),
        "collection": lambda: requested("model%2Fmodel"),
        "end": lambda: requested("%2Fleft"),
    }
    for method, path in (("GET", "workspace.tar.gz"), ("UPLOAD", "model/model"), ("UPLOAD", "/left")):
        google.storage.faults.slow(1.0, method=method, path=path)
    place = make_google_harness("TPU v5e", **ON_VM, vm_silent_seconds=60.0)
    runs = tmp_path / "runs"
    spec = place.spec(f"echo run >>{runs}; {COUNT}")
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(place.launch, spec)

        def reached():
            if launched.done():
                place.backend.ended(launched.result())
            return conditions[moment]()

        wait_until(reached, moment)
        find_runner(place.job_id).kill()
        expect_one_whole_run(place, spec, launched.result(), runs)
    assert google.cloud.remaining_resources() == NO_RESOURCES


@pytest.mark.parametrize("silent", [60.0, 1.0])
def test_a_vm_that_loses_its_link_to_the_bucket_for_a_while(make_google_harness, google, tmp_path, silent):
    """The job runs on, and all is sent later, unless the VM counts as lost by then: that ends the job."""
    place = make_google_harness("TPU v5e", **ON_VM, vm_silent_seconds=silent)
    runs = tmp_path / "runs"
    spec = place.spec(f"echo run >>{runs}; {COUNT}", stop_grace=1)
    handle = place.launch(spec)
    wait_until(lambda: place.backend.ended(handle) or place.output(spec), "its first line")
    google.storage.faults.fail(503, 1_000_000, method="UPLOAD", path="/hosts/0/")
    until = time.monotonic() + 4.0
    while (exit_ := place.backend.ended(handle)) is None and time.monotonic() < until:
        time.sleep(0.05)
    google.storage.faults.clear_faults()
    if silent > 4:
        assert exit_ is None
        expect_one_whole_run(place, spec, handle, runs)
    else:
        exit_ = place.wait(handle)
        place.backend.destroy(handle)
        assert (exit_.code, exit_.reason) == (None, "tpu_unhealthy"), exit_
        output = place.output(spec)
        assert output
        assert COUNTED.startswith(output)
    assert google.cloud.remaining_resources() == NO_RESOURCES
