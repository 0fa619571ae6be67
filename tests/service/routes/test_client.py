"""The client's wheel, served without a key."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

UV = str(Path(sys.executable).parent / "uv")


def base(client):
    return str(client.base_url).rstrip("/")


def test_the_wheel_of_the_client_is_installed_from_the_server(anonymous_client, tmp_path):
    address = anonymous_client.get("/client").text
    name = address.strip().rpartition("/")[2]
    assert address == f"{str(anonymous_client.base_url).rstrip('/')}/client/{name}\n"
    answer = anonymous_client.get(f"/client/{name}")
    assert answer.headers["content-type"] == "application/zip"
    (tmp_path / name).write_bytes(answer.content)
    venv = tmp_path / "venv"
    for command in (
        [UV, "venv", "--python", sys.executable, venv],
        [UV, "pip", "install", "--offline", "--no-deps", "--python", venv / "bin" / "python", tmp_path / name],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    shown = subprocess.run([venv / "bin" / "gradient-cli", "-V"], capture_output=True, text=True, check=False)
    assert shown.stdout == f"{name.split('-')[1]}\n"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as wheel:
        assert wheel.testzip() is None


def test_another_version_of_the_client_names_the_one_that_is_here(anonymous_client):
    answer = anonymous_client.get("/client/gradient_jobs_client-9.9-py3-none-any.whl")
    assert answer.status_code == 404
    assert (
        f"Run `pip install {str(anonymous_client.base_url).rstrip('/')}/client/gradient_jobs_client-"
        in answer.json()["error"]["message"]
    )
