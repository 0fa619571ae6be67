"""Runs one job on a TPU VM and reports on it in the bucket; needs only Python's standard library.

It uses tokens limited to the job's prefix. The worker writes one to `token` long before the last expires; the first is
read from a signed URL. Programs of the job get them from a metadata server in the agent, as they would get the VM's
account. That account needs no access to the bucket.

Below the attempt's prefix it reads `job.json` and `workspace.tar.gz`, and `stop_request` (`stop` or `kill`) once the
job is to end. It writes `status` (the phase), `log/OFFSET` and `metrics.jsonl/OFFSET` (the job's output, in parts named
by their start offset and never replaced), `heartbeat` (a counter, and whether the command has ended), and finally
`exit`. The job's artifacts go to its model folder. After a restart the agent continues where it was.

On a slice each host has an agent. All but the workspace, the tokens and `stop_request` is then below `hosts/RANK/`, and
the job starts when the worker, which waits until every host is prepared, has written `start`.
"""

from http.client import HTTPException

PART_BYTES = 4 * 1024**2
STREAMED_FILES = ("log", "metrics.jsonl")
HEARTBEAT_STEPS = 5  # steps between two heartbeats
FOLDERS = {
    "workspace": "/paperspace",
    "artifacts": "/artifacts",
    "storage": "/storage",
    "control": "/.gradient/control",
}
CALL_SECONDS = 60.0
NETWORK_ERRORS = (OSError, HTTPException)
"""Errors of urllib's requests; the second, such as of a response that was cut off, is not an OSError."""
