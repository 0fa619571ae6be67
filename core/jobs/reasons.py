"""All reasons for which jobs wait or end, with their sentences for users."""

from dataclasses import dataclass
from enum import StrEnum

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
    """A reason for which a job waits or ended.

    Attributes:
        name: Stable code, shown beside the sentence.
        final: State in which a job ends with it; None for reasons to wait.
        fault: The responsible party.
        message: Text for the user, with what to do next. `{detail}` is replaced with details, if known.
        retry: Whether another attempt could end differently.
        unlimited: Whether it is retried without limit; else faults of the machine or service are retried a few
            times.
        never_began: The command is known not to have started, though its start was recorded.
    """

    name: str
    final: JobState | None
    fault: FaultOwner
    message: str
    retry: bool = False
    unlimited: bool = False
    never_began: bool = False


_ALL = (
    # Waiting.
    Reason("waiting_for_machine", None, FaultOwner.NOBODY, "Waiting for a free machine."),
    Reason("behind_jobs", None, FaultOwner.NOBODY, "{detail} ahead in the queue."),
    Reason(
        "no_worker",
        None,
        FaultOwner.SERVICE,
        "No running worker offers this machine type. Start one with `gradient-server worker`.",
    ),
    Reason(
        "too_large",
        None,
        FaultOwner.USER,
        "It asks for {detail}. Submit it again with less, or start a larger worker.",
    ),
    Reason(
        "draining",
        None,
        FaultOwner.SERVICE,
        "Every worker that could take it is drained and takes nothing new. Let one work again with "
        "`gradient-server resume`, or start another.",
    ),
    Reason("low_disk", None, FaultOwner.MACHINE, "No machine that could take it has room on its disk. {detail}."),
    Reason("retrying", None, FaultOwner.NOBODY, "It is tried again: {detail}"),
    Reason(
        "project_quota",
        None,
        FaultOwner.NOBODY,
        "Its project runs {detail}. It goes on when one of them has ended, or an administrator has raised the limit.",
    ),
    Reason(
        "waiting_for_gpus",
        None,
        FaultOwner.NOBODY,
        "It needs {detail}. It starts when enough of them have ended.",
    ),
    Reason(
        "waiting_for_port",
        None,
        FaultOwner.NOBODY,
        "It waits for {detail}. It starts when that has ended. Jobs that leave the number to the host (--ports 8080) "
        "wait for none.",
    ),
    Reason(
        "worker_unresponsive",
        None,
        FaultOwner.SERVICE,
        "Its worker was last heard of at {detail}. Unreachable is not dead: the job may still be running.",
    ),
    # Ended by itself.
    Reason("completed", S.SUCCEEDED, FaultOwner.NOBODY, "The command ended with exit code 0."),
    Reason("built", S.SUCCEEDED, FaultOwner.NOBODY, "The image was built, and nothing was to be run: {detail}"),
    Reason(
        "exit_nonzero",
        S.FAILED,
        FaultOwner.USER,
        "The command ended with {detail}. The end of its log says more.",
        retry=True,
    ),
    Reason(
        "command_not_found",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 127: a program in the command was not found. Check its spelling, that the container has it, "
        "and that files of your own are called with their path (./run.sh).",
    ),
    Reason(
        "command_not_executable",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 126: the command was found but could not be executed. Set its run bit (chmod +x) and check "
        "its first line (#!).",
    ),
    Reason(
        "killed",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 137: the command was killed (SIGKILL). Most often memory ran out: use a smaller batch or a "
        "machine type with more memory. What it wrote until then is kept.",
        retry=True,
    ),
    Reason(
        "out_of_memory",
        S.FAILED,
        FaultOwner.USER,
        "Exit code 137: the job passed its memory limit ({detail}) and was stopped. Use a smaller batch or a "
        "machine type with more memory.",
        retry=True,
    ),
    Reason(
        "signalled",
        S.FAILED,
        FaultOwner.USER,
        "The command was ended by {detail}. The end of its log says more.",
        retry=True,
    ),
    # Ended from outside.
    Reason("stopped_by_user", S.CANCELLED, FaultOwner.USER, "Ended by a stop request."),
    Reason(
        "time_limit",
        S.FAILED,
        FaultOwner.BUDGET,
        "Its time limit of {detail} was reached. Set a longer one with --timeLimit; outputs so far are kept.",
    ),
    Reason(
        "disk_quota",
        S.FAILED,
        FaultOwner.USER,
        "It took more disk than a job may ({detail}) and was ended. Keep less in its workspace and artifacts, or have "
        "an administrator raise GRADIENT_DISK__JOB_MB; of its artifacts, those are kept that fit.",
    ),
    Reason(
        "preempted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine was taken away (preempted). With --maxAttempts above 1 it is tried again, as often as it happens.",
        retry=True,
        unlimited=True,
    ),
    # Could not be set up.
    Reason(
        "workspace_missing",
        S.FAILED,
        FaultOwner.SERVICE,
        "The uploaded workspace is no longer stored. Submit the job again from its folder.",
    ),
    Reason("workspace_invalid", S.FAILED, FaultOwner.USER, "The workspace could not be unpacked: {detail}"),
    Reason(
        "workspace_fetch",
        S.FAILED,
        FaultOwner.USER,
        "The workspace could not be fetched from git. Check the address, and that the worker's machine can reach it: "
        "{detail}",
        retry=True,
    ),
    Reason(
        "image_pull",
        S.FAILED,
        FaultOwner.USER,
        "The container image could not be had. Check its name and tag, and that the worker's machine may pull it: "
        "{detail}",
        retry=True,
    ),
    Reason(
        "image_build",
        S.FAILED,
        FaultOwner.USER,
        "The image could not be built from the workspace's Dockerfile; the log says at which step. {detail}",
        retry=True,
    ),
    Reason(
        "image_push",
        S.FAILED,
        FaultOwner.USER,
        "The image was built but could not be pushed to its registryTarget. Check its name, and that the worker's "
        "machine may push there: {detail}",
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
        "What it needs is stored encrypted and could not be read. {detail}",
        retry=True,
    ),
    Reason(
        "port_taken",
        S.FAILED,
        FaultOwner.MACHINE,
        "Another program on the machine has {detail}. Name another port, or none, so that a free one is found.",
        retry=True,
    ),
    Reason(
        "no_shell",
        S.FAILED,
        FaultOwner.USER,
        "The container image {detail} has no /bin/sh, which runs the command. Use an image with a shell (the -slim "
        "or -debug variant of most), or add one to it.",
    ),
    Reason(
        "no_gpu_runtime",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's Docker cannot give GPUs to containers. Its operator installs the NVIDIA Container Toolkit "
        "(nvidia-ctk runtime configure --runtime=docker, then restart Docker): {detail}",
        retry=True,
    ),
    Reason(
        "gpu_in_use",
        S.FAILED,
        FaultOwner.MACHINE,
        "A GPU that it was given is in use by something that is no job, and was not handed over: {detail}",
        retry=True,
        unlimited=True,
    ),
    Reason(
        "no_working_dir",
        S.FAILED,
        FaultOwner.USER,
        "Its working directory is not there: {detail}. Name a folder of the workspace, or one that the container has.",
    ),
    Reason(
        "option_refused",
        S.FAILED,
        FaultOwner.USER,
        "It asks for something that its machine does not give: {detail}",
    ),
    Reason(
        "engine_unavailable",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's container engine did not answer: {detail}",
        retry=True,
    ),
    Reason(
        "tpu_capacity",
        S.FAILED,
        FaultOwner.MACHINE,
        "No TPU of this type was to be had: {detail}. Submit it again later, or have the operator name more zones.",
        retry=True,
    ),
    Reason(
        "tpu_denied",
        S.FAILED,
        FaultOwner.SERVICE,
        "Google refuses to make this TPU, and will until the operator changes something; "
        "`gradient-server doctor --tpu` says what: {detail}",
    ),
    Reason(
        "tpu_failed",
        S.FAILED,
        FaultOwner.MACHINE,
        "Google took the wish for a TPU, and failed later to make it: {detail}",
        retry=True,
    ),
    Reason(
        "tpu_api_unavailable", S.FAILED, FaultOwner.SERVICE, "Google's TPU API did not answer: {detail}", retry=True
    ),
    Reason(
        "tpu_unreachable",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU said that it is ready, but its port took no connection from the worker's machine. The operator looks "
        "at firewall and network: {detail}",
        retry=True,
    ),
    Reason("tpu_unhealthy", S.FAILED, FaultOwner.MACHINE, "The TPU was ill, and was given back: {detail}", retry=True),
    Reason(
        "tpu_suspended",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU was suspended while the job had it: {detail}. With --maxAttempts above 1 the job is tried again.",
        retry=True,
    ),
    Reason(
        "tpu_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The TPU was stopped or deleted by somebody while the job had it: {detail}. With --maxAttempts above 1 the job "
        "is tried again.",
        retry=True,
    ),
    Reason("data_missing", S.FAILED, FaultOwner.USER, "The data set that TPU_STAGE names is not there: {detail}"),
    Reason(
        "bucket_missing",
        S.FAILED,
        FaultOwner.SERVICE,
        "The bucket of the TPU's files is not there and could not be made: {detail}",
    ),
    Reason(
        "bucket_refused",
        S.FAILED,
        FaultOwner.SERVICE,
        "The account that the TPU acts as may not write, read and delete in the bucket; `gradient-server doctor --tpu` "
        "says which role it lacks: {detail}",
    ),
    Reason(
        "bucket_region",
        S.FAILED,
        FaultOwner.SERVICE,
        "The bucket is not in the TPU's region, which would be slow and bill for every byte: {detail}",
    ),
    Reason("launch_failed", S.FAILED, FaultOwner.MACHINE, "The job could not be started: {detail}", retry=True),
    Reason(
        "never_started",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine took the job, but its command never began to run. Submit it again.",
        retry=True,
        never_began=True,
    ),
    Reason("disk_full", S.FAILED, FaultOwner.MACHINE, "The machine's disk is full: {detail}", retry=True),
    # Lost.
    Reason(
        "process_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The job's processes ended without leaving an exit code: somebody or something killed all of them.",
        retry=True,
    ),
    Reason(
        "host_restarted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine restarted while the job ran. Its outputs up to then are kept.",
        retry=True,
    ),
    Reason(
        "engine_restarted",
        S.FAILED,
        FaultOwner.MACHINE,
        "The machine's container engine was restarted, and ended the job (exit code 143). Its outputs up to then are "
        "kept. Its operator sets live-restore, with which jobs run on.",
        retry=True,
    ),
    Reason(
        "worker_lost",
        S.FAILED,
        FaultOwner.MACHINE,
        "The worker's machine has not answered for {detail} and was given up.",
        retry=True,
    ),
    Reason(
        "lost_contact",
        S.FAILED,
        FaultOwner.MACHINE,
        "Its worker had no contact with the database for {detail} and ended the job, before it could be started a "
        "second time elsewhere.",
        retry=True,
    ),
    Reason(
        "internal_error",
        S.FAILED,
        FaultOwner.SERVICE,
        "The service failed while handling the job: {detail}",
        retry=True,
    ),
)

REASONS: dict[str, Reason] = {reason.name: reason for reason in _ALL}
"""All reasons by name."""

_SIGNALS = {
    129: "SIGHUP",
    130: "SIGINT",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    139: "SIGSEGV",
    143: "SIGTERM",
}


def reason_message(reason: str, detail: str | None = None) -> str:
    """Return the user's sentence for a reason, with the detail filled in."""
    text = REASONS[reason].message
    return text.replace("{detail}", detail or "no more is known")


def reason_of_exit(code: int) -> tuple[str, str | None]:
    """Return reason and detail for the exit code of a command that ended by itself.

    Codes above 128 are the shell's convention for 128 + signal number (POSIX, 2.8.2).
    """
    special = {0: "completed", 126: "command_not_executable", 127: "command_not_found", 137: "killed"}
    if code in special:
        return special[code], None
    if code in _SIGNALS:
        return "signalled", f"{_SIGNALS[code]} (exit code {code})"
    return "exit_nonzero", f"exit code {code}"
