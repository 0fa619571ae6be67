import ast
import builtins
import re
from pathlib import Path

import pytest

import gradient_jobs
from gradient_cli.api.transport import Transport
from gradient_cli.workspace import job_spec
from gradient_jobs.options import JobOptions
from gradient_jobs.remote import RemoteCall

pytestmark = pytest.mark.integration

TRAIN = """\
import os, pathlib
import gradient_jobs

for step in range(3):
    gradient_jobs.log(step=step, loss=1 / (step + 1), accuracy=step / 2)
    print("step", step)
folder = pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"], "out")
folder.mkdir()
(folder / "model.txt").write_text("trained")
(folder / "log.txt").write_text("log")
"""


@pytest.fixture
def trained(client, folder):
    (folder / "train.py").write_text(TRAIN)
    job = client.jobs.create(machine_type="CPU", command="python train.py", name="train", tags=["sdk", "first"])
    return job.wait(60, check=True)


def test_metrics_without_pandas_name_what_to_install(trained, monkeypatch):
    imported = builtins.__import__

    def without_pandas(name, *args):
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return imported(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(gradient_jobs.LibraryMissing) as caught:
        trained.metrics()
    assert (str(caught.value), caught.value.hint) == (
        "job.metrics() needs pandas, which is not installed",
        "Run `pip install pandas`.",
    )


@pytest.mark.usefixtures("folder")
def test_parameters_are_given_logged_and_searched(client):
    program = "import gradient_jobs; gradient_jobs.log_params({'lr': 9, 'depth': 12})"
    options = {"machine_type": "CPU", "command": f'python -c "{program}"', "params": {"lr": 0.01, "amp": True}}
    job = client.jobs.create(**options).wait(60, check=True)
    assert job.refresh().params == {"amp": True, "depth": 12, "lr": 0.01}
    assert [found.id for found in client.jobs.list(query="lr=0.01 depth>=12", sort="params.lr")] == [job.id]


def test_jobs_are_listed_with_filters(client, trained):
    assert [job.id for job in client.jobs.list(tag="first", machine_type="CPU", limit=1)] == [trained.id]
    assert trained.id in [job.id for job in client.jobs.list(since="10m", mine=True, limit=None)]
    assert client.jobs.list(name="no such job") == []
    assert client.jobs.get(trained.id).name == "train"
    with pytest.raises(gradient_jobs.UsageError, match="unknown option 'machine'") as caught:
        client.jobs.list(machine="CPU")
    assert caught.value.hint == "Did you mean machine_type?"


def test_a_running_job_is_stopped(client):
    job = client.jobs.create(machine_type="CPU", command="echo started; exec sleep 600", workspace="none")
    assert str(next(job.follow())) == "started"
    with pytest.raises(gradient_jobs.TimedOut, match="has not ended within"):
        job.wait(0.1)
    assert job.refresh().state == "Running"
    job.stop()
    with pytest.raises(gradient_jobs.JobFailed, match="Cancelled") as caught:
        job.wait(60, check=True)
    assert caught.value.job is job
    job.delete()
    with pytest.raises(gradient_jobs.ServerError) as caught:
        client.jobs.get(job.id)
    assert (caught.value.status, caught.value.name) == (404, "JobNotFound")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"machine_type": "CPU"}, "command: required"),
        ({"command": "true", "machine_type": "CPUU"}, "machineType: "),
        ({"command": "true", "machine_type": "CPU", "time_limit": "soon"}, "timeLimit: 'soon' is not a duration"),
        ({"command": "true", "machine_type": "CPU", "tags": "one"}, "tags: must be a list of strings"),
        ({"command": "true", "machine_type": "CPU", "workspace": "nowhere"}, "workspace: nowhere does not exist"),
        ({"command": "true", "machinetype": "CPU"}, "unknown option 'machinetype'"),
    ],
)
def test_wrong_options_are_refused_as_by_the_client(client, options, error):
    with pytest.raises(gradient_jobs.ClientError, match=f"^{re.escape(error)}") as caught:
        client.jobs.create(**options)
    assert caught.value.hint or "Did you mean" in str(caught.value)


def test_every_option_of_the_client_is_typed():
    flags = {re.sub("([A-Z])", r"_\1", name).lower() for name in job_spec.option_names()}
    renamed = {
        "tag": "tags",
        "with": "packages",
        "requirements": "requirements_file",
        "extra": "extras",
        "group": "groups",
        "param": "params",
    }
    assert flags - renamed.keys() | set(renamed.values()) == set(JobOptions.__annotations__)


def test_no_server(folder, monkeypatch):
    monkeypatch.setenv("GRADIENT_URL", "http://127.0.0.1:1")
    client = gradient_jobs.Client()
    with pytest.raises(gradient_jobs.ConnectionFailed, match=r"nothing answers at http://127\.0\.0\.1:1"):
        client.jobs.list()
    monkeypatch.delenv("GRADIENT_URL")
    monkeypatch.setenv("GRADIENT_HOME", str(folder))
    with pytest.raises(gradient_jobs.ClientError, match="no server is configured"):
        gradient_jobs.Client()


@pytest.mark.parametrize(
    "error",
    [
        gradient_jobs.ConnectionFailed("connection lost"),
        gradient_jobs.ServerError("no answer now", status=429),
        gradient_jobs.ServerError("no answer now", status=500),
    ],
    ids=["lost", "429", "500"],
)
def test_a_failed_request_ends_no_wait(client, monkeypatch, error):
    job = client.jobs.create(machine_type="CPU", command="echo done", workspace="none")
    failed, send = set(), Transport.json

    def fail_once(transport, method, path, **settings):
        if method == "GET" and path not in failed:
            failed.add(path)
            raise error
        return send(transport, method, path, **settings)

    monkeypatch.setattr(Transport, "json", fail_once)
    assert [str(line) for line in job.follow()] == ["done"]
    assert job.succeeded


def test_a_wait_times_out_while_the_server_is_away(client, monkeypatch):
    job = client.jobs.create(machine_type="CPU", command="sleep 600", workspace="none")
    send, sent = Transport.send, []

    def send_first(transport, *request, **settings):
        sent.append(request)
        if len(sent) > 1:
            raise gradient_jobs.ConnectionFailed("connection lost")
        return send(transport, *request, **settings)

    with monkeypatch.context() as away:
        away.setattr(Transport, "send", send_first)
        for wait in (job.wait, RemoteCall(job).result):
            sent.clear()
            with pytest.raises(gradient_jobs.TimedOut, match=f"job {job.id} has not ended within 1s"):
                wait(1)
    job.stop(now=True)


@pytest.mark.parametrize("page", ["client/README.md", "docs/sdk.md"])
def test_the_options_of_documented_calls_exist(page):
    text = (Path(__file__).parents[2] / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    calls = [one for one in nodes if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("jobs.create")]
    used = {keyword.arg for call in calls for keyword in call.keywords}
    assert used
    assert used <= JobOptions.__annotations__.keys()
