from typing import Any, Literal

from pydantic import Field

from service.schemas.base import LimitedList, RequestModel, Time, View
from service.schemas.jobs import SubmitJob

_METRIC = "metric that judges the result, with min or max as the better direction, such as val_loss:min"
_GOAL = "direction in which the metric improves; default: min for a loss, an error or a time, otherwise max"
_TARGET = "target value of the metric: time and cost are measured until it is reached"


class SubmitComparison(SubmitJob):
    """One program to run on several machine types."""

    machine_type: str = Field(max_length=2000, description="names or aliases from GET /machine-types, comma separated")
    repeats: int = Field(1, ge=1, le=50, description="jobs on each machine type; each gets its number in SEED")
    serial: bool = Field(
        default=False, description="run the jobs one at a time, so that they do not slow each other down"
    )
    metric: str | None = Field(None, description=_METRIC)
    goal: Literal["max", "min"] | None = Field(None, description=_GOAL)
    target: float | None = Field(None, allow_inf_nan=False, description=_TARGET)


class CompareJobs(RequestModel):
    """Existing jobs to compare."""

    jobs: LimitedList[str] = Field(
        max_length=100, description="ids of jobs from one project that ran the same workspace"
    )
    name: str | None = Field(None, max_length=200)
    metric: str | None = Field(None, description=_METRIC)
    goal: Literal["max", "min"] | None = Field(None, description=_GOAL)
    target: float | None = Field(None, allow_inf_nan=False, description=_TARGET)


class RenameComparison(RequestModel):
    """The new name of a comparison."""

    name: str | None = Field(max_length=200, description="null: no name, the id is shown")


class RepeatComparison(RequestModel):
    """One more job on some machine types of a comparison."""

    machine_types: LimitedList[str] = Field(min_length=1, max_length=100, description="one job on each of these")
    max_cost: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="US dollars that all jobs of the comparison may cost; null: as before",
    )


class SpreadView(View):
    """A figure of several jobs, or of several intervals of one."""

    median: float
    low: float
    high: float


class EstimateView(View):
    """An estimate, and the interval that it is likely to lie in."""

    value: float
    low: float
    high: float


class FigureView(View):
    """A measured figure of a judgement."""

    name: str
    value: float = Field(description="a share, 0 to 1")
    text: str = Field(description="the value as text")


class BottleneckView(View):
    """A judgement of what bounds a run."""

    kind: Literal["input", "compute", "memory", "communication", "startup", "overhead"] | None = Field(
        description="the part that takes most of the time; null: not measured"
    )
    summary: str = Field(description="the judgement as a sentence")
    figures: list[FigureView] = Field(description="the measurements behind the judgement")
    advice: list[str] = Field(description="remedies, best first")
    missing: list[str] = Field(description="required metrics that are missing; `peaks`: the machine's peaks")


class MemberView(View):
    """A job of a comparison."""

    job_id: str
    state: str = Field(
        description="the job's state: Pending, Running, Kept, Stopped (it succeeded), Failed, Error or Cancelled"
    )
    steps_per_second: float | None = Field(description="median over the intervals between its reports")
    final: float | None = Field(description="the metric at the end: median of the last fifth of its reports")
    seconds: float = Field(description="running time")
    seconds_to_target: float | None = Field(description="running time until the target was reached")
    steps_to_target: float | None
    beside: bool = Field(description="whether another job of the comparison ran on its host at the same time")
    other_cpus: float | None = Field(
        description="average number of CPUs of its host used by other programs; null: not measured"
    )
    url: str = Field(description="address of the job's page")


class MachineRow(View):
    """The figures of one machine type, over its jobs that succeeded; null: not measured."""

    machine_type: str
    title: str = Field(description="its name, with the jobs that its measurements leave out")
    simulated: bool = Field(
        description="whether the jobs ran on a stand-in: stand-ins are never ranked together with real machines"
    )
    jobs: int
    succeeded: int
    failed: int
    steps_per_second: SpreadView | None
    speedup: float | None = Field(description="pace divided by the slowest machine type's pace")
    final: SpreadView | None = Field(description="the metric at the end: median of the last fifth of its reports")
    seconds: SpreadView | None = Field(description="running time")
    seconds_to_target: SpreadView | None = Field(description="null unless all jobs that succeeded reached the target")
    peak_memory_bytes: int | None
    peak_gpu_memory_bytes: int | None
    price_per_hour: float
    cost: float | None = Field(description="US dollars of the running time")
    cost_to_target: float | None = Field(description="US dollars")
    cost_per_1000_steps: float | None = Field(alias="costPer1000Steps", description="US dollars")
    gpu_hours: float | None = Field(None, description="running time times number of GPUs")
    gpu_hours_to_target: float | None = None
    gpu_hours_per_1000_steps: float | None = Field(None, alias="gpuHoursPer1000Steps")
    marks: list[str] = Field(description="remarks shown beside its name, such as failed repeats")
    labels: list[str] = Field(description="its first places, as text")
    fastest: int | None = Field(
        description="rank by the time to the target, or by pace if there is no target; equal unless a statistical test "
        "tells the machine types apart; null: fewer than two repeats have the value"
    )
    cheapest: int | None = Field(
        description="rank by the cost to the target, or by the cost of steps if there is no target"
    )
    most_accurate: int | None = Field(description="rank by the metric at the end")
    slower_by: EstimateView | None = Field(
        description="time relative to the fastest, minus 1; null: this is the fastest"
    )
    dearer_by: EstimateView | None = Field(description="cost relative to the cheapest, minus 1")
    worse_by: EstimateView | None = Field(description="metric's difference from the most accurate")
    on_metric_time_front: bool | None = Field(
        description="whether it is on the Pareto front of metric and running time: no other machine type is at least "
        "as good in both and better in one, by medians; null: not ranked, or one of the values is missing"
    )
    on_metric_cost_front: bool | None = Field(description="the same for the metric and the cost of the running time")
    on_time_cost_front: bool | None = Field(
        description="the same for time and cost to the target, or for the running time if there is no target"
    )
    bottleneck: BottleneckView | None = Field(description="null: no job has succeeded")
    members: list[MemberView]


class DifferenceView(View):
    """An option in which the jobs differ besides the machine type."""

    name: str
    values: dict[str, list[str]] = Field(
        description="ids of jobs by value; values of variables are replaced by numbers"
    )


class DecisionView(View):
    """The machine type to take, how sure that is, and what would change it."""

    machine_type: str
    simulated: bool
    by: Literal["cost", "time"] = Field(
        description="deciding criterion: time if one of the machine types costs nothing"
    )
    probability: float | None = Field(description="probability that it is the best; null: fewer than two repeats")
    break_even_price: float | None = Field(description="hourly price at which the runner-up costs the same")
    contenders: list[str] = Field(description="machine types that could be the best")
    more_repeats: int | None = Field(
        description="further repeats of each contender that would probably decide; null: decided, or practically equal"
    )
    headline: str
    changes: list[str] = Field(description="what would change the decision")


class ImportOrigin(View):
    """The installation that measured an imported comparison."""

    id: str = Field(description="its id there")
    exported_from: str = Field(max_length=2000, description="address of the installation that measured it")
    exported_at: Time
    release: str = Field(max_length=100, description="version of that installation")


class MachineSpec(View):
    """A machine type as the installation that measured it describes it."""

    accelerator: str
    count: int = Field(description="devices in the machine")
    cpus: int | None
    memory_gb: float
    memory_bandwidth_gb_per_s: float = Field(description="GB/s of one device's memory")
    tflops: dict[str, float] = Field(description="peak 10^12 operations/s by precision, all devices together")
    price_source: str


class ImportedRows(View):
    """The rows of an imported comparison, which are not ranked here."""

    comparison_id: str = Field(description="its id here")
    rows: list[MachineRow]


class ComparisonSummary(View):
    """A comparison without its figures."""

    id: str
    name: str | None
    project_id: str
    created_at: Time
    metric: str | None
    goal: Literal["max", "min"]
    target: float | None
    jobs: int
    ended: int = Field(description="jobs that have ended")
    url: str = Field(description="address of its page")
    imported_from: str | None = Field(None, description="address of the installation that measured it; null: this one")


class ComparisonView(ComparisonSummary):
    """A comparison with its table."""

    rows: list[MachineRow]
    verdict: str = Field("", description="the answer in one sentence, or why there is none")
    decision: DecisionView | None = Field(description="null: fewer than two comparable machine types")
    results: list[str] = Field(description="which machine type is best at what, and how certain that is")
    differences: list[DifferenceView] = Field(description="if there are any, nothing is ranked")
    notes: list[str] = Field(description="caveats about the measurements")
    imported: ImportOrigin | None = Field(None, description="null: it was measured here")
    machines: dict[str, MachineSpec] = Field({}, description="by machine type, of an imported comparison")
    same_program: list[ImportedRows] = Field(
        [], description="imported comparisons of the same program with the same metric and target"
    )

    @property
    def machine_names(self) -> str:
        return ", ".join(dict.fromkeys(row.machine_type for row in self.rows))

    @property
    def title(self) -> str:
        return self.name or self.machine_names or self.id


class ComparisonFile(ImportOrigin):
    """A comparison as one file, that another installation imports.

    Stored as it is: a field that is added later, here or in the comparison, needs a default.
    """

    format: Literal["gradient-jobs comparison"]
    format_version: Literal[1]
    comparison: ComparisonView
    program: dict[str, str] = Field(description="options common to all its jobs, without variables")
    program_sha256: str | None = Field(
        pattern="^[0-9a-f]{64}$", description="digest of all options; null: the jobs differ in more than the machine"
    )
    image_digests: dict[str, list[str]] = Field(description="digests of the images that ran, by machine type")
    sha256: str = Field(description="digest of the remaining content as JSON with sorted keys and no spaces")


class ComparisonsPage(View):
    """Comparisons, newest first."""

    comparisons: list[ComparisonSummary]
    next: str | None = Field(description="`after` of the next page; null: no more")


class CorrectionView(View):
    """The experience of this installation with a machine type over that of the run."""

    ratio: float = Field(description="factor of the predicted time of a step")
    count: int = Field(description="number of comparisons with this machine type that it is based on")


class CarryOverView(View):
    """Hyper-parameters that train on a machine type as those of the job did."""

    replicas: int
    batch_size: int
    learning_rate: float
    weight_decay: float | None
    reasons: list[str]


class PredictedMachine(View):
    """A job's run as it is predicted for a machine type; null: not predicted."""

    machine_type: str
    price_per_hour: float
    price_source: str = Field(description="whose list price, and when")
    price_is_old: bool = Field(description="whether the price is dated more than six months ago")
    declined: str | None = Field(description="why nothing is estimated")
    step_seconds: EstimateView | None
    seconds: EstimateView | None = Field(description="estimated running time of the same run")
    cost: EstimateView | None = Field(description="estimated US dollars for the same run")
    speedup: EstimateView | None = Field(description="measured time of a step divided by the predicted time")
    fits: bool | None = Field(description="whether its devices have enough memory; null: not known")
    memory_bytes: float | None = Field(description="maximum device memory that the run needs")
    correction: CorrectionView | None = Field(description="the correction that the estimates contain")
    carry_over: CarryOverView | None = Field(description="null: the job has not reported its hyperparameters")
    notes: list[str] = Field(description="assumptions")


class PredictionView(View):
    """A job's measured run, and estimates of it on other machine types."""

    job_id: str
    machine_type: str
    simulated: bool = Field(description="whether this host stood in for the job's machine")
    steps_per_second: float | None
    seconds: float = Field(description="running time")
    cost: float = Field(description="US dollars: running time times price")
    estimated: bool = Field(description="always true: only the machine of the run itself was measured")
    method: str
    bottleneck: BottleneckView
    missing: list[str] = Field(description="missing metrics that predictions require")
    missing_hyperparameters: list[str] = Field(description="missing metrics that the carry-over requires")
    machines: list[PredictedMachine] = Field(description="fastest first")
    results: list[str] = Field(description="which machine type is probably best at what, and which others could be")
    notes: list[str] = Field(description="assumptions, and what is not estimated, for all machines")


class OptionValues(View):
    """The values of an option in which two jobs differ; null: not given."""

    first: Any
    second: Any


class SizedFileView(View):
    """A file that only one of two workspaces has."""

    path: str
    size: int


class ChangedFileView(View):
    """A file that differs between two workspaces."""

    path: str
    first_size: int
    second_size: int
    diff: str | None = Field(description="unified diff of a text, limited in size; null: not shown")
    left_out: str | None = Field(description="why some or all changes are not shown; null: all are shown")


class WorkspaceDiffView(View):
    """The difference between two uploaded workspaces; the lists are limited, the counts are not."""

    added: list[SizedFileView] = Field(description="files only in the second job, by path")
    removed: list[SizedFileView] = Field(description="files only in the first job, by path")
    changed: list[ChangedFileView] = Field(description="files that differ, by path")
    added_count: int
    removed_count: int
    changed_count: int
    unchanged_count: int
    left_out: str | None = Field(description="why the files were not compared; null: they were compared")


class JobDiff(View):
    """The difference between two jobs."""

    first: str = Field(description="id of the first job")
    second: str = Field(description="id of the second job")
    differences: dict[str, OptionValues] = Field(description="differing options by name; variables as `envVars.NAME`")
    hidden: list[str] = Field(description="options with hidden values in both jobs, which were not compared")
    workspace: WorkspaceDiffView | None = Field(
        description="difference of the uploaded files; null: the same files, or none"
    )
