"""Slurm's commands over a real ssh, from a host outside of the cluster that has its file system."""

import pytest

from core.settings.slurm import SlurmSettings
from worker.backends.slurm.commands import Commands, SlurmError

pytestmark = pytest.mark.integration


@pytest.fixture
def commands(slurm, ssh_server):  # noqa: ARG001 - the cluster first: its login node leads there
    return Commands(SlurmSettings(enabled=True, ssh=ssh_server.name))


def test_all_commands_use_one_connection(commands, ssh_server, slurm, tmp_path):
    output = tmp_path / "it's here"
    job = commands.run("sbatch", "--parsable", "--wait", f"--output={output}", "--wrap", 'echo "$SLURM_JOB_ID; a b"')
    assert output.read_text() == f"{job.strip()}; a b\n"
    assert commands.run("squeue", "-h", "-u", commands.user) == ""
    assert slurm.run("scontrol", "show", "job", "-o", job.strip()).count(f"UserId={commands.user}") == 1
    assert ssh_server.read_log().count("Accepted publickey") == 1


def test_what_slurm_refuses_is_no_failure_of_ssh(commands):
    with pytest.raises(SlurmError, match="invalid partition") as error:
        commands.run("sbatch", "--partition=nowhere", "--wrap", "true")
    assert not error.value.unanswered


def test_a_login_node_that_is_away_has_not_answered(commands, ssh_server):
    ssh_server.disconnect()
    ssh_server.stop()
    with pytest.raises(SlurmError, match="refused") as error:
        commands.run("squeue")
    assert error.value.unanswered
    ssh_server.start()
    assert commands.run("squeue", "-h") == ""


def test_a_host_with_another_key_gets_no_command(commands, ssh_server, tmp_path):
    ssh_server.disconnect()
    ssh_server.know_key(tmp_path / "sshd" / "user_key.pub")
    with pytest.raises(SlurmError, match="Host key verification failed") as error:
        commands.run("squeue")
    assert error.value.unanswered
    assert "Accepted publickey" not in ssh_server.read_log()
