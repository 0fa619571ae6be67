"""TensorBoard opened with the client, and the end of its process with the service."""

import base64
import json

import httpx
import psutil
import pytest
from support.deployment import wait_until
from support.event_files import write_scalars


def processes():
    return {
        one.pid for one in psutil.process_iter(["cmdline"]) if "board_program.py" in " ".join(one.info["cmdline"] or [])
    }


@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_the_client_opens_one_that_a_kill_of_the_service_ends(deployment, tmp_path, sandbox):
    before = processes()
    service = deployment.start_up(GRADIENT_PROCESS__SANDBOX=sandbox)
    write_scalars(tmp_path / "run", "loss", [1.0])
    [events] = (tmp_path / "run").iterdir()
    content = base64.b64encode(events.read_bytes()).decode()
    command = (
        f'mkdir "$GRADIENT_ARTIFACTS_DIR/run"; echo {content} | base64 -d >"$GRADIENT_ARTIFACTS_DIR/run/{events.name}"'
    )
    job_id = deployment.submit(command, name="trained")
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    opened = json.loads(deployment.cli("jobs", "tensorboard", job_id, "--json").stdout)
    assert opened["runs"] == [f"trained-{job_id}"]
    with httpx.Client(timeout=60) as visitor:
        visitor.get(opened["url"]).raise_for_status()
        board = opened["url"].partition("?")[0]
        wait_until(lambda: visitor.get(board + "data/runs").json() == [f"trained-{job_id}/run"], "the run")
    assert processes() - before
    service.kill()
    wait_until(lambda: not processes() - before, "the end of TensorBoard")
