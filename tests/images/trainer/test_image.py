"""The trainer's images: what they are made of is pinned, and the one without a registry is built for real."""

import hashlib
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.servers.private_docker_engine import PrivateDockerEngine, build_layer, list_busybox_commands, read_busybox

ROOT = Path(__file__).parent.parent.parent.parent
TRAINER = ROOT / "images" / "trainer"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def packages(variant):
    """Name → version, of a list of requirements; each with digests."""
    text = (TRAINER / "requirements" / f"{variant}.txt").read_text()
    found = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[a-z0-9-]+", text, re.MULTILINE)), "every package has its version and digest"
    return {name: version for name, version, _ in found}


@pytest.mark.parametrize(("variant", "tensorflow"), [("cpu", "tensorflow-cpu"), ("gpu", "tensorflow")])
def test_every_package_is_pinned_to_what_the_tests_run(variant, tensorflow):
    locked = {one["name"]: one.get("version") for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found = packages(variant)
    assert found[tensorflow] == locked["tensorflow-cpu"]
    assert found["scikit-learn"] == locked["scikit-learn"]
    assert any(name.startswith("nvidia-cudnn") for name in found) == (variant == "gpu")


def test_short_names_and_makefile_speak_of_this_version():
    names = tomllib.loads((ROOT / "core" / "catalogue" / "images.toml").read_text())
    assert names["trainer"]["image"] == f"gradient/trainer:{VERSION}"
    assert names["trainer-gpu"]["image"] == f"gradient/trainer:{VERSION}-gpu"
    commands = subprocess.run(["make", "-n", "images"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"--tag gradient/trainer:{VERSION} " in commands
    assert f"--tag gradient/trainer:{VERSION}-gpu --build-arg VARIANT=gpu" in commands
    assert f'IMAGE = "gradient/trainer:{VERSION}"' in (ROOT / "examples" / "demo_docker.py").read_text()


def offline(work, engine):
    env = os.environ | {"WORK": str(work), "DOCKER_HOST": engine, "VERSION": "test"}
    return subprocess.run([str(TRAINER / "offline")], env=env, capture_output=True, text=True, check=False)


def test_without_an_engine_it_says_so_and_makes_nothing(tmp_path):
    done = offline(tmp_path / "work", f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1
    assert "the Docker engine does not answer" in done.stderr
    assert not (tmp_path / "work").exists()


def test_the_image_is_built_without_network_or_registry(docker_server: PrivateDockerEngine, tmp_path):
    """On a tiny root, in place of Debian's, and a package of one file, in place of TensorFlow."""
    site = tmp_path / "context" / "site"
    site.mkdir(parents=True)
    (site / "package.py").write_text("here = True\n")
    wanted = (TRAINER / "requirements" / "cpu.txt").read_bytes()
    (tmp_path / "site.of").write_text(hashlib.sha256(wanted).hexdigest())
    (tmp_path / "base.tar").write_bytes(
        build_layer({"bin/busybox": read_busybox(), "tmp/": None}, links=list_busybox_commands())
    )
    done = offline(tmp_path, docker_server.url)
    assert done.returncode == 0, done.stderr
    with docker_server.client() as client:
        try:
            made = client.inspect_image("gradient/trainer:test")["Config"]
            host = client.create_host_config(network_mode="none")
            command = ["/bin/busybox", "ls", "/opt/trainer", "/opt/trainer/gradient_trainer"]
            container = client.create_container("gradient/trainer:test", command, host_config=host)["Id"]
            client.start(container)
            client.wait(container)
            printed = client.logs(container).decode().split()
            client.remove_container(container)
        finally:
            for name in ("gradient/trainer:test", "gradient/base:bookworm"):
                client.remove_image(name, force=True)
    assert {"package.py", "gradient_trainer", "options.py"} <= set(printed)
    assert "__pycache__" not in printed
    assert made["User"] == "10001:10001"
    assert "PYTHONPATH=/opt/trainer" in made["Env"]
