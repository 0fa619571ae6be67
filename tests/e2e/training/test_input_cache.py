"""Bottlenecks of the trainer, from its jobs to the table of their comparison."""

import io
import json
import zipfile

import numpy as np
import pytest
from PIL import Image
from support.client_shell import ClientShell
from support.deployment import Deployment
from support.job_packages import share_environments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("trainer_packages"),
    pytest.mark.timeout(900),
]

SIDE, IMAGES_OF_A_CLASS = 1536, {"train": 80, "test": 4}
TRAIN = "python -m gradient_trainer --data photos.zip --image-size 32 --batch-size 16 --log-steps 3 --peak-tflops 0.1"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    home = tmp_path_factory.mktemp("service") / "home"
    deployment = Deployment(home, **share_environments(home))
    deployment.start_up()
    (home / "storage" / "datasets").mkdir(parents=True, exist_ok=True)
    write_photos(home / "storage" / "datasets" / "photos.zip")
    yield deployment
    deployment.stop()


def write_photos(path):
    """Large photographs of two classes; few are different, as encoding takes longer than decoding."""
    random, photos = np.random.default_rng(1), []
    for _ in range(4):
        content, noise = io.BytesIO(), random.integers(0, 256, (64, 64, 3), np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(content, "jpeg")
        photos.append(content.getvalue())
    with zipfile.ZipFile(path, "w") as archive:
        for part, count in IMAGES_OF_A_CLASS.items():
            for number in range(count):
                for place, label in enumerate(("cat", "dog")):
                    archive.writestr(f"{part}/{label}/{number}.jpg", photos[2 * place + number % 2])


def test_the_cache_makes_a_starved_training_four_times_faster(service, tmp_path):
    (tmp_path / "project").mkdir()
    shell = ClientShell(service, tmp_path / "project", tmp_path)

    def train(machine_type, flags):
        words = ["jobs", "create", "--machineType", machine_type, "--container", "trainer", "--json"]
        made = shell(*words, "--command", f"{TRAIN} --peak-bandwidth 20 {flags}")
        job_id = json.loads(made.stdout)["id"]
        ended = service.wait_ended(job_id, seconds=600)
        assert ended["state"] == "Stopped", service.request("GET", f"/jobs/{job_id}/logs").text
        return job_id

    # One after the other, and each on another machine type, all of them simulated, to have a row of its own.
    jobs = [
        train("CPU", "--steps 100 --decode always"),
        train("K80", "--steps 100"),
        train("V100", "--model resnet32-cifar10 --batch-size 32 --steps 20"),
    ]
    comparison = shell("compare", "jobs", *jobs).stdout.strip()
    exported = shell("compare", "export", comparison, "--format", "json").stdout
    starved, cached, busy = json.loads(exported)["rows"]
    assert starved["bottleneck"]["kind"] == "input", starved
    assert "decode and resize them once" in starved["bottleneck"]["advice"][0]
    assert cached["stepsPerSecond"]["median"] >= 4 * starved["stepsPerSecond"]["median"]
    for fed in (cached, busy):
        assert fed["bottleneck"]["kind"] not in ("input", None), fed
    shares = {figure["name"]: figure["value"] for figure in busy["bottleneck"]["figures"]}
    assert shares["input_share"] < 0.25, busy
