import importlib
import importlib.metadata
import os
import sys
import time
from pathlib import Path

import pytest

import gradient_jobs
from gradient_jobs import remote_call

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("folder")]


@gradient_jobs.remote(machine_type="CPU", tags=["remote"])
def add(first, second=0):
    sys.stdout.write(f"adding {first} {second}\n")
    gradient_jobs.log(step=1, total=first + second)
    return {"total": first + second, "job": remote_call.is_job()}


@gradient_jobs.remote(machine_type="CPU")
def factorial(number):
    sys.stdout.write(f"{number}\n")
    return number * factorial(number - 1) if number > 1 else 1


def test_a_function_runs_as_a_job(client, capsys):
    assert add(2, second=3) == {"total": 5, "job": True}
    assert capsys.readouterr().out == "adding 2 3\n"
    assert add.local(1) == {"total": 1, "job": False}
    [job, *_] = client.jobs.list(tag="remote", limit=1)
    assert job.name == "add"
    assert list(job.metrics()["total"]) == [5]


def test_an_exception_is_raised_again_with_the_traceback_of_the_job():
    limit = 10

    @gradient_jobs.remote(machine_type="CPU")
    def fail(number):
        if number > limit:
            raise ValueError(f"{number} is too large")

    call = fail.submit(11)
    with pytest.raises(ValueError, match="11 is too large") as caught:
        call.result(60)
    assert isinstance(caught.value.__cause__, gradient_jobs.RemoteTraceback)
    assert "in fail\n" in str(caught.value.__cause__)
    assert (call.job.state, call.job.exit_code) == ("Failed", 1)
    assert "ValueError: 11 is too large" in str(call.job.logs()[-1])


def test_an_exception_of_a_library_that_only_the_job_has_is_described(folder):
    (folder / "library.py").write_text("class OutOfMemory(Exception):\n    pass\n")

    @gradient_jobs.remote(machine_type="CPU", files=["library.py"])
    def fail():
        import library  # noqa: PLC0415  in the job only

        raise library.OutOfMemory("16 GiB are too few")

    with pytest.raises(gradient_jobs.JobFailed, match=r"library\.OutOfMemory: 16 GiB are too few") as caught:
        fail.submit().result(60)
    assert isinstance(caught.value.__cause__, gradient_jobs.RemoteTraceback)
    assert "in fail\n" in str(caught.value.__cause__)


def test_a_result_of_a_library_that_only_the_job_has_is_kept(folder, monkeypatch):
    (folder / "library.py").write_text("__version__ = '1.5'\nclass Net:\n    size = 3\n")

    @gradient_jobs.remote(machine_type="CPU", files=["library.py"])
    def build():
        import library  # noqa: PLC0415  in the job only

        return library.Net()

    call = build.submit()
    with pytest.raises(gradient_jobs.ResultNotLoaded) as caught:
        call.result(60)
    assert f"job {call.job.id}: its result cannot be loaded here: ModuleNotFoundError" in str(caught.value)
    assert "The job has library 1.5; here: no library" in str(caught.value)
    assert "pip install library==1.5" in caught.value.hint
    assert f"jobs artifacts get {call.job.id} gradient_result.pickle" in caught.value.hint
    monkeypatch.syspath_prepend(folder)
    assert call.result().size == 3
    monkeypatch.delitem(sys.modules, "library")


def test_a_result_of_another_version_names_both():
    job = gradient_jobs.remote(machine_type="CPU")(len).submit("").job
    versions = {"Python": sys.version.split()[0], "PIL": "9", "yaml": "99", "absent": "1"}
    error = sys.modules["gradient_jobs.remote"]._not_loaded(job, AttributeError("x"), versions)
    pillow, yaml = (importlib.metadata.version(name) for name in ("pillow", "PyYAML"))
    assert f"The job has PIL 9, yaml 99, absent 1; here: PIL {pillow}, yaml {yaml}, no absent." in str(error)
    assert "pip install pillow==9 PyYAML==99 absent==1" in error.hint


def test_a_class_of_the_caller_comes_back_as_itself():
    class Point:
        def __init__(self, x):
            self.x = x

    @gradient_jobs.remote(machine_type="CPU")
    def move(point):
        return [Point(point.x + 1), Point]

    moved, kind = move.submit(Point(1)).result(60)
    assert (type(moved), kind, moved.x) == (Point, Point, 2)


def test_a_call_that_the_job_cannot_load_is_not_mistaken_for_an_error_here(folder, monkeypatch):
    (folder / "ours_alone.py").write_text("class Net:\n    pass\n")
    monkeypatch.syspath_prepend(folder)
    net = importlib.import_module("ours_alone").Net()
    with pytest.raises(gradient_jobs.JobFailed, match=r"cannot be loaded in the job: ModuleNotFoundError.*`files`"):
        gradient_jobs.remote(machine_type="CPU")(str).submit(net).result(60)


def test_a_result_that_cannot_be_sent_is_an_error():
    @gradient_jobs.remote(machine_type="CPU")
    def generator():
        return (number for number in ())

    with pytest.raises(TypeError, match="pickle"):
        generator.submit().result(60)


def test_files_are_beside_the_function(folder):
    (folder / "data").mkdir()
    (folder / "data" / "numbers.txt").write_text("1 2 3")
    (folder / "helper.py").write_text("def total(numbers):\n    return sum(map(int, numbers))\n")

    @gradient_jobs.remote(machine_type="CPU", files=["data", "helper.py"])
    def count():
        import helper  # noqa: PLC0415  in the job only

        return helper.total(Path("data/numbers.txt").read_text().split())

    assert count() == 6


def test_what_is_no_file_is_left_out_and_named(folder, caplog):
    (folder / "pkg" / "inner").mkdir(parents=True)
    (folder / "pkg" / "m.py").write_text("V = 1\n")
    (folder / "pkg" / "nowhere").symlink_to("absent")
    (folder / "pkg" / "inner" / "above").symlink_to("..")
    os.mkfifo(folder / "pkg" / "fifo")

    @gradient_jobs.remote(machine_type="CPU", files=["pkg"])
    def names():
        return sorted(os.listdir("pkg") + os.listdir("pkg/inner"))  # noqa: PTH208

    assert names() == ["inner", "m.py"]
    assert sorted(record.args[0] for record in caplog.records) == ["pkg/fifo", "pkg/inner/above", "pkg/nowhere"]
    with pytest.raises(gradient_jobs.UsageError, match="'pkg/fifo' is neither a file nor a folder"):
        gradient_jobs.remote(machine_type="CPU", files=["pkg/fifo"])(len).submit("")


@pytest.mark.parametrize(
    ("files", "error"), [(["nothing.py"], "'nothing.py' does not exist"), (["/etc/hostname"], "is not below")]
)
def test_files_that_cannot_be_sent_are_refused(files, error):
    function = gradient_jobs.remote(machine_type="CPU", files=files)(len)
    with pytest.raises(gradient_jobs.UsageError, match=error):
        function.submit("abc")


def test_a_stopped_function_has_no_result():
    @gradient_jobs.remote(machine_type="CPU")
    def endless():
        sys.stdout.write("started\n")
        time.sleep(600)

    call = endless.submit()
    assert str(next(call.job.follow())) == "started"
    with pytest.raises(gradient_jobs.TimedOut):
        call.result(0.1)
    call.job.stop()
    with pytest.raises(gradient_jobs.JobFailed, match="Cancelled"):
        call.result(60)


def test_another_python_is_named_before_the_function_is_loaded():
    facts = {"python": "3.8.18", "function": "train"}
    outcome = remote_call._check_version(facts)
    assert outcome["error"] is None
    assert outcome["summary"].startswith("train() was sent by Python 3.8.18, and this job has Python 3.")
    assert remote_call._check_version({**facts, "python": sys.version.split()[0]}) is None


def test_what_cannot_be_sent_is_refused_before_a_job_exists(client):
    before = len(client.jobs.list(limit=None))
    with pytest.raises(gradient_jobs.UsageError, match="add: cannot be sent to a job"):
        add.submit(sys._getframe())
    with pytest.raises(gradient_jobs.UsageError, match="command: not allowed"):
        gradient_jobs.remote(machine_type="CPU", command="true")
    assert len(client.jobs.list(limit=None)) == before


def test_a_function_that_calls_itself_stays_in_its_job(client):
    assert factorial(4) == 24
    [job, *_] = client.jobs.list(limit=1)
    assert job.name == "factorial"
    assert len(job.logs()) == 4
