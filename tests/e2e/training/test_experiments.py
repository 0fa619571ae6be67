"""Published experiments, repeated in their small form on real images; reports are checked against the metrics."""

import json
import shutil
import statistics
import subprocess
import zipfile

import pytest
from support.deployment import CLI_PROGRAM, Deployment
from support.job_packages import ROOT, share_environments

REAL = next((data for folder in ROOT.parents if (data := folder / "shared" / "data").is_dir()), ROOT)
"""Folder with the real data sets, where a machine has them; else scikit-learn's digits stand in."""
IMAGES_OF_A_CLASS = {"train": 16, "test": 4}

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("trainer_packages"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    home = tmp_path_factory.mktemp("experiments") / "home"
    deployment = Deployment(home, **share_environments(home), OMP_NUM_THREADS="1")
    deployment.start_up()
    datasets = home / "storage" / "datasets"
    datasets.mkdir(parents=True, exist_ok=True)
    if (REAL / "mnist.npz").is_file():
        shutil.copyfile(REAL / "mnist.npz", datasets / "mnist.npz")
    if (REAL / "cifar10-subset.zip").is_file():
        shrink(REAL / "cifar10-subset.zip", datasets / "small.zip")
    yield deployment
    deployment.stop()


def shrink(source, target):
    """A part of CIFAR-10 that a few steps go through."""
    with zipfile.ZipFile(source) as images, zipfile.ZipFile(target, "w") as part:
        for name in images.namelist():
            *folders, file = name.split("/")
            if file.endswith(".jpg") and int(file[:4]) < IMAGES_OF_A_CLASS[folders[0]]:
                part.writestr(name, images.read(name))


def cifar10():
    if not (REAL / "cifar10-subset.zip").is_file():
        pytest.skip("needs shared/data/cifar10-subset.zip")
    return ["--data", "cifar10=small.zip"]


def run_experiment(service, folder, name, *options):
    words = [str(CLI_PROGRAM), "experiments", "run", name, "--output", str(folder / "report"), *options]
    done = subprocess.run(
        words, cwd=folder, env=service.environment(), capture_output=True, text=True, timeout=1100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + "".join(failed_logs(service))
    return json.loads((folder / "report" / "figures.json").read_text())


def failed_logs(service):
    for job in service.request("GET", "/jobs?limit=20").json()["jobs"]:
        if job["state"] != "Stopped":
            yield service.request("GET", f"/jobs/{job['id']}/logs?tail=5").text


def metrics_of(service, job_id):
    """Last value of each metric, from the service."""
    found = service.request("GET", f"/jobs/{job_id}/metrics?maxPoints=1000").json()["series"]
    return {each["name"]: each["last"] for each in found if each["source"] == "job"}


def check_report(service, folder, figures, *, compared=True):
    """Check every figure of a report against the metrics and fields of the jobs."""
    paces = {}
    for summary in service.request("GET", "/comparisons?limit=1").json()["comparisons"] if compared else ():
        for row in service.request("GET", f"/comparisons/{summary['id']}").json()["rows"]:
            paces |= {each["jobId"]: each["stepsPerSecond"] for each in row["members"]}
    jobs = 0
    for cell in figures["measured"]:
        assert cell["simulated"] is True
        for run in cell["jobs"]:
            jobs += 1
            job = service.request("GET", f"/jobs/{run['id']}").json()
            metrics = metrics_of(service, run["id"])
            assert (job["state"], job["machineType"]) == ("Stopped", cell["machineType"])
            assert run["seconds"] == job["durationSeconds"]
            assert run["steps_per_second"] == paces.get(run["id"])
            for name in ("test_accuracy", "compile_seconds", "input_wait_share"):
                assert run[name] == metrics.get(name)
            if compared:
                assert run["beside"] is False, "they run one after the other"
                assert run["examples_per_second"] == pytest.approx(run["steps_per_second"] * metrics["batch_size"])
            if "startup_seconds" in metrics:
                before = metrics["startup_seconds"] + metrics["compile_seconds"]
                assert run["startup_share"] == pytest.approx(before / run["seconds"], rel=0.05)
        for name, value in cell["median"].items():
            values = [run[name] for run in cell["jobs"] if run[name] is not None]
            assert value == (statistics.median(values) if values else None)
    markdown = (folder / "report" / "report.md").read_text()
    assert "scaled down: " in markdown
    assert "say nothing about the real machines" in markdown
    assert "\n## Measured\n" not in markdown, "all machines of this test are simulated"
    return jobs, markdown


@pytest.mark.slow  # e2e/tpu/test_training.py trains on the same device
def test_the_tpu_sample_prints_done_and_leaves_its_result(service, tmp_path):
    figures = run_experiment(service, tmp_path, "managed-tpu")
    jobs, markdown = check_report(service, tmp_path, figures, compared=False)
    assert jobs == 1
    assert "grpc://IP:8470" in markdown
    job_id = figures["measured"][0]["jobs"][0]["id"]
    assert "Done!" in service.request("GET", f"/jobs/{job_id}/logs").text
    assert json.loads(service.artifact(job_id, "result.txt")) == [[5.0] * 3] * 3


@pytest.mark.slow
def test_the_cached_input_is_measured_beside_the_starved_one(service, tmp_path):
    figures = run_experiment(service, tmp_path, "feeding-a-tpu", "--machineType", "CPU")
    jobs, markdown = check_report(service, tmp_path, figures)
    assert jobs == 3
    starved, one_cpu, cached = figures["measured"]
    assert [service.request("GET", f"/jobs/{one['id']}").json()["cpus"] for one in one_cpu["jobs"]] == [1]
    assert cached["median"]["steps_per_second"] > starved["median"]["steps_per_second"]
    faster = cached["median"]["steps_per_second"] / starved["median"]["steps_per_second"]
    assert figures["statements"][0]["measured"] == {"CPU, simulated": pytest.approx(faster)}
    assert f"| 3.75 x | {faster:.3g} x (CPU, simulated) |" in markdown


@pytest.mark.slow
def test_simulated_devices_are_not_compared_with_each_other(service, tmp_path):
    figures = run_experiment(service, tmp_path, "steps-per-second", "--machineType", "CPU,V100", *cifar10())
    jobs, markdown = check_report(service, tmp_path, figures)
    assert jobs == 3
    assert all(cell["median"]["steps_per_second"] > 0 for cell in figures["measured"])
    assert [each["measured"] for each in figures["statements"]] == [{}, {}, {}, {}]
    assert "| 50 x | not measured on real machines |" in markdown


@pytest.mark.slow
def test_every_precision_trains_and_is_set_beside_float32(service, tmp_path):
    figures = run_experiment(service, tmp_path, "mixed-precision", "--machineType", "CPU")
    jobs, markdown = check_report(service, tmp_path, figures)
    assert jobs == 8
    medians = {cell["member"]: cell["median"] for cell in figures["measured"]}
    ratio = medians["O0"]["steps_per_second"] / medians["O1"]["steps_per_second"]
    assert figures["statements"][0]["measured"] == {"CPU, simulated": pytest.approx(ratio)}
    assert "| O0 fp32 | T4 | 57:17 | 7657 | 86.75 % |" in markdown


@pytest.mark.slow
def test_hyper_parameters_that_were_carried_over_are_shown(service, tmp_path):
    data = [] if (REAL / "mnist.npz").is_file() else ["--data", "mnist=digits"]
    figures = run_experiment(service, tmp_path, "gpu-vs-tpu", "--machineType", "CPU", *data, *cifar10())
    jobs, markdown = check_report(service, tmp_path, figures)
    assert jobs == 9
    medians = {cell["member"]: cell["median"] for cell in figures["measured"]}
    gained = medians["davidnet-decay"]["test_accuracy"] - medians["davidnet-tpu"]["test_accuracy"]
    assert figures["statements"][2]["measured"] == {"CPU, simulated": pytest.approx(gained)}
    assert "--weight-decay 0.0005" in markdown
