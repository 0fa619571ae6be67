from dataclasses import dataclass
from enum import StrEnum

from core.jobs.spec.guards import parse_guard
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import JobState

S = JobState


class FaultOwner(StrEnum):
    """The party responsible for a reason; decides what counts against the job's attempts."""

    NOBODY = "nobody"
    USER = "user"
    MACHINE = "machine"
    SERVICE = "service"
    BUDGET = "budget"


INFRASTRUCTURE_FAULTS = frozenset({FaultOwner.MACHINE, FaultOwner.SERVICE})
"""Faults that do not count against the job's attempts."""


@dataclass(frozen=True, slots=True)
class Reason:
    name: str
    final: JobState | None  # state in which a job ends with it; None for reasons to wait
    fault: FaultOwner
    message: str  # text for the user, with what to do next. `{detail}` is replaced with details, if known.
    retry: bool = False
    unlimited: bool = False  # retried without limit; other faults of the machine or service are retried a few times
    guard: str | None = None  # option that has to say `retry` for it to be retried
    never_began: bool = False  # the command is known not to have started, though its start was recorded

    def retries(self, spec: JobSpec) -> bool:
        return self.retry if self.guard is None else "retry" in dict(parse_guard(self.guard, getattr(spec, self.guard)))


_ALL = (
    # Waiting.
    Reason("waiting_for_machine", None, FaultOwner.NOBODY, "Waiting for a free machine."),
    Reason("behind_jobs", None, FaultOwner.NOBODY, "{detail} ahead in the queue."),
    Reason("no_worker", None, FaultOwner.SERVICE, "No running worker offers this machine type. {detail}."),
    Reason("too_large", None, FaultOwner.USER, "The job requests {detail}. Request less, or start a larger worker."),
    Reason(
        "draining",
        None,
        FaultOwner.SERVICE,
        "Every worker that could run the job is drained and claims no jobs. Let one claim jobs again with "
        "`gradient-server resume`, or start another.",
    ),
    Reason(
        "low_disk",
        None,
        FaultOwner.MACHINE,
        "Every machine that could run the job is short of disk space: {detail}. An administrator can free some space.",
    ),
    Reason(
        "array_limit",
        None,
        FaultOwner.NOBODY,
        "The array's limit of {detail} running jobs is reached. The job can start when one of them ends.",
    ),
    Reason(
        "waiting_for_nodes",
        None,
        FaultOwner.NOBODY,
        "The job needs {detail}. Its nodes start together once there is room for all of them.",
    ),
    Reason("retrying", None, FaultOwner.NOBODY, "The job will be retried: {detail}"),
    Reason(
        "project_quota",
        None,
        FaultOwner.NOBODY,
        "The job would exceed the project's limit of {detail}. It can start when others end or an administrator "
        "raises the limit.",
    ),
    Reason("budget", None, FaultOwner.NOBODY, "The job waits for its budget: {detail}"),
    Reason("after_job", None, FaultOwner.NOBODY, "The job starts when {detail}."),
    Reason("waiting_for_gpus", None, FaultOwner.NOBODY, "The job needs {detail}. It starts when enough GPUs are free."),
    Reason(
        "waiting_for_port",
        None,
        FaultOwner.NOBODY,
        "The job waits for {detail}. It starts when that job ends. To avoid such waits, let the host choose the "
        "port (--ports 8080).",
    ),
    Reason(
        "worker_unresponsive",
        None,
        FaultOwner.SERVICE,
        "The job's worker has sent no heartbeat since {detail}. The job may still be running.",
    ),
    # Ended by itself.
    Reason("completed", S.SUCCEEDED, FaultOwner.NOBODY, "The command ended with exit code 0."),
    Reason("built", S.SUCCEEDED, FaultOwner.NOBODY, "The image was built; the job had no command to run: {detail}"),
    Reason(
        "exit_nonzero",
        S.FAILED,
        FaultOwner.USER,
        "The command ended with {detail}. See the end of its log.",
        retry=True,
    ),
    Reason("command_not_found", S.FAILED, FaultOwner.USER, "Exit code 127: {detail}"),
    Reason(
        "command_not_executable",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 126: the command was found but could not be executed. Make the file executable (chmod +x) and "
        "check its first line (#!). If only root may run the image's entry point, leave it out with "
        "--ignoreEntrypoint.",
    ),
    Reason(
        "killed",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 137: the command was killed (SIGKILL). The usual cause is a lack of memory: use a smaller batch "
        "or a machine type with more memory. The outputs so far are kept.",
        retry=True,
    ),
    Reason(
        "out_of_memory",
        S.FAILED,
        FaultOwner.USER,
        "The job exceeded its memory limit ({detail}) and was stopped. Raise the limit (--memoryMb), or use less.",
        retry=True,
    ),
    Reason(
        "machine_memory", S.FAILED, FaultOwner.USER, "The machine ran out of memory. Choose a larger one.", retry=True
    ),
    Reason(
        "signalled", S.FAILED, FaultOwner.USER, "The command was ended by {detail}. See the end of its log.", retry=True
    ),
    # Ended from outside.
    Reason("stopped_by_user", S.CANCELLED, FaultOwner.USER, "Ended by a stop request."),
    Reason("stopped_by_sweep", S.CANCELLED, FaultOwner.NOBODY, "Stopped by its sweep: {detail}."),
    Reason(
        "dependency_failed",
        S.CANCELLED,
        FaultOwner.USER,
        "The job was waiting for {detail}. Clone it with another --after, or with --after ID:ended to start it anyway.",
    ),
    Reason("access_lost", S.CANCELLED, FaultOwner.USER, "Not started: {detail}. Ask a maintainer there for a role."),
    Reason(
        "time_limit",
        S.FAILED,
        FaultOwner.BUDGET,
        "The job reached its time limit of {detail} and was stopped. Set a longer limit with --timeLimit; the "
        "outputs so far are kept.",
    ),
    Reason("cost_limit", S.FAILED, FaultOwner.BUDGET, "Stopped: {detail}, is spent. The outputs so far are kept."),
    Reason("idle", S.CANCELLED, FaultOwner.NOBODY, "Nothing worked in it, and nobody used it (--onIdle): {detail}."),
    Reason("diverged", S.FAILED, FaultOwner.USER, "The training diverged (--onDiverge): {detail}."),
    Reason("stalled", S.FAILED, FaultOwner.USER, "It made no progress (--onStall): {detail}.", guard="on_stall"),
    Reason("disk_nearly_full", S.FAILED, FaultOwner.USER, "Its disk is short (--onDisk): {detail}.", guard="on_disk"),
    Reason("log", None, FaultOwner.NOBODY, "A line of the log matched {detail}"),
    Reason(
        "disk_quota",
        S.FAILED,
        FaultOwner.USER,
        "The job used more disk space than allowed ({detail}) and was stopped. Store less in its workspace and "
        "artifacts, or have an administrator raise GRADIENT_DISK__JOB_MB. The artifacts that fit are kept.",
    ),
    Reason(
        "preempted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine was taken away (preempted). With --maxAttempts above 1, the job is retried after every "
        "preemption.",
        retry=True,
        unlimited=True,
    ),
    Reason(
        "node_failed",
        S.FAILED,
        FaultOwner.USER,
        "Another node of the job ended, so all of them were stopped. {detail}",
        retry=True,
    ),
    # Could not be set up.
    Reason(
        "workspace_missing",
        S.FAILED,
        FaultOwner.SERVICE,
        "The uploaded workspace is no longer stored. Submit the job again from its folder.",
    ),
    Reason("input_missing", S.FAILED, FaultOwner.USER, "Another job's artifacts could not be copied: {detail}."),
    Reason("workspace_invalid", S.FAILED, FaultOwner.USER, "The workspace could not be unpacked: {detail}"),
    Reason(
        "workspace_fetch",
        S.FAILED,
        FaultOwner.USER,
        "The workspace could not be fetched from git. Check the address, and that the worker's machine can reach it: "
        "{detail}",
        retry=True,
    ),
    Reason("requirements_invalid", S.FAILED, FaultOwner.USER, "The job's requirements are invalid. {detail}"),
    Reason(
        "requirements_install", S.FAILED, FaultOwner.USER, "Requirements could not be installed. {detail}", retry=True
    ),
    Reason(
        "python_unavailable", S.FAILED, FaultOwner.USER, "This Python version could not be used. {detail}", retry=True
    ),
    Reason(
        "image_pull",
        S.FAILED,
        FaultOwner.USER,
        "The container image could not be pulled. Check its name and tag, and that the worker has access to it: "
        "{detail}",
        retry=True,
    ),
    Reason(
        "image_build",
        S.FAILED,
        FaultOwner.USER,
        "The image could not be built from the workspace's Dockerfile; the log shows the failed step. {detail}",
        retry=True,
    ),
    Reason(
        "image_push",
        S.FAILED,
        FaultOwner.USER,
        "The image was built but could not be pushed to its registryTarget. Check its name, and that the worker is "
        "allowed to push there: {detail}",
        retry=True,
    ),
    Reason(
        "secret_missing",
        S.FAILED,
        FaultOwner.USER,
        "{detail} Store it with `gradient-cli secrets set`, then submit the job again.",
    ),
    Reason(
        "secret_unreadable",
        S.FAILED,
        FaultOwner.SERVICE,
        "A secret or password of the job is stored encrypted and could not be decrypted. {detail}",
        retry=True,
    ),
    Reason(
        "port_taken",
        S.FAILED,
        FaultOwner.MACHINE,
        "Another program on the machine uses {detail}. Choose another host port, or leave it out so that the host "
        "chooses a free one.",
        retry=True,
    ),
    Reason(
        "no_shell",
        S.FAILED,
        FaultOwner.USER,
        "The container image {detail} has no /bin/sh, which runs the command. Use an image with a shell (often the "
        "-slim or -debug variant), or add a shell to it.",
    ),
    Reason(
        "no_gpu_runtime",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's Docker cannot give GPUs to containers. Have its operator install the NVIDIA Container Toolkit "
        "(nvidia-ctk runtime configure --runtime=docker, then restart Docker): {detail}",
        retry=True,
    ),
    Reason(
        "gpu_in_use",
        S.FAILED,
        FaultOwner.MACHINE,
        "A GPU that was allocated to the job is in use by a process outside this service: {detail}",
        retry=True,
        unlimited=True,
    ),
    Reason("gpu_fault", S.FAILED, FaultOwner.MACHINE, "A GPU broke, and gets no more jobs: {detail}", retry=True),
    Reason(
        "no_working_dir",
        S.FAILED,
        FaultOwner.USER,
        "The job's working directory does not exist: {detail}. Name a folder of the workspace, or one in the "
        "container.",
    ),
    Reason(
        "option_refused", S.FAILED, FaultOwner.USER, "It requests an option that its machine does not allow: {detail}"
    ),
    Reason(
        "engine_unavailable",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's container engine did not respond: {detail}",
        retry=True,
    ),
    Reason(
        "tpu_capacity",
        S.FAILED,
        FaultOwner.MACHINE,
        "No TPU of this type was available: {detail}. Submit the job again later, or have the operator add zones.",
        retry=True,
    ),
    Reason(
        "tpu_quota",
        S.FAILED,
        FaultOwner.SERVICE,
        "The Google Cloud project has no quota for such a TPU, or none left: {detail}. Have the operator request "
        "more in the console, under IAM & Admin, Quotas.",
    ),
    Reason(
        "tpu_denied",
        S.FAILED,
        FaultOwner.SERVICE,
        "No TPU can be created until the operator fixes the setup; `gradient-server doctor --tpu` may show what is "
        "wrong: {detail}",
    ),
    Reason(
        "tpu_failed",
        S.FAILED,
        FaultOwner.MACHINE,
        "Google accepted the request for a TPU, but failed to create the TPU: {detail}",
        retry=True,
    ),
    Reason(
        "tpu_api_unavailable", S.FAILED, FaultOwner.SERVICE, "Google's TPU API did not respond: {detail}", retry=True
    ),
    Reason(
        "tpu_unreachable",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU was READY, but could not be reached. Have the operator check firewall and network with "
        "`gradient-server doctor --tpu`: {detail}",
    ),
    Reason(
        "tpu_unhealthy", S.FAILED, FaultOwner.MACHINE, "The TPU was unhealthy and was given up: {detail}", retry=True
    ),
    Reason(
        "tpu_suspended",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU was suspended: {detail}. With --maxAttempts above 1, the job is retried.",
        retry=True,
    ),
    Reason(
        "tpu_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU was stopped, deleted or restarted by something other than this service: {detail}. With "
        "--maxAttempts above 1, the job is retried.",
        retry=True,
    ),
    Reason(
        "tpu_expired",
        S.FAILED,
        FaultOwner.BUDGET,
        "The job's flex-start TPU reached the end of its run duration, and Google deleted it: {detail}. The "
        "outputs so far are kept; a longer --timeLimit extends the run duration.",
    ),
    Reason("tpu_host_failed", S.FAILED, FaultOwner.USER, "All nodes of the job were ended: {detail}", retry=True),
    Reason("data_missing", S.FAILED, FaultOwner.USER, "The data set that TPU_STAGE names does not exist: {detail}"),
    Reason(
        "bucket_missing",
        S.FAILED,
        FaultOwner.SERVICE,
        "The bucket for the TPU's files does not exist and could not be created: {detail}",
    ),
    Reason(
        "bucket_refused",
        S.FAILED,
        FaultOwner.SERVICE,
        "The bucket for the TPU's files refused the worker or the TPU's account; run `gradient-server doctor --tpu` to "
        "see which role is missing: {detail}",
    ),
    Reason(
        "bucket_region",
        S.FAILED,
        FaultOwner.SERVICE,
        "The bucket is not in the TPU's region, so access would be slow and every byte billed: {detail}",
    ),
    Reason("slurm_refused", S.FAILED, FaultOwner.USER, "Slurm refused the job: {detail}"),
    Reason("slurm_cancelled", S.CANCELLED, FaultOwner.USER, "The job was cancelled in Slurm itself: {detail}"),
    Reason("slurm_rank_failed", S.FAILED, FaultOwner.USER, "All nodes of the job were ended: {detail}", retry=True),
    Reason("slurm_node_failed", S.FAILED, FaultOwner.MACHINE, "Slurm lost the job's node: {detail}", retry=True),
    Reason("launch_failed", S.FAILED, FaultOwner.MACHINE, "The job could not be started: {detail}", retry=True),
    Reason(
        "service_silent",
        S.FAILED,
        FaultOwner.MACHINE,
        "The job's machine could not reach the service, so it returned the job before the command began. {detail}",
        retry=True,
        unlimited=True,
        never_began=True,
    ),
    Reason(
        "never_started",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine claimed the job, but the command never started. Submit the job again.",
        retry=True,
        never_began=True,
    ),
    Reason("disk_full", S.FAILED, FaultOwner.MACHINE, "The machine's disk is full: {detail}", retry=True),
    # Lost.
    Reason(
        "process_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The job's processes ended without an exit code: something outside the job killed all of them.",
        retry=True,
    ),
    Reason(
        "host_restarted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine restarted while the job was running. The outputs up to that point are kept.",
        retry=True,
    ),
    Reason(
        "engine_restarted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's container engine was restarted, which ended the job (exit code 143). The outputs up to that "
        "point are kept. If the operator turns on live-restore, jobs survive such a restart.",
        retry=True,
    ),
    Reason(
        "worker_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The worker's machine sent no heartbeat for {detail}, so the job was given up.",
        retry=True,
    ),
    Reason(
        "lost_contact",
        S.FAILED,
        FaultOwner.MACHINE,
        "The job's worker could not reach the database for {detail}, so it stopped the job before another worker "
        "could start it a second time.",
        retry=True,
    ),
    Reason(
        "internal_error", S.FAILED, FaultOwner.SERVICE, "The service failed to handle the job: {detail}", retry=True
    ),
)

REASONS: dict[str, Reason] = {reason.name: reason for reason in _ALL}  # all reasons by name

CANNOT_START = frozenset({"no_worker", "too_large", "draining"})
"""Reasons to wait that no end of another job removes: somebody has to change the job or the workers."""


def reason_message(reason: str, detail: str | None = None) -> str:
    """Return the user's sentence for a reason, with the detail filled in."""
    text = REASONS[reason].message
    return text.replace("{detail}", detail or "no details are known")
