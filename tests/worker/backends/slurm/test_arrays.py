"""Members of an array that Slurm has as one array: submitted once, whatever happens in between."""

from itertools import count

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until

from core.settings.slurm import SlurmSettings
from worker.backends.base import LaunchError, WaitsElsewhere
from worker.backends.slurm.commands import SlurmError

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def place(slurm, tmp_path):  # noqa: ARG001 - where its jobs run
    place = BackendHarness("slurm", tmp_path, slurm=SlurmSettings(enabled=True, poll_seconds=1))
    yield place
    place.clear()


class Array:
    """Members as a worker prepares them: each is launched, and waits without a thread until it is resumed."""

    def __init__(self, place, members, command='echo run >>"$PWD/runs"; sleep 600'):
        self.resumed, self.stopped, self._place = [], set(), place
        numbers, first = count(1), place.job_id[:9]
        self.specs = [self._spec(f"{first}{next(numbers):03}", command) for _ in range(members)]
        for spec in self.specs:
            with pytest.raises(WaitsElsewhere):
                place.launch(spec)

    def _spec(self, job_id, command):
        def check():
            if job_id in self.stopped:
                raise LaunchError("stopped_by_user", "before it was started")

        self._place.job_id = job_id
        resume = lambda: self.resumed.append(job_id)  # noqa: E731
        return self._place.spec(command, check=check, together=True, resume=resume)

    def submit(self, limit=None):
        self._place.backend.submit_members([spec.name for spec in self.specs], limit)

    def launch(self, spec):
        """Launch a member again until it has begun, as its resumption does."""

        def handle():
            try:
                return self._place.launch(spec)
            except WaitsElsewhere:
                return None

        return wait_until(handle, "the member to begin")

    def runs(self):
        wait_until(lambda: all((spec.workspace / "runs").exists() for spec in self.specs), "all to run")
        return [(spec.workspace / "runs").read_text() for spec in self.specs]


class Killed(BaseException):
    """The worker ends at this point."""


def kill(*_):
    raise Killed


def test_members_are_one_array_with_the_limit_and_each_has_an_end_of_its_own(place, slurm):
    array = Array(place, 4, 'echo run >>"$PWD/runs"; until [ -e go ]; do sleep 0.1; done; exit 3')
    array.submit(limit=3)
    assert len(set(slurm.run("squeue", "-h", "-o", "%F").split())) == 1
    wait_until(lambda: slurm.run("squeue", "-h", "-t", "running", "-o", "%i").count("_") == 3, "as many as may run")
    first, *others = array.specs
    handle = array.launch(first)
    (first.workspace / "go").touch()
    assert place.wait(handle).code == 3
    place.backend.destroy(handle)
    assert array.runs() == ["run\n"] * 4
    assert {owned["name"] for owned in place.backend.owned()} == {spec.name for spec in others}
    for spec in others:
        place.backend.destroy(array.launch(spec))
    wait_until(lambda: slurm.run("squeue", "-h") == "", "all to be gone")
    assert list((place.root / "slurm").iterdir()) == []


@pytest.mark.parametrize("point", ["created", "confirmed", "launched"])
def test_a_worker_killed_in_a_submission_is_followed_by_one_that_submits_once(place, monkeypatch, point):
    array = Array(place, 3)
    with monkeypatch.context() as patch:
        patch.setattr("worker.backends.slurm.submitter.failpoint", lambda name: kill() if name == point else None)
        with pytest.raises(Killed):
            array.submit()
    place.backend = place.new_instance()
    for spec in array.specs:
        if not (spec.control.parent / "launched").exists():
            with pytest.raises(WaitsElsewhere):
                place.launch(spec)
    array.submit()
    handles = [array.launch(spec) for spec in array.specs]
    assert array.runs() == ["run\n"] * 3
    assert {owned["name"] for owned in place.backend.owned()} == {spec.name for spec in array.specs}
    for handle in handles:
        place.backend.destroy(handle)


@pytest.mark.parametrize("why", ["Invalid job array specification", "Job violates QOS policy (job submit limit)"])
def test_an_array_that_is_too_large_is_submitted_in_slices_that_keep_its_limit(place, slurm, monkeypatch, why):
    run = place.backend._commands.run

    def refuse_large(program, *words):
        if program == "sbatch" and any(word.startswith(("--array=0-2", "--array=0-4")) for word in words):
            raise SlurmError(why, unanswered=False)
        return run(program, *words)

    monkeypatch.setattr(place.backend._commands, "run", refuse_large)
    array = Array(place, 5)
    array.submit(limit=1)
    listed = slurm.run("squeue", "-h", "-o", "%F %E").split("\n")
    assert len({line.split()[0] for line in listed}) == 3
    assert sum("afterany" in line for line in listed) == 2
    slurm.run("scancel", "--me")


def test_a_member_that_is_stopped_while_slurm_is_full_is_not_submitted(place, monkeypatch):
    monkeypatch.setattr("worker.backends.slurm.submitter._RETRY_SECONDS", 1)
    run, array, refused = place.backend._commands.run, Array(place, 2), []

    def refuse_once(program, *words):
        if program == "sbatch" and not refused:
            refused.append(words)
            array.stopped.add(array.specs[1].job_id)
            raise SlurmError("Unable to contact slurm controller", unanswered=True)
        return run(program, *words)

    monkeypatch.setattr(place.backend._commands, "run", refuse_once)
    array.submit()
    assert array.specs[1].job_id in array.resumed
    with pytest.raises(LaunchError, match="stopped_by_user"):
        place.launch(array.specs[1])
    place.backend.destroy({**array.specs[1].base_handle()})
    handle = array.launch(array.specs[0])
    wait_until((array.specs[0].workspace / "runs").exists, "the first to run")
    assert not (array.specs[1].workspace / "runs").exists()
    place.backend.destroy(handle)


def test_what_slurm_refuses_for_good_is_told_to_each_member(place, monkeypatch):
    array = Array(place, 2)

    def refuse(*_):
        raise SlurmError("Invalid qos specification", unanswered=False)

    with monkeypatch.context() as patch:
        patch.setattr(place.backend._commands, "run", refuse)
        array.submit()
    assert array.resumed == [spec.job_id for spec in array.specs]
    for spec in array.specs:
        with pytest.raises(LaunchError, match="Invalid qos"):
            place.launch(spec)


def test_one_member_that_an_administrator_requeues_ends_and_the_others_go_on(place, slurm):
    array = Array(place, 2)
    array.submit()
    handles = [array.launch(spec) for spec in array.specs]
    array.runs()
    ids = dict(line.split() for line in slurm.run("squeue", "-h", "-o", "%K %i").split("\n"))
    slurm.run("scontrol", "update", f"jobid={ids['0']}", "requeue=1")
    slurm.run("scontrol", "requeue", ids["0"])
    ended = place.wait(handles[0])
    assert ended.reason == "preempted"
    assert place.backend.ended(handles[1]) is None
    for handle in handles:
        place.backend.destroy(handle)
    assert array.runs() == ["run\n"] * 2
