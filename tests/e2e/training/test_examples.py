"""Programs of other people, submitted by the client to the embedded default as it is."""

import subprocess

import pytest
from support.deployment import CLI_PROGRAM, Deployment
from support.job_packages import ROOT, share_environments

# How each is started, its accuracy as its last line has it, and its artifacts.
PROGRAMS = {
    "pytorch": ("python main.py --epochs 5", {"model.pt"}),
    "lightning": ("python main.py", {"best.ckpt", "lightning_logs/version_0/metrics.csv"}),
    "transformers": ("python main.py", {"model.pt"}),
    "scikit-learn": ("python main.py", {"confusion.png", "model.joblib", "search.csv"}),
    "jax": ("python main.py", {"parameters.npz"}),
    "keras": ("python main.py", {"model.keras"}),
    "mnist": ("python main.py --data digits --epochs 3", {"model.keras", "result.json"}),
}
WITH_DEFAULT_PACKAGES = {"keras", "mnist"}
SERVICE = ("core", "service", "worker", "gradient_server", "migrations", "fastapi", "sqlalchemy", "uv")

pytestmark = [pytest.mark.usefixtures("bubblewrap"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("examples") / "home")
    deployment.start_up(GRADIENT_PROCESS__SANDBOX="require", **share_environments(deployment.home))
    yield deployment
    deployment.stop()


def create(service, folder, command):
    words = [str(CLI_PROGRAM), "jobs", "create", "--machineType", "CPU", "--command", command]
    env = service.environment()
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow  # packages of hundreds of megabytes
@pytest.mark.parametrize(
    ("example", "_packages"), [(one, "trainer" if one in WITH_DEFAULT_PACKAGES else one) for one in PROGRAMS]
)
def test_an_example_trains_and_leaves_its_model(service, example, _packages):
    command, artifacts = PROGRAMS[example]
    done = create(service, ROOT / "examples" / example, command)
    assert done.returncode == 0, done.stdout + done.stderr
    job = service.request("GET", "/jobs?limit=1").json()["jobs"][0]
    assert artifacts <= {file["path"] for file in service.artifacts(job["id"])["files"]}
    if example != "scikit-learn":
        series = service.request("GET", f"/jobs/{job['id']}/metrics").json()["series"]
        last = {each["name"]: each["last"] for each in series}
        assert last["steps_per_second"] > 0
        if example in {"pytorch", "jax", "keras"}:
            assert {"flops_per_step", "bytes_per_step", "compute_bits"} <= last.keys()
    words = done.stdout.replace(":", " ").split()
    if example != "mnist":
        assert float(words[len(words) - words[::-1].index("accuracy")].rstrip("%,")) > 0.9


@pytest.mark.parametrize("_packages", ["trainer"])
def test_a_folder_that_asks_for_nothing_has_the_default_packages_and_not_the_services(service, tmp_path, _packages):
    (tmp_path / "main.py").write_text(
        "import importlib.util\n"
        "import gradient_trainer, matplotlib, numpy, pandas, sklearn, tqdm\n"
        f"print('found', [name for name in {SERVICE} if importlib.util.find_spec(name)])\n"
    )
    done = create(service, tmp_path, "python main.py && pip --version")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found []" in done.stdout


@pytest.mark.parametrize("_packages", ["trainer"])
@pytest.mark.slow  # service/routes/test_images.py tries the names
@pytest.mark.parametrize("container", ["tensorflow/tensorflow:2.21.0", "trainer"])
def test_the_default_packages_stand_for_an_image(service, tmp_path, _packages, container):
    """As in the container, the folder's requirements are not installed before the command."""
    (tmp_path / "requirements.txt").write_text("no-such-package==1\n")
    (tmp_path / "main.py").write_text("import gradient_trainer, tensorflow\nprint(tensorflow.__version__)\n")
    words = [str(CLI_PROGRAM), "jobs", "create", "--machineType", "TPU", "--container", container]
    words += ["--command", "python main.py"]
    done = subprocess.run(
        words, cwd=tmp_path, env=service.environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, "2.21" in done.stdout) == (0, True), done.stdout + done.stderr
    assert f"Instead of the image {container}, the job gets this server's default packages" in done.stderr
