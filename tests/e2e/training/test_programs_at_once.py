"""Real programs in the networks of jobs, each twice at once: torchrun, TensorBoard behind a link, JupyterLab."""

import json
import os
import subprocess
from contextlib import ExitStack

import httpx
import pytest
from support.deployment import CLI_PROGRAM, EMPTY_SSL_CONTEXT, ORDINARY, wait_until
from support.job_packages import index_settings

INSTALL_SECONDS = 900
TRAIN = """
import os, subprocess, sys, time
import torch
import torch.distributed as dist

phase = sys.argv[1]
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
assert total.item() == 3
if dist.get_rank() == 0:
    print(phase, "at port", os.environ["MASTER_PORT"], "of two ranks", flush=True)
    if phase == "fixed":
        from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter("runs/" + os.environ["GRADIENT_JOB_ID"]) as writer:
            writer.add_scalar("loss", 1.0, 1)
        subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", "6006"])
while not os.path.exists("/storage/" + phase):
    time.sleep(0.1)
dist.barrier()
"""
COMMAND = """
torchrun --standalone --nproc-per-node 2 train.py standalone &&
torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 train.py fixed
"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap"), pytest.mark.timeout(1800)]


@pytest.fixture(params=["linked", "relayed"])
def service(request, deployment):
    deployment.start_api()
    deployment.start_worker(
        "w1",
        inside={"linked": (), "relayed": ORDINARY}[request.param],
        GRADIENT_PROCESS__SANDBOX="require",
        GRADIENT_PROCESS__NETWORK="require",
        GRADIENT_WORKER__SLOTS="5",
        **index_settings(),
    )
    return deployment


def client(service, folder, *words, **options):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")} | {"GRADIENT_HOME": str(service.home)}
    return subprocess.Popen([str(CLI_PROGRAM), *words], cwd=folder, env=env, text=True, **options)


def answer(url):
    try:
        return httpx.get(url, timeout=10, verify=EMPTY_SSL_CONTEXT).text
    except httpx.TransportError:
        return ""


@pytest.mark.parametrize("_packages", ["pytorch"])
def test_two_trainings_and_two_notebooks_at_once(service, tmp_path, _packages):
    for name, files in {
        "training": {"train.py": TRAIN, "requirements.txt": "torch==2.13.0\ntensorboard\n"},
        "notebook": {"requirements.txt": "jupyterlab\n"},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    train = ("jobs", "create", "-m", "CPU", "--ports", "6006", "--command", COMMAND)
    with ExitStack() as stack:
        for _ in range(2):
            trains = stack.enter_context(client(service, tmp_path / "training", *train, stdout=subprocess.DEVNULL))
            stack.callback(trains.kill)
        notebooks = []
        for _ in range(2):
            words = ("notebooks", "run", "-m", "CPU", "--localPort", "0")
            notebooks.append(
                stack.enter_context(client(service, tmp_path / "notebook", *words, stdout=subprocess.PIPE))
            )
            stack.callback(notebooks[-1].kill)
        wait_until(lambda: len(service.request("GET", "/jobs").json()["jobs"]) == 4, "the jobs")
        jobs = [job["id"] for job in service.request("GET", "/jobs").json()["jobs"]]
        trainings = [job for job in jobs if service.job(job)["ports"][0]["internal"] == 6006]
        # In each phase both wait for the other.
        for phase in ("standalone", "fixed"):
            for job in trainings:
                wait_until(
                    lambda job=job, phase=phase: f"{phase} at port".encode() in service.raw_log(job),
                    f"{phase}: {[service.raw_log(one) for one in trainings]}",
                    INSTALL_SECONDS,
                )
            if phase == "fixed":
                for job in trainings:
                    (port,) = service.job(job)["ports"]
                    runs = f"{port['url'].rstrip('/')}/data/runs"
                    wait_until(lambda runs=runs, job=job: answer(runs) == json.dumps([job]), "its board", 120)
            touch = service.submit(f"touch /storage/{phase}")
            assert service.wait_ended(touch)["exitCode"] == 0
        assert [service.wait_ended(job, 120)["exitCode"] for job in trainings] == [0, 0]
        assert [b"fixed at port 29500 of two ranks" in service.raw_log(job) for job in trainings] == [True, True]
        links = [httpx.URL(one.stdout.readline().strip()) for one in notebooks]
        assert len({link.port for link in links}) == 2
        for link, other in zip(links, reversed(links), strict=True):
            sessions = link.copy_with(path="/api/sessions")
            assert answer(str(sessions)) == "[]"
            assert "Forbidden" in answer(str(sessions.copy_with(params={"token": other.params["token"]})))
