"""The cluster that tests of Slurm run on does what they expect of one."""

from pathlib import Path

from support.deployment import wait_until
from support.slurm_cluster import NODES, SlurmCluster, running_cluster

LONG = ("--wrap", "sleep 1000")


def _state(cluster: SlurmCluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-j", job, "-o", "%T")


def test_runs_jobs_on_gpus_and_over_several_nodes(slurm: SlurmCluster) -> None:
    job = slurm.run("sbatch", "--parsable", "--wait", "--gres=gpu:a100:2", "--wrap", "echo $CUDA_VISIBLE_DEVICES")
    assert (slurm.folder / f"slurm-{job}.out").read_text() == "0,1\n"
    assert set(slurm.run("srun", "-N", "4", "sh", "-c", "echo $SLURMD_NODENAME").split()) == {*NODES}
    assert slurm.try_run("srun", "--gres=gpu:a100:3", "true").returncode != 0
    assert "disabled" in slurm.try_run("sacct").stderr


def test_jobs_outlive_daemons_and_end_with_their_node(slurm: SlurmCluster) -> None:
    job, other = (slurm.run("sbatch", "--parsable", "--no-requeue", "-w", node, *LONG) for node in ("n1", "n2"))
    wait_until(lambda: _state(slurm, job) == _state(slurm, other) == "RUNNING", "the jobs to run")
    for name in ("slurmctld", "n1"):
        slurm.end(name)
        slurm.start_daemon(name)
    wait_until(lambda: _state(slurm, job) == "RUNNING", "the job to be there again")
    slurm.fail_node("n1")
    wait_until(lambda: slurm.node_states()["n1"].startswith("down"), "the node to be down")
    assert "JobState=NODE_FAIL" in slurm.run("scontrol", "show", "job", "-o", job)
    assert _state(slurm, other) == "RUNNING"


def test_a_frozen_controller_does_not_answer(slurm: SlurmCluster) -> None:
    slurm.freeze("slurmctld")
    assert slurm.node_states() == {}
    slurm.thaw("slurmctld")
    slurm.wait_until_ready()


def test_accounting_keeps_jobs_and_limits(slurm_accounting: SlurmCluster) -> None:
    cluster = slurm_accounting
    job = cluster.run("sbatch", "--parsable", "--wait", "--wrap", "true")
    show = ("sacct", "-n", "-X", "--parsable2", "-j", job, "--starttime=now-1hour", "-o", "JobID,State")
    wait_until(lambda: cluster.run(*show) == f"{job}|COMPLETED", "the job to be in the accounting")
    cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=1")
    _, waiting = (cluster.run("sbatch", "--parsable", "--gres=gpu:1", *LONG) for _ in range(2))
    reason = ("squeue", "-h", "-j", waiting, "-o", "%r")
    wait_until(lambda: cluster.run(*reason) == "QOSMaxGRESPerUser", "the limit to be the reason")


def test_leaves_nothing(tmp_path: Path) -> None:
    with running_cluster() as cluster, running_cluster() as second:
        beat = tmp_path / "beat"
        cluster.run("sbatch", "--wrap", f"touch {beat}; setsid sleep 1000")
        wait_until(beat.exists, "the job to run")
        second.wait_until_ready()
        cluster.freeze("n1")
    assert not cluster.folder.exists()
    assert cluster.processes() == []
