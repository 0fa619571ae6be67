"""docker-compose.yml and the images: what they must never say, and what every part of them must."""

import ipaddress
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILES = [ROOT / "images" / name / "Dockerfile" for name in ("service", "worker")]
SECRETS = {
    "POSTGRES_PASSWORD": "canary-one",
    "REDIS_PASSWORD": "canary-two",
    "WORKER_POSTGRES_PASSWORD": "canary-three",
}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(COMPOSE.read_text())


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


def test_every_service_has_few_rights(services):
    for name, service in services.items():
        assert service["user"] not in ("", "root", "0", "0:0"), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        # The worker makes sandboxes for jobs: tests/deploy/test_compose_sandbox.py.
        sandboxes = ["seccomp:unconfined", "apparmor:unconfined"] if name == "worker" else []
        assert service["security_opt"] == ["no-new-privileges:true", *sandboxes], name
        assert service.get("devices", []) == (["/dev/net/tun:/dev/net/tun"] if name == "worker" else []), name
        assert not {"privileged", "cap_add", "pid", "ipc"} & set(service), name
        assert ("docker.sock" in str(service), "network_mode" in service) == (name == "worker-docker",) * 2, name


def test_only_the_service_is_published_and_only_to_this_machine(compose, services):
    assert [name for name, service in services.items() if "ports" in service] == ["service"]
    ports = ["${PUBLISH:-127.0.0.1:8780}:8780", "${PUBLISH_SSH:-127.0.0.1:2222}:2222"]
    assert services["service"]["ports"] == ports
    assert compose["networks"]["inside"]["internal"] is True
    assert [*services["database"]["networks"]] == [*services["broker"]["networks"]] == ["inside"]


def test_images_are_pinned(services):
    bases = re.findall(r"^ARG PYTHON=(.+)$", "\n".join(file.read_text() for file in DOCKERFILES), re.MULTILINE)
    assert len(bases) == len(DOCKERFILES)
    for image in [*bases, *(service["image"] for service in services.values())]:
        digest = "" if image.startswith("gradient-jobs/") else "@sha256:[0-9a-f]{64}"  # ours are built, not pulled
        assert re.fullmatch(r"[\w/.-]+:\d+\.\d+[.\w-]*" + digest, image), image


def test_no_password_is_written_down():
    text = COMPOSE.read_text()
    for name in SECRETS:
        references = re.findall(r"(?<!\$)\$\{?" + name + r"[^}]*\}?", text)
        assert references
        assert set(references) == {f"${{{name}:?run deploy/init first}}"}, "no default, and a word on what to do"
    assert not re.search(r"(?i)password: *[\"']?(?!\$\{)\w", text)
    assert not re.search(r"://\w*:(?!\$\{)\w", text)


def test_what_is_built_from_leaves_secrets_and_history_out():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*", "nothing, unless it is named"
    allowed = {line[1:].rstrip("/") for line in lines if line.startswith("!")}
    assert not {".env", ".git", ".venv", "deploy", "tests"} & allowed
    for place in allowed:
        assert (ROOT / place).exists()
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["packages"]) <= allowed


@pytest.mark.parametrize("name", ["tpu", "tpu-jax", "tpu-torch"])
def test_what_the_images_for_tpus_are_built_from_is_let_in(name):
    text = (ROOT / "images" / name / "Dockerfile").read_text()
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(\S+) \S+$", text, re.MULTILINE)
    assert copied
    assert [source for source in copied if not f"{source}/".startswith(tuple(allowed))] == []


def test_compose_itself_accepts_the_file(compose_program, tmp_path):
    done = run_config(compose_program, tmp_path, SECRETS, "--profile", "simulated")
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    environment = shown["services"]["worker"]["environment"]
    assert environment["GRADIENT_DATABASE__URL"] == "postgresql://gradient_worker:canary-three@database/gradient"
    assert "canary-one" not in json.dumps(environment), "a worker has no password of the service's own user"
    assert environment["GRADIENT_QUEUE__BROKER_URL"] == "redis://:canary-two@broker:6379/0"
    assert environment["GRADIENT_PROCESS__SANDBOX"] == "require"
    assert "canary" not in json.dumps(shown["services"]["broker"]["command"])
    [network] = shown["networks"]["inside"]["ipam"]["config"]
    fixed = [shown["services"][name]["networks"]["inside"]["ipv4_address"] for name in ("database", "broker")]
    for address in map(ipaddress.ip_address, fixed):
        assert address in ipaddress.ip_network(network["subnet"])
        assert address not in ipaddress.ip_network(network["ip_range"]), "which a service that starts first may get"


@pytest.mark.parametrize(
    ("values", "workers", "simulates", "home"),
    [
        ({"COMPOSE_PROFILES": "simulated"}, {"worker"}, "true", "/var/lib/gradient"),
        (
            {"COMPOSE_PROFILES": "docker", "STORES": "/srv/jobs", "GRADIENT_MACHINES__SIMULATE": "false"},
            {"worker-docker"},
            "false",
            "/srv/jobs",
        ),
    ],
)
def test_a_profile_starts_its_worker_alone(compose_program, tmp_path, values, workers, simulates, home):
    profile = values.pop("COMPOSE_PROFILES")
    done = run_config(compose_program, tmp_path, SECRETS | values, "--profile", profile)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    started = {name for name, service in services.items() if profile in service.get("profiles", [profile])}
    assert started == {"database", "broker", "migrate", "service"} | workers
    for name in ("service", *workers):
        environment, volumes = services[name]["environment"], services[name]["volumes"]
        assert environment["GRADIENT_MACHINES__SIMULATE"] == simulates, name
        assert environment["GRADIENT_HOME"] == home, name
        assert home in str(volumes), name


def test_compose_refuses_to_start_without_secrets(compose_program, tmp_path):
    done = run_config(compose_program, tmp_path, {})
    assert done.returncode != 0
    assert "run deploy/init first" in done.stderr


def run_config(program, folder, secrets, *options):
    nothing = folder / "env"  # else it would read the .env of whoever runs the tests
    nothing.touch()
    return subprocess.run(
        [*program, "--file", str(COMPOSE), "--env-file", str(nothing), *options, "config"],
        env={"PATH": str(Path(shutil.which(program[0])).parent) + ":/usr/bin:/bin", "HOME": "/nonexistent"} | secrets,
        capture_output=True,
        text=True,
        check=False,
    )
