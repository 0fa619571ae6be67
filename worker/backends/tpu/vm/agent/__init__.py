"""A program that runs one job on a TPU VM and writes what becomes of it to the bucket; Python's own library is enough.

It acts by tokens that are limited to the job's prefix. The worker writes one to `token` long before the last expires;
the first is found at a signed address. Programs of the job get them from a metadata server, which the agent is, as they
would get the VM's account. That account needs no right in the bucket.

Below the attempt's prefix it finds `job.json` and `workspace.tar.gz`, and `wish` (`stop` or `kill`) once the job is to
end. It writes `status` (how far it is), `log/OFFSET` and `metrics.jsonl/OFFSET` (what the job wrote, in parts that are
named by where they begin and never replaced), `alive` (a count), and at last `exit`. What the job leaves in its folder
of artifacts goes where its model goes. Begun again, it goes on where it was.
"""

PART_BYTES = 4 * 1024**2
FOLLOWED = ("log", "metrics.jsonl")
BEAT_STEPS = 5
"""Steps from one sign of life to the next."""
FOLDERS = {
    "workspace": "/paperspace",
    "artifacts": "/artifacts",
    "storage": "/storage",
    "control": "/.gradient/control",
}
CALL_SECONDS = 60.0
