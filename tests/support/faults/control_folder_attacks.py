"""Jobs that attack the control folder between their wrapper and their worker, on any backend."""

from support.deployment import wait_until
from support.faults.fault_report import fault_trial

SECRET = "nobody may read this"
CONTROL_FOLDER_ATTACKS = {
    "exit is a link": 'rm -f "$control/exit"; ln -s {precious} "$control/exit"; say done',
    "exit is a fifo": 'rm -f "$control/exit"; mkfifo "$control/exit"; say done; kill -9 $PPID',
    "exit is huge": 'truncate -s 10G "$control/exit"; say done; kill -9 $PPID',
    "exit lies": 'echo 0 >"$control/exit"; say done',
    "log is gone": 'say done; rm "$control/log"; sleep 0.2',
    "log is a link": 'say done; rm "$control/log"; ln -s {precious} "$control/log"; sleep 0.2',
    "metrics are a fifo": 'rm -f "$GRADIENT_METRICS_FILE"; mkfifo "$GRADIENT_METRICS_FILE"; say done',
    "metrics are a link": 'rm -f "$GRADIENT_METRICS_FILE"; ln -s {precious} "$GRADIENT_METRICS_FILE"; say done',
    "started is a lie": 'echo 1 >"$control/started"; say done',
    "stopping is a link": 'ln -s {precious} "$control/stopping"; say done',
    "all is gone": 'say done; rm -rf "$control"',
}
"""Attacks on the control folder, by name."""


def run_control_folder_attacks(deployment, worker, recorded):
    """Let such jobs and honest ones run beside each other: only the first may come to harm."""
    with fault_trial("F26", deployment, judged=False) as one:
        one.tries = len(CONTROL_FOLDER_ATTACKS)
        precious = deployment.home / "precious"
        precious.write_text(SECRET)
        begin = 'control=$(dirname "$GRADIENT_METRICS_FILE"); '
        jobs = [
            deployment.submit(recorded(begin + what.replace("{precious}", str(precious)), 3))
            for what in CONTROL_FOLDER_ATTACKS.values()
        ]
        neighbours = [deployment.submit(recorded("say done; leave model weights", 5)) for _ in CONTROL_FOLDER_ATTACKS]
        for job_id in (*jobs, *neighbours):
            deployment.wait_ended(job_id)
        one.mark_lifted()
        for job_id in neighbours:
            job = deployment.job(job_id)
            assert (job["exitCode"], job["artifactsState"]) == (5, "complete")
            assert deployment.raw_log(job_id) == b"done\n"
        for job_id in jobs:
            assert SECRET.encode() not in deployment.raw_log(job_id)
        assert precious.read_text() == SECRET, "nobody followed a link and wrote"
        wait_until(lambda: not deployment.running() and not deployment.scratch(), "nothing to be left")
        assert deployment.containers() == []
    assert worker.alive()
