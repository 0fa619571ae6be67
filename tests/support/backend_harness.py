"""A backend with the folders that a worker would give it."""

import threading
from dataclasses import replace

from support.deployment import wait_until

from core.ids import new_id
from core.jobs.spec.job_spec import JobSpec
from core.settings import Settings
from core.storage.artifacts.store import DirectoryStore
from core.storage.shared.folders import SharedStorage
from worker.attempt.scratch import Scratch
from worker.backends import make_backend
from worker.backends.base import LaunchSpec, WaitsElsewhere, no_check


class BackendHarness:
    """A backend and the folders that the worker would give it."""

    def __init__(self, name, root, docker=None, *, resource_inventory=None, machine_type="CPU", **settings):
        self.name = name
        self.machine_type = machine_type
        self.settings = Settings(home=root, **settings, **({"docker": docker} if docker else {}))
        self.resource_inventory = resource_inventory
        self.backend = self.new_instance()
        self.root = root
        self.job_id = new_id("j")  # processes are found by it, also those of a test beside this one
        self.made = []

    def new_instance(self):
        """Create another instance of the backend, as a restarted worker does."""
        return make_backend(self.name, self.settings, self.resource_inventory)

    def spec(self, command, *, attempt=1, **options):
        """Build the launch of a command; options are fields of JobSpec or of LaunchSpec."""
        own = set(LaunchSpec.__slots__)
        submitted = {name: options.pop(name) for name in set(JobSpec.__slots__) - own if name in options}
        job_spec = JobSpec(machine_type=self.machine_type, command=command, **{"stop_grace": 5} | submitted)
        job_id = self.job_id
        scratch = Scratch(self.root / "attempts", job_id, attempt)
        scratch.make(DirectoryStore(self.root / "artifacts-store"))
        scratch.workspace.mkdir(exist_ok=True)
        project_id = options.pop("project_id", "p1")
        storage = SharedStorage(self.root / "storage")
        env = {"GRADIENT_JOB_ID": job_id, "GRADIENT_ATTEMPT": str(attempt)} | options.pop("env", {})
        return LaunchSpec(
            name=scratch.name,
            job_id=job_id,
            attempt=attempt,
            machine_type=self.machine_type,
            job_spec=job_spec,
            env=env,
            workspace=scratch.workspace,
            artifacts=scratch.artifacts,
            project_id=project_id,
            storage=storage.project_folder(project_id, mounted=self.backend.capabilities.mounts),
            datasets=storage.datasets,
            control=scratch.control,
            **{"container": None, "gpus": ()} | options,
        )

    def launch(self, spec, confirm=lambda: None, progress=lambda *_: None):
        """Launch, and again when it no longer waits elsewhere, unless the spec has a `resume` of its own."""
        waits, resumed = spec.resume is no_check, threading.Event()
        spec = replace(spec, resume=resumed.set) if waits else spec
        while True:
            try:
                handle = self.backend.launch(spec, confirm, progress)
            except WaitsElsewhere:
                if not waits:
                    raise
                resumed.wait(1)
                resumed.clear()
            else:
                self.made.append(handle)
                return handle

    def running(self, command, **options):
        """Launch a job that prints `up` first, wait for that, and return its spec and handle."""
        spec = self.spec(command, **options)
        handle = self.launch(spec)
        wait_until(lambda: self.output(spec) == b"up\n", "its first line")
        return spec, handle

    def wait(self, handle):
        return wait_until(lambda: self.backend.ended(handle), "the job to end")

    def output(self, spec):
        return (spec.control / "log").read_bytes() if (spec.control / "log").exists() else b""

    def inside(self, folder, mounted):
        """Return the path at which the job finds a folder of this host."""
        return mounted if self.backend.capabilities.mounts else str(folder)

    def clear(self):
        for handle in self.made + self.backend.owned():
            self.backend.destroy(handle)
