"""The same job, commands and pages on one machine, on three hosts that share no folder with it, and on Slurm."""

import random
import re
import subprocess
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.far_worker import FarWorker
from support.slurm_cluster import CLUSTER_TYPE, running_cluster
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.e2e]

PROGRAM = """
import json, os, pathlib, random, time

kept = pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"])
print("waits with", pathlib.Path("words.txt").read_text(), flush=True)
while not (kept / "go").exists():
    time.sleep(0.05)
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as metrics:
    print(json.dumps({"step": 1, "loss": 0.5}), file=metrics)
(kept / "many").mkdir()
for number in range(50):
    (kept / "many" / str(number)).write_text(str(number))
(kept / "model").write_bytes(random.Random(int(os.environ["SEED"])).randbytes(2_000_000))
print("has written", flush=True)
"""


@pytest.fixture(scope="module", params=["one machine", "three hosts", pytest.param("slurm", marks=pytest.mark.slow)])
def places(request, tmp_path_factory):
    """A service with three slots, and the number of its hosts."""
    home = tmp_path_factory.mktemp("places") / "home"
    with ExitStack() as stack:
        settings = {}
        if request.param == "slurm":
            cluster = stack.enter_context(running_cluster())
            file = home.parent / "machines.toml"
            file.write_text(CLUSTER_TYPE.replace("[cluster]", "[CPU]"))
            settings = cluster.environment | {"GRADIENT_SLURM__ENABLED": "1", "GRADIENT_MACHINES__FILE": str(file)}
        deployment = Deployment(home, **settings)
        stack.callback(deployment.stop)
        deployment.start_api()
        if request.param == "three hosts":
            proxy = TcpProxy(urlsplit(deployment.cli_json["url"]).port)
            stack.callback(proxy.cut)
            for name in ("ada", "bob", "cyd"):
                FarWorker(deployment, home.parent / name, proxy.url, name, GRADIENT_WORKER__SLOTS="1").start()
            yield deployment, 3
        else:
            deployment.wait_ready(deployment.start_worker(GRADIENT_WORKER__SLOTS="3"))
            # The host of a job on Slurm is the login node: on which nodes it runs is Slurm's affair.
            yield deployment, 1


def test_a_folder_is_trained_followed_entered_and_its_outputs_come_back(places, tmp_path):
    deployment, hosts = places
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "words.txt").write_text("these words")

    def client(*arguments):
        return deployment.cli(*arguments, folder=folder).stdout

    options = ("--machineType", "CPU", "--detach", "--command", "python3 train.py")
    jobs = [client("jobs", "create", *options, "-e", f"SEED={seed}").strip() for seed in range(3)]
    for job in jobs:
        wait_until(lambda job=job: deployment.raw_log(job) == b"waits with these words\n", "its first line")
    assert len({deployment.job(job)["host"] for job in jobs}) == hosts, "all run at the same time"

    command = [str(CLI_PROGRAM), "jobs", "logs", jobs[0], "--follow"]
    env = deployment.client_environment()
    with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE) as follower:
        assert follower.stdout.readline() == b"waits with these words\n"
        for job in jobs:
            wait_until(
                lambda job=job: (
                    deployment.cli("jobs", "exec", job, "--", "true", folder=folder, code=None).returncode == 0
                ),
                "the way into it",
            )
            client("jobs", "exec", job, "--", "sh", "-c", "touch $GRADIENT_ARTIFACTS_DIR/go")
        assert follower.stdout.readline() == b"has written\n"
    assert follower.returncode == 0

    for seed, job in enumerate(jobs):
        assert deployment.wait_ended(job)["state"] == "Stopped"
        client("jobs", "artifacts", "get", job, "--to", f"got-{seed}")
        assert (folder / f"got-{seed}" / "model").read_bytes() == random.Random(seed).randbytes(2_000_000)  # noqa: S311 - the same
        assert sorted(int(one.name) for one in (folder / f"got-{seed}" / "many").iterdir()) == list(range(50))
        assert re.search(r"loss +0.5", client("jobs", "metrics", job))
    stopped = client("jobs", "create", *options[:3], "--command", "echo up; sleep 600").strip()
    wait_until(lambda: deployment.raw_log(stopped) == b"up\n", "its first line")
    client("jobs", "stop", stopped)
    assert deployment.wait_ended(stopped)["state"] == "Cancelled"
    assert all(job in client("jobs", "list") for job in (*jobs, stopped))

    address = deployment.cli_json
    headers = {"Accept": "text/html", "Origin": address["url"]}
    with httpx.Client(base_url=address["url"], headers=headers, follow_redirects=True, timeout=60) as browser:
        browser.post("/ui/login", data={"key": address["apiKey"]})
        page = browser.get(f"/ui/jobs/{jobs[0]}").text
        assert "has written" in page
        assert "many" in browser.get(f"/ui/jobs/{jobs[0]}/artifacts").text
        machines = browser.get("/ui/machines").text
        assert all(name in machines for name in {deployment.job(job)["host"] for job in jobs})
