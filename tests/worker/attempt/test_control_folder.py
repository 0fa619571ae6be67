"""Jobs that put something else in place of a control file, while their worker dies between start and record of it.

The next worker takes the attempt up as if it had not begun, with the job's own things in its control folder.
"""

import threading

import pytest
from support.deployment import TIMEOUT_SECONDS, wait_until
from support.job_insertion import insert_job
from support.servers.private_docker_engine import SHELL_IMAGE

from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.jobs import lifecycle, projects, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import JobState
from core.jobs.submission import NewJob
from core.settings import Settings
from core.settings.worker import MachineSettings
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import AttemptRun, run_attempt
from worker.backends.base import CONTROL
from worker.context import WorkerContext
from worker.runner.control_files import RESERVED_FILES

pytestmark = pytest.mark.integration

NAMES = (
    *RESERVED_FILES,
    "start.lock",
    "log",
    "metrics.jsonl",
    "stopping",
    "signalled",
    "out_of_memory",
    "preempted",
    "room",
)
KINDS = {
    "link": 'ln -s "{victim}" "$it"',
    "hard link": 'ln "{victim}" "$it"',
    "fifo": 'mkfifo "$it"',
    "folder": 'mkdir "$it"',
}
SLOW = {("docker", "link"), ("docker", "folder")}
PRECIOUS = "precious"


class World:
    """A host and its jobs, each of which attacks one name."""

    def __init__(self, backend: str, settings: Settings, database: Database) -> None:
        self.backend = backend
        self.host = WorkerContext.open(settings, database, worker_name="w1", hostname="here")
        self.victim = settings.root / "victim"
        self.victim.write_text(PRECIOUS)

    def launched(self, kind: str, name: str, *, end: str = "sleep 600"):
        """The row of a job that runs and has put its thing there; its worker dies before it says so."""
        control = CONTROL if self.backend == "docker" else '$(dirname "$GRADIENT_METRICS_FILE")'
        put = KINDS[kind].format(victim=self.victim)
        command = f'it={control}/{name}; rm -f "$it"; {put}; echo done >"$GRADIENT_ARTIFACTS_DIR/attacked"; {end}'
        self.host.write(lambda session: self._submit(session, command))
        job = self.host.write(lambda session: claims.claim(session, WorkerOffer("w1", "here", (self.backend,))))
        attempt = AttemptRun(self.host, job, AttemptControl())
        attempt.prepare()
        attempt.launch()
        wait_until((self.host.scratch(job.id, 1).artifacts / "attacked").exists, "the attack")
        return job

    def _submit(self, session, command):
        project, _ = projects.get_or_create(session, "default")
        container = SHELL_IMAGE if self.backend == "docker" else None
        spec = JobSpec(machine_type="CPU", command=command, container=container, stop_grace=5)
        machine = Catalogue.load().get("CPU")
        new_job = NewJob(spec=spec, machine=machine, backend=self.backend, project_id=project.id, submitted_by="t")
        insert_job(session, new_job)

    def adopt(self):
        return self.host.write(
            lambda session: lifecycle.adopt(session, "w2", "here", backends=[self.backend], stale_seconds=-10)
        )

    def row(self, job):
        with self.host.database.read() as session:
            return queries.get_row(session, job.id)

    def clear(self) -> None:
        backend = self.host.backend(self.backend)
        for handle in backend.owned():
            backend.destroy(handle)


@pytest.fixture(params=["process", "docker"])
def world(request, sqlite_database, tmp_path):
    settings = Settings(home=tmp_path / "home")
    settings.root.mkdir()
    if request.param == "docker":
        docker = request.getfixturevalue("docker_server").settings()
        settings = Settings(home=tmp_path / "home", docker=docker, machines=MachineSettings(simulate=False))
    world = World(request.param, settings, sqlite_database)
    yield world
    world.clear()


@pytest.mark.parametrize(
    ("world", "kind"),
    [
        pytest.param(place, kind, marks=pytest.mark.slow if (place, kind) in SLOW else ())
        for place in ("process", "docker")
        for kind in KINDS
    ],
    indirect=["world"],
)
def test_nothing_in_the_control_folder_leads_a_worker_astray_that_takes_up_a_starting_attempt(world, kind):
    """A link there had a file of the host overwritten; a FIFO there held the attempt for ever."""
    names = NAMES if world.backend == "process" else ("room", "stopping", "signalled", *RESERVED_FILES)
    if (world.backend, kind) == ("docker", "hard link"):
        names = ("room",)  # no file of the host is within reach of a hard link: nothing is put there
    jobs = {name: world.launched(kind, name) for name in names}
    adopted, running = world.adopt(), []
    for job in adopted:
        signals = AttemptControl()
        thread = threading.Thread(target=run_attempt, args=(world.host, job, signals), daemon=True)
        thread.start()
        running.append((thread, signals))
    for name, job in jobs.items():
        wait_until(lambda job=job: world.row(job).state is JobState.RUNNING, f"{name} to be taken up")
    for _, signals in running:
        signals.request_stop()
    for thread, _ in running:
        thread.join(TIMEOUT_SECONDS)
    ended = {name: (world.row(job).state, world.row(job).reason) for name, job in jobs.items()}
    assert ended == dict.fromkeys(names, (JobState.CANCELLED, "stopped_by_user"))
    assert world.victim.read_text() == PRECIOUS
