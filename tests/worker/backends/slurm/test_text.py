"""Output of Slurm's commands, of several versions; reasons to wait as sentences."""

import re

import pytest
from support.deployment import wait_until
from support.slurm_cluster import SlurmCluster

from worker.backends.slurm import text
from worker.backends.slurm.reasons import waiting_sentence
from worker.backends.slurm.text import SlurmJob, SlurmNode

SQUEUE = """\
slurm_load_jobs: warning: the cluster is busy
5|PENDING|rq|2026-11-29T04:09:16||main|BeginTime|(null)
7|PENDING|res2|N/A||main|ReqNodeNotAvail, UnavailableNodes:n1|gradient-jobs /a|b
26_[1-5%1]|PENDING|arr|N/A||main|JobArrayTaskLimit|(null)
26_0|RUNNING|arr|2026-11-29T04:07:15|n[2-3]|main|None|(null)
and a comment of two lines
"""
NODES = {
    "20.11": "NodeName=g1 Arch=x86_64 CoresPerSocket=18 CPUAlloc=0 CPUTot=36 CPULoad=0.01 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:tesla:4(S:0-1) NodeAddr=g1 OS=Linux 5.10.0 #1 SMP Debian RealMemory=192000 "
    "State=MIXED ThreadsPerCore=1 Partitions=gpu,long Reason=bad disk [root@2026-11-29T04:07:15]\n",
    "22.05": "NodeName=g1 Arch=x86_64 CPUAlloc=4 CPUEfctv=32 CPUTot=36 CPULoad=5.22 AvailableFeatures=a,b "
    "ActiveFeatures=a Gres=gpu:2 NodeAddr=127.0.0.1 NodeHostName=vm RealMemory=8000 State=IDLE+DRAIN "
    "Partitions=gpu CfgTRES=cpu=36,mem=8000M,billing=36,gres/gpu=2 AllocTRES= CapWatts=n/a\n",
    "24.11": "NodeName=g1 Arch=aarch64 CPUEfctv=72 CPUTot=72 AvailableFeatures=(null) ActiveFeatures=(null) "
    "Gres=gpu:nvidia_a100_80gb_pcie:4(S:0,2),gpu:a100_3g.20gb:2,shard:8(S:0) NodeAddr=g1 RealMemory=515000 "
    "State=IDLE Partitions=gpu InstanceId=(null) ResumeAfterTime=None CfgTRES=cpu=72,gres/gpu=6\n",
    "25.11": "NodeName=g1 CPUEfctv=4 CPUTot=4 Gres=(null) RealMemory=8000 State=IDLE+CLOUD+POWERED_DOWN Partitions= \n",
}


def test_reads_the_queue() -> None:
    jobs = text.parse_squeue(SQUEUE)
    assert [job.id for job in jobs] == ["5", "7", "26_[1-5%1]", "26_0"]
    assert jobs[0] == SlurmJob("5", "PENDING", "rq", "2026-11-29T04:09:16", "", "main", "BeginTime")
    assert (jobs[1].reason, jobs[1].comment) == ("ReqNodeNotAvail, UnavailableNodes:n1", "gradient-jobs /a|b")
    assert (jobs[3].nodes, jobs[3].reason) == ("n[2-3]", "")


def test_reads_the_last_start_of_a_requeued_job_from_the_accounting() -> None:
    jobs = text.parse_sacct(
        "5|REQUEUED|a|2026-11-29T04:07:13|n2|main\n"
        "5|PENDING|a|Unknown|None assigned|main\n"
        "5.batch|CANCELLED|batch|2026-11-29T04:07:13|n2|\n"
        "26_0|CANCELLED by 1000|c|2026-11-29T04:07:15|n1|main\n"
    )
    assert [(job.id, job.state, job.name, job.ended_by) for job in jobs] == [
        ("5", "PENDING", "a", ""),
        ("26_0", "CANCELLED", "c", "1000"),
    ]
    assert [(job.start, job.nodes) for job in jobs] == [("", ""), ("2026-11-29T04:07:15", "n1")]


@pytest.mark.parametrize(
    ("version", "gpus", "cpus", "partitions", "features"),
    [
        ("20.11", (("tesla", 4),), 36, ("gpu", "long"), ()),
        ("22.05", (("", 2),), 32, ("gpu",), ("a",)),
        ("24.11", (("nvidia_a100_80gb_pcie", 4), ("a100_3g.20gb", 2)), 72, ("gpu",), ()),
        ("25.11", (), 4, (), ()),
    ],
)
def test_reads_a_node_of_each_version(
    version: str, gpus: tuple[object, ...], cpus: int, partitions: tuple[str, ...], features: tuple[str, ...]
) -> None:
    (node,) = text.parse_nodes(NODES[version])
    assert (node.gpus, node.cpus, node.partitions, node.features) == (gpus, cpus, partitions, features)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1-00:00:00", 86400), ("04:30:00", 16200), ("30:00", 1800), ("UNLIMITED", None), ("NONE", None), ("", None)],
)
def test_reads_limits(written: str, seconds: int | None) -> None:
    assert text.parse_limit(written) == seconds


def test_reads_a_real_cluster(slurm: SlurmCluster) -> None:
    nodes = text.parse_nodes(slurm.run("scontrol", "-o", "show", "node"))
    assert nodes[0] == SlurmNode("n1", "IDLE", ("main", "short"), 4, 8000, (("a100", 2),), ("fast",))
    assert [node.gpus for node in nodes] == [(("a100", 2),), (("a100", 2),), (("", 2),), ()]
    main, short, closed = text.parse_partitions(slurm.run("scontrol", "-o", "show", "partition"))
    assert [(part.name, part.root_only, part.max_seconds) for part in (main, short)] == [
        ("main", False, 86400),
        ("short", False, 600),
    ]
    assert closed.name == "closed"
    job = slurm.run("sbatch", "--parsable", "--wait", "--job-name", "a b", "--comment", "c|d=e f", "--wrap", "true")
    (listed,) = text.parse_squeue(slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", text.SQUEUE_FORMAT))
    values = (listed.id, listed.state, listed.name, listed.nodes, listed.comment)
    assert values == (job, "COMPLETED", "a b", "n1", "c|d=e f")


WAITS = {
    "PartitionDown": ("-p", "closed"),
    "PartitionTimeLimit": ("-p", "short", "-t", "60"),
    "PartitionNodeLimit": ("-p", "short", "-N", "2"),
    "JobHeldUser": ("--hold",),
    "BeginTime": ("--begin=now+1hour",),
    "Licenses": ("-L", "matlab"),
    "Dependency": ("--dependency=afterok:1",),
    "Resources": ("-w", "n1", "-c", "4"),
    "ReqNodeNotAvail: UnavailableNodes:n3": ("-w", "n3"),
    "Reservation": ("--reservation=later",),
    "QOSMaxGRESPerUser": ("--gres=gpu:1",),
}


def test_says_why_real_jobs_wait(slurm_accounting: SlurmCluster) -> None:
    cluster = slurm_accounting
    full = ("-w", "n1,n2", "-N", "2", "-n", "8", "--gres=gpu:1", "-L", "matlab")
    assert cluster.run("sbatch", "--parsable", *full, "--wrap", "sleep 1000") == "1"
    wait_until(lambda: cluster.run("squeue", "-h", "-o", "%T") == "RUNNING", "the first job to run")
    cluster.run("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    reservation = ("starttime=now+1hour", "duration=60", "nodes=n4", "reservationname=later")
    cluster.run("scontrol", "create", "reservation", *reservation, f"users={cluster.user}")
    cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=2")
    wanted = {cluster.run("sbatch", "--parsable", *options, "--wrap", "true"): word for word, options in WAITS.items()}

    def sentences() -> dict[str, str]:
        listed = text.parse_squeue(cluster.run("squeue", "-h", "-o", text.SQUEUE_FORMAT))
        return {job.id: waiting_sentence(job) for job in listed}

    def is_said() -> bool:
        said = sentences()
        return all(f"({word})" in said[job] for job, word in wanted.items())

    wait_until(is_said, f"{wanted} to be said, not {sentences()}")
    by_word = {word: sentences()[job] for job, word in wanted.items()}
    assert by_word["PartitionDown"].startswith("The partition 'closed' is closed")
    assert by_word["QOSMaxGRESPerUser"].startswith("The job's QOS has reached its limit of GPUs for one user (QOS")
    assert re.search(r"expects it to start at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.$", by_word["BeginTime"])


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("AssocGrpGRES", "The account as a whole has reached its limit of GPUs (AssocGrpGRES)."),
        ("AssocGrpGRESMinutes", "The account as a whole has reached its limit of GPU minutes (AssocGrpGRESMinutes)."),
        (
            "QOSMaxWallDurationPerJobLimit",
            "The job requests more time in one job than its QOS allows: request less (QOSMaxWallDurationPerJobLimit).",
        ),
        (
            "QOSMinCpuNotSatisfied",
            "The job's QOS requires that a job requests more CPUs (QOSMinCpuNotSatisfied).",
        ),
        (
            "ReqNodeNotAvail, Reserved for maintenance",
            "A node that the job requires is not available (ReqNodeNotAvail: Reserved for maintenance).",
        ),
        ("Burst_Of_Novelty", "Slurm says why the job waits: Burst_Of_Novelty."),
        ("", "Slurm has not planned the job yet."),
    ],
)
def test_says_why_a_job_waits(reason: str, sentence: str) -> None:
    assert waiting_sentence(SlurmJob("7", "PENDING", "x", partition="gpu", reason=reason)) == sentence


def test_says_the_same_while_an_expected_start_moves_within_a_minute() -> None:
    starts = ("2026-11-29T04:08:01", "2026-11-29T04:08:55", "2026-11-29T04:09:00")
    said = {waiting_sentence(SlurmJob("7", "PENDING", "x", start=start, reason="Priority")) for start in starts}
    assert len(said) == 1
    assert ":09:00 UTC." in said.pop()


def test_promises_no_start_of_a_held_job() -> None:
    job = SlurmJob("7", "PENDING", "x", start="2026-11-29T04:08:55", reason="JobHeldAdmin")
    assert waiting_sentence(job) == "An administrator of the cluster holds the job (JobHeldAdmin)."
