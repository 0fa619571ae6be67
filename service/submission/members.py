"""The members of a new array: those that a request names, or those of the array that it clones."""

from core.catalogue.backends import capabilities_of
from core.errors import SpecInvalid
from core.ids import new_id
from core.jobs import queries
from core.jobs.spec.arrays import ArrayMember, is_array_id, is_sweep_id, node_members, parse_array
from core.jobs.states import JobState
from service.app_state import AppState
from service.schemas.jobs import SubmitJob
from service.submission.stages import ValidatedJob


def new_members(request: SubmitJob, valid: ValidatedJob) -> list[tuple[ArrayMember, str | None]]:
    if request.nodes is not None:
        if request.array is not None:
            raise SpecInvalid("An array cannot have nodes. Give either array or nodes.", field="array")
        if request.array_reuse is not None:
            raise SpecInvalid(
                "Nodes run at the same time, each in its own sandbox. Leave arrayReuse out.", field="arrayReuse"
            )
        check_nodes(valid)
        # In Slurm they are one job.
        return [] if valid.spec.nodes else [(member, None) for member in node_members(new_id("a"), request.nodes)]
    if request.array is None:
        if request.array_reuse is not None:
            raise SpecInvalid("arrayReuse applies only to arrays. Give array as well.", field="arrayReuse")
        return []
    return [(member, None) for member in parse_array(new_id("a"), request.array)]


def check_nodes(valid: ValidatedJob) -> None:
    """Refuse what the nodes of a job cannot have."""
    machine = valid.machine
    if capabilities_of(machine.backend).own_queue != (valid.spec.nodes is not None):
        raise SpecInvalid(
            "Nodes are one job in Slurm, and an array on other machines: a clone cannot be of the other kind. Submit a "
            "new job with nodes.",
            field="machineType",
        )
    if valid.spec.nodes is not None:
        return
    if machine.kind == "tpu":
        raise SpecInvalid(
            f"The hosts of {machine.name} are the hosts of its slice and start together anyway. Leave nodes out.",
            field="nodes",
        )
    if valid.spec.keep_on_fail:
        raise SpecInvalid("Nodes end together and are not kept. Leave keepOnFail out.", field="keepOnFail")
    if valid.spec.ports:
        raise SpecInvalid(
            "Nodes have no ports on their host. Leave ports out: `gradient-cli jobs port-forward` reaches them.",
            field="ports",
        )


def refuse_array(request: SubmitJob) -> None:
    for name in ("array", "nodes"):
        if getattr(request, name) is not None:
            what = "be an array" if name == "array" else "have nodes"
            raise SpecInvalid(f"Only a single job can {what}. Leave {name} out.", field=name)


def cloned_members(app_state: AppState, array_id: str, *, only_failed: bool) -> list[tuple[ArrayMember, str]]:
    """Return the members of a new array, each with the id of the job that it repeats; none if the id is of a job."""
    if not is_array_id(array_id):
        if only_failed:
            raise SpecInvalid("Failed members can only be cloned for an array: give its id.", field="onlyFailed")
        return []
    if is_sweep_id(array_id):
        raise SpecInvalid(
            "A sweep cannot be cloned as a whole, because its jobs have different parameters. Clone one of them, "
            "or create a new sweep.",
            field="id",
        )
    with app_state.database.read() as session:
        jobs = queries.members(session, array_id)
    if jobs[0].nodes is not None and (only_failed or len(jobs) < jobs[0].nodes):
        raise SpecInvalid(
            "The nodes of a job are cloned together; deleted or succeeded nodes cannot be left out.",
            field="onlyFailed",
        )
    cloned = [job for job in jobs if job.state is JobState.FAILED] if only_failed else jobs
    if not cloned:
        raise SpecInvalid(
            f"No member of array {array_id} has failed, so there is nothing to repeat.", field="onlyFailed"
        )
    new = new_id("a")
    return [(ArrayMember.of(new, job), job.id) for job in cloned]
