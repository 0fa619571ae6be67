"""The installation of TensorFlow from wheels in Cloud Storage: a node's start-up script is run in a folder.

Its programs reach nothing but Google's servers of the tests, by their real names and TLS.
"""

import ensurepip
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.google.production import VM_ACCOUNT
from support.servers.package_index import PackageIndex

from core.errors import SettingsInvalid
from core.settings import Settings
from gradient_server.simulator.gcs import api
from gradient_server.simulator.gcs.objects import StoredObject

pytestmark = pytest.mark.integration

FOLDER = "gs://mirror/tpu/wheels"
PREFIX = "tpu/wheels/"
# Debian keeps it apart.
BUNDLES = Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")
PIP = next(wheel for folder in BUNDLES for wheel in folder.glob("pip-*.whl"))


@pytest.fixture
def storage(google):
    binding = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{VM_ACCOUNT}"]}
    google.storage.buckets.create("mirror", {}).policy["bindings"] = [binding]
    return google.storage


def put(storage, name, content):
    storage.buckets.put("mirror", name, content, {}, {})


@pytest.fixture
def fill(storage, tmp_path):
    """Puts small wheels of these names into the folder, with pip's own."""
    index = PackageIndex(tmp_path / "index")

    def fill(**requires):
        for name, required in requires.items():
            version = {"tensorflow_tpu": "2.20.0", "libtpu": "0.0.14"}.get(name, "1.0")
            wheel = index.add_wheel(name, version, requires=required)
            put(storage, f"{PREFIX}{wheel.name}", wheel.read_bytes())
        put(storage, f"{PREFIX}{PIP.name}", PIP.read_bytes())

    yield fill
    index.close()


class Vm:
    """A new VM: a folder in which a start-up script runs, with no apt and no systemd."""

    def __init__(self, folder: Path, script: str, environment: dict[str, str]) -> None:
        self.place = folder / "place"
        self.units = folder / "units"
        self.units.mkdir(parents=True)
        for name in ("systemctl", "apt-get"):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/commands\n')
            (folder / "bin" / name).chmod(0o755)
        self._folder = folder
        self._script = (
            script.replace("/opt/gradient-tpu", str(self.place))
            .replace("/etc/systemd/system", str(self.units))
            .replace("sleep 30", "sleep 0.1")
        )
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "GRADIENT_"))}
        self._environment = inherited | environment | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}

    @contextmanager
    def starting(self):
        """Start it; it has ended its script when the block ends."""
        with (self._folder / "serial").open("wb") as serial:
            process = subprocess.Popen(
                ["bash", "-s"], stdin=subprocess.PIPE, stdout=serial, stderr=serial, env=self._environment
            )
            try:
                process.stdin.write(self._script.encode())
                process.stdin.close()
                yield
                assert process.wait(60) == 0, self.serial_log()
            finally:
                process.kill()
                process.wait()

    def start(self) -> None:
        with self.starting():
            pass

    def serial_log(self) -> str:
        return (self._folder / "serial").read_text()

    def commands(self) -> list[str]:
        return (self._folder / "commands").read_text().splitlines()

    def run_python(self, program: str) -> str:
        python = self.place / "venv" / "bin" / "python"
        return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def vm(make_google_harness, google, tmp_path):
    place = make_google_harness(packages=FOLDER)
    place.running("echo up; sleep 600")
    script = google.node().metadata["startup-script"]
    return Vm(tmp_path / "vm", script, google.vms.environment)


def of_wheels(storage):
    return [one for one in storage.requests if "/b/mirror/" in one]


def test_a_node_installs_from_the_folder_alone_and_once(vm, fill, storage, monkeypatch):
    monkeypatch.setattr(api, "MAX_RESULTS", 2)
    fill(tensorflow_tpu=("small-dependency>=1",), libtpu=(), small_dependency=(), unneeded=())
    put(storage, f"{PREFIX}README.txt", b"not a wheel")
    put(storage, "tpu/wheels-old/libtpu-0.0.14-py3-none-any.whl", b"in another folder")
    vm.start()
    assert vm.run_python("import tensorflow_tpu, small_dependency; print(tensorflow_tpu.VERSION)") == "2.20.0\n"
    assert (vm.units / "gradient-tpu.service").read_text().count(f"ExecStart={vm.place}/venv/bin/python") == 1
    assert vm.commands() == [
        "systemctl daemon-reload",
        "systemctl enable --now gradient-watch.service",
        "systemctl daemon-reload",
        "systemctl enable --now gradient-tpu.service",
    ]
    assert not (vm.place / "wheels").exists()
    before = of_wheels(storage)
    assert sum("pageToken" in one for one in before) == 2
    assert sum("alt=media" in one for one in before) == 5
    vm.start()
    assert of_wheels(storage) == before


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ((403, "/b/mirror/o?"), "HTTP 403"),
        pytest.param((503, "libtpu"), "HTTP 503", marks=pytest.mark.slow),
    ],
)
def test_a_refused_request_is_reported_and_tried_again(vm, fill, storage, refused, message):
    fill(tensorflow_tpu=(), libtpu=())
    status, path = refused
    storage.faults.fail(status, path=path)
    vm.start()
    assert vm.serial_log().count(message) == 1
    assert "A fault on request" in vm.serial_log()
    assert vm.run_python("import tensorflow_tpu, libtpu") == ""


def test_a_file_that_does_not_arrive_whole_is_not_installed(vm, fill, monkeypatch):
    fill(tensorflow_tpu=(), libtpu=())
    describe = StoredObject.resource
    wrong = [{"md5Hash": "AAAA"}, {"size": "7"}]

    def describe_wrongly(self, base):
        return describe(self, base) | (wrong.pop() if "libtpu" in self.name and wrong else {})

    monkeypatch.setattr(StoredObject, "resource", describe_wrongly)
    vm.start()
    assert all(message in vm.serial_log() for message in ("a different MD5", "has 7 bytes"))
    assert vm.run_python("import tensorflow_tpu, libtpu") == ""


@pytest.mark.parametrize(
    "packages", ["gs://mirror", "gs://mirror/", "mirror/tpu", "gs://Mirror/tpu", "gs://mirror/a'b"]
)
def test_a_setting_that_is_not_a_folder_is_refused(monkeypatch, packages):
    monkeypatch.setenv("GRADIENT_TPU__PACKAGES", packages)
    with pytest.raises(SettingsInvalid, match="must be gs://BUCKET/FOLDER"):
        Settings()
