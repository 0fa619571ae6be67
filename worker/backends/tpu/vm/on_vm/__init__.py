"""The part of a job's runner that only TPU VMs have, and programs for nodes that serve their TPU to jobs elsewhere.

It needs only Python's standard library and `worker.runner`. It uses tokens limited to the job's prefix. The worker
writes one to `token` long before the last expires; the first is read from a signed URL. Programs of the job get them
from a metadata server in the runner, as they would get the VM's account. That account needs no access to the bucket.
"""

CALL_SECONDS = 60.0
