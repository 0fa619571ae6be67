"""Slurm's commands over a real ssh, from a host outside of the cluster that has its file system."""

import pytest
from support.backend_harness import BackendHarness

from core.settings.slurm import SlurmSettings
from worker.backends.slurm.commands import Commands, SlurmError
from worker.runner.streams import ExecRequest

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


@pytest.mark.slow
def test_a_job_is_submitted_followed_entered_and_stopped(slurm, ssh_server, tmp_path):
    place = BackendHarness("slurm", tmp_path / "home", slurm=SlurmSettings(enabled=True, ssh=ssh_server.name))
    spec, handle = place.running("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    stream = place.backend.run_in_job(handle, ExecRequest("s1", ("sh", "-c", 'echo "in $PWD"; exit 3'), None))
    assert b"".join(data for number, data in stream.outputs() if number == 1).decode() == f"in {spec.workspace}\n"
    assert stream.exit_code() == 3
    stream.close()
    place.backend.signal(handle, grace=True)
    assert place.wait(handle).code == 0
    assert place.output(spec).endswith(b"saved\n")
    place.clear()
    assert slurm.run("squeue", "-h") == ""
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
