"""Seconds for which TPUs and Google are waited for."""

WATCH_SECONDS = 5.0
"""Between looks at a TPU in use."""
TIMEOUT_SECONDS = 30.0
"""For one response of the TPU API; also the longest that a stop can be kept waiting."""
API_RETRY_SECONDS = 600.0
"""For an API that does not answer, or refuses to tell of a TPU that it has: an outage costs no place in a queue."""
GRANT_SECONDS = 150.0
"""For a permission that is refused: Google may take two minutes to apply a grant. Nothing is billed meanwhile."""
UNHEALTHY_SECONDS = 120.0
"""For a TPU that is unhealthy or in repair, and billed: long enough for a restart."""
VM_SILENT_SECONDS = 900.0
"""For the reports of a VM that runs its job, while Google calls it healthy: longer than most outages of a network."""
PROBE_SECONDS = 300.0
"""From READY to an open port or a VM's first report, the installation of TensorFlow included."""
VM_POLL_SECONDS = 2.0
"""Between looks at the reports of a TPU VM: the log is late by this."""
VM_START_SECONDS = 1800.0
"""From a VM's first report to the start of its job, the pull of an image of many gigabytes included."""
VM_COLLECT_SECONDS = 3600.0
"""For the artifacts of a VM after its job's end: 100 GB at 30 MB/s."""
VM_ABANDONED_SECONDS = 2700.0
"""Without any worker, until a VM saves its outputs and deletes itself: its token of an hour must still work."""
ORPHAN_GRACE_SECONDS = 600.0
"""Age at which a TPU without a record is deleted: younger ones may be about to be recorded."""
TOKEN_SECONDS = 3600
"""For which a job's access token for its own prefix is valid: Google's default."""
