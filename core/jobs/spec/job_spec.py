"""JobSpec: a submitted job's specification, validated and frozen."""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

from core.catalogue.slurm import check_job_options
from core.errors import SpecInvalid
from core.jobs.spec.container_options import check_network, check_shared_memory, check_user, check_working_dir
from core.jobs.spec.data_disks import parse_data_disks
from core.jobs.spec.dependencies import parse_dependencies
from core.jobs.spec.guards import GUARDS, parse_guard
from core.jobs.spec.image_options import ImageOptions, check_slashes, quoted
from core.jobs.spec.labels import check_encodable, check_label, check_tags
from core.jobs.spec.metric_patterns import parse_metric_patterns
from core.jobs.spec.notify import parse_notify
from core.jobs.spec.outputs import check_outputs
from core.jobs.spec.params import MAX_PARAMS, Value, check_params, command_params, variable_params
from core.jobs.spec.ports import PortMapping, parse_ports
from core.jobs.spec.python_options import check_python, check_requirements
from core.jobs.spec.stop_options import EndWarning, parse_signal, parse_warning

MAX_COMMAND_BYTES = 64 * 1024
MAX_ENV_VARS = 500
MAX_ENV_BYTES = 128 * 1024
MAX_NAME = 200
CODE_OPTIONS = frozenset({"codeCommit", "codeBranch", "codeDirty", "codeDescribe"})
"""Options that tell where an uploaded folder comes from, which clients find out by themselves."""
MAX_GRACE_SECONDS = 3600
MAX_KEEP_SECONDS = 24 * 3600  # a machine that is kept for longer is rather forgotten
MAX_ATTEMPTS = 100
MAX_PRIORITY = 100
LEAST_CEILING, MAX_CEILING = 0.0001, 1e9
MAX_TIME_LIMIT = 10 * 365 * 24 * 3600
MAX_CPUS = 4096
MAX_MEMORY_MB = 64 * 1024**2
CAPACITIES = ("standard", "spot", "flex-start", "reserved")
MAX_FLEX_START_SECONDS = 7 * 24 * 3600  # Google's limit on the run duration of flex-start capacity
GIT_SCHEMES = ("https", "http")
REDACTED = "••••••"

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
SECRET_PREFIX = "secret:"  # noqa: S105 - what the name of one follows
"""Prefix of an environment variable's value that names a secret."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = ("GRADIENT_", "PS_", "gradient_")
_SIMULATE_PREFIX = "SIMULATE_"
"""Prefix of variables that script the process backend; their values appear in its reasons."""
_SECRET_NAME = re.compile(r"key|token|secret|passw|passphrase|credential|auth|dsn|_url\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The specification of a job.

    The service derives the options' names, types and descriptions in requests and responses from these fields.
    """

    machine_type: Annotated[str, "name in the catalogue of machine types"]
    command: Annotated[str, "run by the container's shell; may be empty if only an image is built"]
    container: Annotated[str | None, "image reference or short name (GET /images); default: the worker's"] = None
    image_pull_policy: Annotated[str | None, "Always, IfNotPresent or Never; default: the worker's setting"] = None
    use_dockerfile: Annotated[bool, "build the image from the workspace's Dockerfile"] = False
    rel_dockerfile_path: Annotated[str | None, "the Dockerfile's path in the workspace; default: Dockerfile"] = None
    ignore_entrypoint: Annotated[bool, "run the command without the image's ENTRYPOINT"] = False
    build_only: Annotated[bool, "only build (and push) the image, run nothing"] = False
    registry_target: Annotated[str | None, "image reference that the built image is pushed to"] = None
    name: Annotated[str | None, "name shown to people; default: job N"] = None
    workspace: Annotated[str | None, 'git URL (`https://host/repo.git#ref`), or "none"'] = None
    workspace_sha256: Annotated[str | None, "of its stored workspace"] = None
    workspace_contents: Annotated[
        str | None, "SHA-256 of an uploaded folder without the times of its files; null: `workspaceSha256`"
    ] = None
    env_vars: Annotated[
        dict[str, str],
        "environment of the command; a value `secret:NAME` stands for that secret, looked up at launch. Responses hide "
        "the values of secret-looking names",
    ] = field(default_factory=dict)
    time_limit: Annotated[int | None, "limit of the running time, in seconds"] = None
    max_cost: Annotated[
        float | None,
        "US dollars of all attempts, and of all jobs of an array, a sweep or a comparison, at which they are stopped",
    ] = None
    max_gpu_hours: Annotated[float | None, "the same in GPU hours"] = None
    stop_grace: Annotated[int, "seconds between the signal of a stop and SIGKILL; default 60"] = 60
    stop_signal: Annotated[
        str | None,
        "signal in place of SIGTERM: TERM, INT, HUP, QUIT, USR1 or USR2; default: the image's STOPSIGNAL, or TERM",
    ] = None
    warn_before: Annotated[
        str | None,
        "warn the main program before the job's end is due: `TIME` or `TIME:SIGNAL`, such as 300s or 5m:USR1; "
        "default signal TERM",
    ] = None
    on_idle: Annotated[str | None, "if nothing works in it and nobody uses it: notify:30m,stop:2h"] = None
    on_stall: Annotated[str | None, "if no step or output comes for so many pauses: notify:5,retry:20"] = None
    on_diverge: Annotated[str | None, "if a loss is not finite or explodes: notify,stop"] = None
    on_disk: Annotated[str | None, "if so many percent of its disk space are used: notify:80,stop:95"] = None
    keep_on_fail: Annotated[int | None, "seconds that a failed job's machine is kept for its user to look"] = None
    max_attempts: Annotated[
        int, "maximum attempts, not counting attempts ended by a fault of the machine or the service; default 1"
    ] = 1
    priority: Annotated[int, "0 to 100; jobs with a higher priority start first; default 50"] = 50
    cpus: Annotated[float | None, "limit of CPUs"] = None
    memory_mb: Annotated[int | None, "memory limit, MiB"] = None
    shared_mem_mb: Annotated[int | None, "size of /dev/shm, MiB; counts towards the job's memory"] = None
    working_dir: Annotated[
        str | None, "where the command starts: a folder of the workspace, or an absolute path in the container"
    ] = None
    user: Annotated[str | None, "UID, UID:GID or root; default: the host's setting"] = None
    network: Annotated[str | None, "none: only its own loopback interface; default: the host's setting"] = None
    python: Annotated[
        str | None, "Python version for jobs that run without containers, such as 3.12; default: the service's version"
    ] = None
    packages: Annotated[
        tuple[str, ...],
        "requirements in addition to those that the workspace declares, as lines of a requirements.txt; `auto`: "
        "packages for the modules that the program imports",
    ] = ()
    requirements_file: Annotated[
        str | None, "workspace file that declares the requirements; default: the first one found"
    ] = None
    extras: Annotated[tuple[str, ...], "extras of the workspace's project (pyproject.toml) to install"] = ()
    groups: Annotated[tuple[str, ...], "dependency groups of the workspace's project to install"] = ()
    capacity: Annotated[
        str | None, "TPU capacity: standard, spot, flex-start or reserved; default: the service's settings"
    ] = None
    data_disks: Annotated[
        tuple[str, ...],
        "persistent disks from the service's settings, mounted at /disks/NAME of a TPU VM: `NAME`, or `NAME:rw` to "
        "write to it",
    ] = ()
    slurm_options: Annotated[tuple[str, ...], "options of sbatch for a Slurm cluster, such as `--account=lab`"] = ()
    tags: Annotated[tuple[str, ...], "tags for finding the job again"] = ()
    nodes: Annotated[int | None, "nodes of its allocation on a Slurm cluster, each of which runs the command"] = None
    ports: Annotated[tuple[str, ...], "ports to expose: `external:internal:scheme`; external 0: the host chooses"] = ()
    registry_username: Annotated[str | None, "user name for the container's registry, for this job only"] = None
    outputs: Annotated[
        tuple[str, ...],
        "patterns of workspace files that are copied to the artifacts when the job ends: `outputs/**`, `*.pt`; a "
        "folder includes everything in it",
    ] = ()
    metric_patterns: Annotated[
        tuple[str, ...],
        "metrics read from the log, each as `NAME=EXPRESSION`, an RE2 expression with one group for the value: "
        "`loss=loss ([0-9.]+)`",
    ] = ()
    after: Annotated[
        tuple[str, ...],
        "ids of jobs that must succeed (`ID`) or just end (`ID:ended`) before this one starts. If one can no "
        "longer succeed, this job is cancelled",
    ] = ()
    inputs: Annotated[
        tuple[str, ...],
        "jobs whose artifacts are copied into a folder of this job's workspace: `ID:FOLDER`. This job waits until "
        "they succeed",
    ] = ()
    notify: Annotated[
        tuple[str, ...],
        "saved receivers (GET /notifications) that are told of the job's end, or of the named events: `NAME`, "
        "`NAME:job.running,job.failed`; those of an array or a sweep are told once, when it has ended",
    ] = ()
    params: Annotated[
        dict[str, Value],
        "hyperparameters by name, for finding, sorting and comparing jobs: strings, numbers, true or false; the "
        "job gets them in $GRADIENT_PARAMS. Responses also include hyperparameters found in the command, the "
        "variables and the program",
    ] = field(default_factory=dict)
    array_reuse: Annotated[
        str | None,
        "for jobs that run as processes, reuse one sandbox for consecutive members of an array: `on` or `off`; "
        "default: only after a member that took less than a second",
    ] = None
    code_commit: Annotated[str | None, "git commit of the uploaded folder"] = None
    code_branch: Annotated[str | None, "git branch of the uploaded folder"] = None
    code_dirty: Annotated[bool | None, "whether the uploaded folder has changes since its commit"] = None
    code_describe: Annotated[
        str | None, "the commit's name as printed by `git describe`, from the last tag before it"
    ] = None

    def __post_init__(self) -> None:
        # Shells take carriage returns for part of a word.
        object.__setattr__(self, "command", self.command.replace("\r\n", "\n").removesuffix("\r"))
        if self.command or (self.machine_type and not self.build_only):  # a sweep without jobs has no machine type
            _check_command(self.command)
        _check_env(self.env_vars)
        if self.name is not None:
            check_label(self.name, "name", MAX_NAME)
        ImageOptions(*(getattr(self, option) for option in ImageOptions.__slots__)).check()
        _check_workspace(self.workspace, self.workspace_sha256)
        self._check_end()
        _check_range(self.max_attempts, 1, MAX_ATTEMPTS, "maxAttempts", "attempts")
        _check_range(self.priority, 0, MAX_PRIORITY, "priority", "(higher starts first)")
        _check_range(self.cpus, 0.01, MAX_CPUS, "cpus", "CPUs")
        _check_range(self.memory_mb, 16, MAX_MEMORY_MB, "memoryMb", "MiB")
        _check_range(self.shared_mem_mb, 1, MAX_MEMORY_MB, "sharedMemMb", "MiB")
        check_shared_memory(self.shared_mem_mb, self.memory_mb)
        if self.user is not None:
            check_user(self.user)
        check_network(self.network)
        check_python(self.python)
        check_requirements(self.packages, self.requirements_file, self.extras, self.groups)
        _check_capacity(self.capacity, self.time_limit)
        if self.array_reuse not in {None, "on", "off"}:
            raise SpecInvalid(f"{quoted(self.array_reuse or '')} is neither on nor off.", field="arrayReuse")
        parse_data_disks(self.data_disks)
        check_job_options(self.slurm_options)
        check_tags(self.tags)
        _check_paths(self)
        parse_metric_patterns(self.metric_patterns)
        parse_dependencies(self.after, self.inputs)
        parse_notify(self.notify)
        object.__setattr__(self, "params", check_params(self.params))
        _check_code(self)
        object.__setattr__(self, "ports", tuple(str(port) for port in parse_ports(self.ports)))
        if self.registry_username is not None and self.container is None:
            text = "registryUsername requires a container of that registry. Name it, with the registry's host."
            raise SpecInvalid(text, field="container")

    def _check_end(self) -> None:
        _check_range(self.time_limit, 1, MAX_TIME_LIMIT, "timeLimit", "seconds")
        _check_range(self.max_cost, LEAST_CEILING, MAX_CEILING, "maxCost", "US dollars")
        _check_range(self.max_gpu_hours, LEAST_CEILING, MAX_CEILING, "maxGpuHours", "GPU hours")
        _check_range(self.stop_grace, 0, MAX_GRACE_SECONDS, "stopGrace", "seconds")
        _check_range(self.keep_on_fail, 1, MAX_KEEP_SECONDS, "keepOnFail", "seconds")
        if self.stop_signal is not None:
            object.__setattr__(self, "stop_signal", parse_signal(self.stop_signal))
        if self.warn_before is not None:
            object.__setattr__(self, "warn_before", str(parse_warning(self.warn_before, self.time_limit)))
        for name in GUARDS:
            parse_guard(name, getattr(self, name), self.max_attempts)

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON stored in the job's row; `from_json` reads it."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            name: list(getattr(self, name)) for name in _tuples()
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "JobSpec":
        """Read from the job's row; unknown fields, stored by a newer release, are left out.

        Not validated again: rules that became stricter since submission must not make a stored spec unreadable.
        """
        spec = object.__new__(cls)
        for name, default, make_default in _defaults():
            value = stored.get(name, default) if make_default is None or name in stored else make_default()
            object.__setattr__(spec, name, tuple(value) if name in _tuples() else value)
        return spec

    def redacted_env(self) -> dict[str, str]:
        """Return the environment for display: values of secret-looking variables hidden, but not names of secrets."""
        return self.env_vars | dict.fromkeys(self.hidden_variables(), REDACTED)

    def hidden_variables(self) -> list[str]:
        """Return the variables whose values nobody is shown."""
        named = self.secrets()
        return [name for name in self.env_vars if _SECRET_NAME.search(name) and name not in named]

    def all_params(self) -> dict[str, Value]:
        """Return the parameters that are known before the job runs, also from its command and visible variables."""
        seen = variable_params(self.env_vars, {*self.hidden_variables(), *self.secrets()})
        params = {**seen, **command_params(self.command), **self.params}
        return dict(sorted(params.items(), key=lambda item: item[0] not in self.params)[:MAX_PARAMS])

    def secrets(self) -> dict[str, str]:
        secrets = {n: v.removeprefix(SECRET_PREFIX) for n, v in self.env_vars.items() if v.startswith(SECRET_PREFIX)}
        return {variable: name for variable, name in secrets.items() if SECRET_NAME.match(name)}

    def warning(self) -> EndWarning | None:
        return parse_warning(self.warn_before) if self.warn_before is not None else None

    def parsed_ports(self) -> tuple[PortMapping, ...]:
        return tuple(PortMapping.parse(port) for port in self.ports)

    def redacted_workspace(self) -> str | None:
        """Return the git URL for display, with any password hidden."""
        return hide_password(self.workspace) if self.workspace else None


@cache
def _tuples() -> frozenset[str]:
    """Return the fields that JSON has as lists."""
    return frozenset(option.name for option in fields(JobSpec) if option.default == ())


@cache
def _defaults() -> list[tuple[str, Any, Callable[[], Any] | None]]:
    return [
        (field.name, field.default, None if field.default_factory is MISSING else field.default_factory)
        for field in fields(JobSpec)
    ]


def hide_password(url: str) -> str:
    """Hide the user information of a URL (the part before the host's `@`)."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{REDACTED}@{host}"))


def split_login(url: str) -> tuple[str, str | None]:
    """Split a URL into one without user information, and that information (`user:password`, or a token alone).

    Raises `ValueError`: brackets in the host do not hold an IPv6 address.
    """
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    return (urlunsplit(parts._replace(netloc=host)), login) if at else (url, None)


def _check_paths(spec: JobSpec) -> None:
    if spec.working_dir is not None:
        check_working_dir(spec.working_dir)
    check_outputs(spec.outputs)
    check_slashes([spec.working_dir or ""], "workingDir")
    check_slashes(spec.outputs, "outputs")
    check_slashes(spec.inputs, "inputs")
    check_slashes([spec.requirements_file or ""], "requirementsFile")
    check_slashes([spec.rel_dockerfile_path or ""], "relDockerfilePath")


def _check_command(command: str) -> None:
    if not command.strip():
        raise SpecInvalid("A job needs a command, for example --command 'python main.py'.", field="command")
    if "\0" in command:
        raise SpecInvalid("The command contains a NUL character; remove it.", field="command")
    if "\r" in command:
        raise SpecInvalid(
            "The command has a carriage return within a line, which the shell would treat as part of a word. "
            "Remove it, or write it as $'\\r'.",
            field="command",
        )
    size = len(command.encode(errors="surrogatepass"))
    if size > MAX_COMMAND_BYTES:
        raise SpecInvalid(
            f"The command has {size:,} bytes; at most {MAX_COMMAND_BYTES:,} are allowed. Put it into a script in the "
            "workspace and run that.",
            field="command",
        )
    check_encodable(command, "command")


def _check_env(env: dict[str, str]) -> None:
    if len(env) > MAX_ENV_VARS:
        raise SpecInvalid(
            f"{len(env):,} environment variables; at most {MAX_ENV_VARS} are allowed. Put them into a file in the "
            "workspace and read that.",
            field="envVars",
        )
    total = 0
    for name, value in env.items():
        where = f"envVars.{name[:80]}"
        if not _ENV_NAME.match(name):
            raise SpecInvalid(
                f"{quoted(name)} is not a name for an environment variable. Use letters, digits and _, not starting "
                "with a digit.",
                field="envVars",
            )
        if name.startswith(_RESERVED):
            raise SpecInvalid(
                f"{name} is reserved, as are all names that begin with {' or '.join(_RESERVED)}. Choose another name.",
                field=where,
            )
        if "\0" in value:
            raise SpecInvalid(f"The value of {name} contains a NUL character; remove it.", field=where)
        check_encodable(value, where)
        _check_secret(name, value, where)
        total += len(name) + len(value.encode())
    if total > MAX_ENV_BYTES:
        raise SpecInvalid(
            f"The environment has {total:,} bytes; at most {MAX_ENV_BYTES:,} are allowed. Put it into a file in the "
            "workspace and read that.",
            field="envVars",
        )


def _check_secret(variable: str, value: str, where: str) -> None:
    if not value.startswith(SECRET_PREFIX):
        return
    if variable.startswith(_SIMULATE_PREFIX):
        raise SpecInvalid(f"{variable} cannot be a secret: the service shows its value.", field=where)
    if not SECRET_NAME.match(value.removeprefix(SECRET_PREFIX)):
        raise SpecInvalid(
            f"The value of {variable} begins with {SECRET_PREFIX}, but no name of a secret follows. Names consist "
            "of letters, digits and _ . -; no other value may begin with this prefix.",
            field=where,
        )


def _check_code(spec: JobSpec) -> None:
    given = {"codeCommit": spec.code_commit, "codeBranch": spec.code_branch, "codeDescribe": spec.code_describe}
    for name, text in given.items():
        if text is not None:
            check_label(text, name, MAX_NAME)


def _check_capacity(capacity: str | None, time_limit: int | None) -> None:
    if capacity is not None and capacity not in CAPACITIES:
        raise SpecInvalid(
            f"{quoted(capacity)} is not a kind of capacity. Use {', '.join(CAPACITIES)}.", field="capacity"
        )
    if capacity == "flex-start" and (time_limit is None or time_limit > MAX_FLEX_START_SECONDS):
        raise SpecInvalid(
            "Flex-start capacity is available for a limited time. Set a time limit of at most 7 days (604,800 "
            "seconds).",
            field="timeLimit",
        )


def _check_workspace(url: str | None, sha256: str | None) -> None:
    if url is not None and sha256 is not None:
        raise SpecInvalid("Give either a git URL or an uploaded folder, not both.", field="workspace")
    if url is None:
        return
    if not _is_git_url(url):
        raise SpecInvalid(
            f"{quoted(_redacted_url(url))} is not a git address that can be fetched. Use https://host/repo.git "
            "(with #branch for one of its branches), or upload the folder.",
            field="workspace",
        )
    check_label(url, "workspace", 2000)


def _is_git_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        names_server = parts.scheme.removeprefix("git+") in GIT_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets do not hold an IPv6 address, or the port is no number
        return False
    # urlsplit passes over some of these characters, and programs that connect read them in other ways.
    return names_server and url.isprintable() and not set(url) & {" ", "\\"}


def _redacted_url(url: str) -> str:
    try:
        return hide_password(url)
    except ValueError:
        return REDACTED


def _check_range(value: float | None, low: float, high: float, where: str, unit: str) -> None:
    if value is not None and not low <= value <= high:  # also refuses NaN
        raise SpecInvalid(f"{value} is out of range: {low} to {high:,} {unit}.", field=where)
