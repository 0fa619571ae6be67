"""Both distributions, from their wheels alone: the client, and a server that runs a job."""

import json
import re
import subprocess
import sys
import zipfile
from contextlib import contextmanager

import httpx
import pytest
from support.deployment import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_the_client_runs_without_the_server(client):
    assert client.run("gradient-cli", "--version").stdout == "0.1.0\n"
    assert client.run("gradient-cli", "--help").stdout.startswith("usage: gradient-cli COMMAND")
    imported = client.run("python", "-c", "import gradient_jobs; print(gradient_jobs.__version__)")
    assert imported.stdout == "0.1.0\n", imported.stderr
    assert not (client.bin / "gradient-server").exists()


def test_the_client_has_no_package_of_the_server(wheels):
    with zipfile.ZipFile(wheels["gradient_jobs_client"]) as wheel:
        top = {name.partition("/")[0] for name in wheel.namelist()}
        metadata = wheel.read("gradient_jobs_client-0.1.0.dist-info/METADATA").decode()
    assert top == {"gradient_cli", "gradient_jobs", "gradient_jobs_client-0.1.0.dist-info"}
    required = re.findall(r"^Requires-Dist: ([\w-]+)", metadata, re.MULTILINE)
    assert required == ["pathspec", "shtab", "tomli", "websockets", "mcp", "cloudpickle"]
    assert "\nRequires-Python: >=3.9\n" in metadata
    assert "\nLicense-File: LICENSE\n" in metadata


def test_the_server_requires_the_client_of_its_release(wheels):
    with zipfile.ZipFile(wheels["gradient_jobs"]) as wheel:
        metadata = wheel.read("gradient_jobs-0.1.0.dist-info/METADATA").decode()
    assert "\nRequires-Dist: gradient-jobs-client[remote]==0.1.0\n" in metadata


def test_the_client_runs_with_other_versions_of_python(any_client):
    assert any_client.run("gradient-cli", "--version").stdout == "0.1.0\n"
    (any_client.folder / ".gradient.toml").write_text('machineType = "CPU"\ncommand = "true"\nunknown = 1\n')
    # As far as a client gets without a server: parsing, the project file, the address.
    for arguments, error in (
        (["jobs", "create"], "unknown option 'unknown'"),
        (["jobs", "list"], "no server is configured"),
        (["jobs", "logs", "j1", "--since", "2026-01-31T09:00:00Z"], "no server is configured"),
    ):
        shown = any_client.run("gradient-cli", *arguments)
        assert error in shown.stderr
        assert "Traceback" not in shown.stderr


def test_a_server_without_its_extra_names_it(client, wheels, tmp_path):
    library = tmp_path / "library"
    with zipfile.ZipFile(wheels["gradient_jobs"]) as wheel:
        wheel.extractall(library)
    client.env["PYTHONPATH"] = str(library)
    shown = client.run("python", "-m", "gradient_server", "up")
    del client.env["PYTHONPATH"]
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: gradient-server needs pydantic, which is not installed.\n")
    assert "pip install 'gradient-jobs[server]'" in shown.stderr
    assert "Traceback" not in shown.stderr


@contextmanager
def running(server):
    """Run `gradient-server up` in an empty folder, and yield its address."""
    log = server.folder.parent / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [server.bin / "gradient-server", "up", "--port", "0"],
            cwd=server.folder,
            env=server.env,
            stdout=output,
            stderr=output,
        )
    try:
        known = server.folder.parent / "home" / "service" / "cli.json"
        wait_until(lambda: known.exists() and answers(json.loads(known.read_text())["url"]), log.read_text)
        yield json.loads(known.read_text())["url"]
    finally:
        process.terminate()
        process.wait(60)


def answers(url):
    try:
        return httpx.get(f"{url}/readiness", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_a_job_runs_on_a_server_from_wheels(server):
    (server.folder / "main.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['GRADIENT_ARTIFACTS_DIR'], 'model.txt').write_text('trained')\n"
        "print('hello from a wheel')\n"
    )
    with running(server) as url:
        style = re.search(r"/ui/static/\w+/style\.css", httpx.get(f"{url}/ui/login", timeout=60).text)
        assert "font-family" in httpx.get(url + style[0], timeout=60).text
        done = server.run("gradient-cli", "jobs", "create", "-m", "CPU", "--", "python", "main.py")
        assert (done.returncode, done.stdout) == (0, "hello from a wheel\n"), done.stderr
        got = server.run("gradient-cli", "jobs", "artifacts", "get", "--to", "out")
        assert got.returncode == 0, got.stderr
        assert (server.folder / "out" / "model.txt").read_text() == "trained"


SCRIPT = """\
import gradient_jobs

options = {"machine_type": "CPU", "command": "cat data.txt", "tags": ["wheel"]}
with gradient_jobs.Client() as client:
    job = client.jobs.create(**options)
    print(*job.follow(), job.wait(60).state, job.created_at.tzinfo)

@gradient_jobs.remote(machine_type="CPU", python=PYTHON)
def double(number):
    return 2 * number

try:
    print(double(21))
except gradient_jobs.JobFailed as error:
    print(error)
"""


def test_the_sdk_runs_with_other_versions_of_python(any_client, deployment):
    deployment.start_up()
    (any_client.folder / ".gradient.toml").write_text('outputs = ["*.txt"]\n')
    (any_client.folder / "data.txt").write_text("from a workspace")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (any_client.folder / "script.py").write_text(SCRIPT.replace("PYTHON", repr(python)))
    address = deployment.cli_json
    any_client.env |= {"GRADIENT_URL": address["url"], "GRADIENT_API_KEY": address["apiKey"]}
    done = any_client.run("python", "script.py")
    stored = any_client.run("gradient-cli", "storage", "put", "data.txt")
    got = any_client.run("gradient-cli", "storage", "get", "data.txt", "copy.txt")
    (any_client.folder / ".gradient.toml").unlink()
    del any_client.env["GRADIENT_URL"], any_client.env["GRADIENT_API_KEY"]
    assert (stored.returncode, got.returncode) == (0, 0), stored.stderr + got.stderr
    assert (any_client.folder / "copy.txt").read_text() == "from a workspace"
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "from a workspace Stopped UTC"
    assert second.startswith("double() was sent by Python 3.")
    assert f"and this job has Python {python}." in second
