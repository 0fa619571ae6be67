"""A service on the login node of a Slurm cluster, by two commands."""

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.usefixtures("slurm")
def test_two_commands_hand_jobs_over_to_the_cluster(deployment):
    refused = deployment.start("up", "--port", "0", "--slurm")
    assert refused.wait() != 0
    assert "machines add --slurm" in refused.read_log()
    assert deployment.start("machines", "add", "--slurm", "--gpu", "A100").wait() == 0
    up = deployment.start_up("--slurm")
    assert "of the Slurm cluster: " in up.read_log()
    done = deployment.cli(
        "jobs", "create", "--workspace", "none", "--command", "echo in $SLURM_JOB_PARTITION; exit 3", code=None
    )
    assert "in main" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 3
    refused = deployment.cli(
        "jobs", "create", "--machineType", "V100", "--workspace", "none", "--command", "true", code=None
    )
    assert "There is no machine type 'V100'" in refused.stderr
