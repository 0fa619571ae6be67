"""The dead-man's switch of nodes whose TPU is used from elsewhere: the programs of their start-up script are run."""

import json
import os
import re
import socket
import subprocess
import time

import pytest
from support.deployment import wait_until

from worker.backends.tpu.provisioning.startup_parts import write_programs

pytestmark = pytest.mark.integration

SECONDS = 1.0


@pytest.fixture
def watched(google, tmp_path):
    """Runs the watch of the only node, as its start-up script would; the node keeps connections on which nothing is
    said, as gRPC's server does for a minute."""
    started = []
    listener = socket.create_server(("127.0.0.1", 0))
    google.cloud.device = listener.getsockname()[:2]

    def watch():
        script = google.node().metadata["startup-script"]
        [settings] = re.findall(r"watch\.json\" <<'GRADIENT_WATCH'\n(.*)\nGRADIENT_WATCH", script)
        assert write_programs() in script
        subprocess.run(["bash", "-c", f"place={tmp_path}\n{write_programs()}"], check=True)
        device = {"port": google.cloud.device[1]}  # of the node that is simulated here
        (tmp_path / "watch.json").write_text(json.dumps(json.loads(settings) | device))
        own = {"GCE_METADATA_HOST": google.vms.environment["GCE_METADATA_HOST"], "GRADIENT_VM_RUN": "process"}
        command = ["python3", str(tmp_path / "runner.pyz"), "on_vm.connection_watch", str(tmp_path / "watch.json")]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ) | own))

    yield watch
    for process in started:
        process.kill()
        process.wait()
    listener.close()


@pytest.mark.parametrize("way", ["queued", pytest.param("node", marks=pytest.mark.slow)])
def test_a_node_without_a_worker_deletes_itself(make_google_harness, google, watched, way):
    place = make_google_harness(provisioning=way, vm_abandoned_seconds=SECONDS)
    _, handle = place.running("echo up; sleep 600")
    watched()
    until = time.monotonic() + 3 * SECONDS
    while time.monotonic() < until:
        assert place.backend.ended(handle) is None, "its worker follows it"
        time.sleep(0.1)
    place.backend.presence.end(handle["name"])  # as when the worker is killed
    wait_until(lambda: not google.nodes and not google.queued, "the node to delete itself")
    assert any(one.startswith("DELETE /v2/") for one in google.storage.requests)


def test_a_worker_that_takes_over_stays_connected(make_google_harness, google, watched):
    place = make_google_harness(vm_abandoned_seconds=SECONDS)
    _, handle = place.running("echo up; sleep 600")
    place.backend.presence.end(handle["name"])
    heir = place.new_instance()
    assert heir.ended(handle) is None
    watched()
    time.sleep(2 * SECONDS)
    assert google.nodes != []
    heir.destroy(handle)
    assert (google.nodes, heir.presence.until) == ([], {})
