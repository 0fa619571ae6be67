"""The TPU examples on a simulated cloud, by the commands of their READMEs."""

import re
import shlex
import subprocess

import pytest
from support.deployment import CLI_PROGRAM, Deployment
from support.job_packages import ROOT, share_environments

# What each prints, and the artifacts that it leaves.
PROGRAMS = {
    "tpu-test": ("Done!", ["result.txt"]),
    "tpu-jax": ("y = 3.00 x + 2.00", ["weights.npz"]),
    "tpu-torch": ("y = 3.00 x + 2.00", ["weights.pt"]),
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A server as docs/tpu.md starts it, with its sandboxes and simulated VMs."""
    deployment = Deployment(tmp_path_factory.mktemp("examples") / "home")
    settings = {"GRADIENT_PROCESS__SANDBOX": "require", **share_environments(deployment.home)}
    deployment.wait_ready(deployment.start("up", "--port", "0", "--tpu-simulator", **settings))
    yield deployment
    deployment.stop()


@pytest.mark.parametrize(
    ("example", "_packages"),
    [
        ("tpu-test", "trainer"),
        ("tpu-jax", "tpu-jax"),
        ("tpu-torch", "tpu-torch"),
    ],
)
def test_the_commands_of_an_example_run_it_on_a_simulated_tpu(service, example, _packages):
    folder = ROOT / "examples" / example
    words, artifacts = PROGRAMS[example]
    commands = re.findall(r"^gradient-cli (jobs create .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        done = subprocess.run(
            [str(CLI_PROGRAM), *shlex.split(command)],
            cwd=folder,
            env=service.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert words in done.stdout
        job = service.request("GET", "/jobs?limit=1").json()["jobs"][0]
        assert [file["path"] for file in service.artifacts(job["id"])["files"]] == artifacts
