"""The doctor's findings about TPUs."""

import json

import grpc
import pytest
from support.google.tpu_faults import TpuFault
from support.google.tpu_simulator import ZONES, running_simulator, tpu_settings

from core.errors import GradientError
from core.settings import Settings
from gradient_server.checks import tpus
from gradient_server.checks.finding import Status
from gradient_server.commands import doctor
from gradient_server.simulator.tpu.state import Health


@pytest.fixture
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture
def settings(simulator, tmp_path):
    return lambda **options: Settings(home=tmp_path, tpu=tpu_settings(simulator, **options))


def found(settings, status, open_bucket=None):
    """Findings of one status, as check → what is said."""
    return {one.check: one for one in tpus.check(settings, open_bucket) if one.status is status}


def test_without_a_project_it_says_how_to_begin(tmp_path):
    (only,) = tpus.check(Settings(home=tmp_path))
    assert (only.status, "GRADIENT_TPU__PROJECT" in only.fix) == (Status.WARNING, True)


def test_a_permission_that_is_missing_is_named_with_the_role(settings, simulator):
    simulator.inject("ListNodes", TpuFault(grpc.StatusCode.PERMISSION_DENIED, "tpu.nodes.list denied", times=0))
    wrong = found(settings(), Status.PROBLEM)["tpu-access"]
    assert "tpu.nodes.list denied" in wrong.message
    assert "roles/tpu.admin" in wrong.fix


def test_an_api_that_does_not_answer_is_told_apart(settings, simulator):
    simulator.inject("*", TpuFault(grpc.StatusCode.UNAVAILABLE, "down", times=0))
    assert "does not answer" in found(settings(), Status.PROBLEM)["tpu-access"].message


def test_no_zone(settings):
    assert "GRADIENT_TPU__ZONES" in found(settings(zones=[]), Status.PROBLEM)["tpu-zones"].fix


def test_a_runtime_version_that_a_zone_does_not_have(settings):
    wrong = found(settings(runtimes={"TPU": "tpu-vm-tf-1.0"}), Status.PROBLEM)["tpu-runtime"]
    assert "tpu-vm-tf-1.0" in wrong.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{ZONES[0]}/none", "does not exist"),
        ("mine", "has no zone"),
        (f"{ZONES[0]}/other", "is a v3-8, but TPU needs a v2-8"),
    ],
)
def test_a_pool_with_something_wrong(settings, simulator, name, said):
    parent = f"projects/simulated/locations/{ZONES[0]}"
    simulator.cloud.create_node(parent, "other", {"accelerator_type": "v3-8"})
    assert said in found(settings(pool={"TPU": [name]}), Status.PROBLEM)["tpu-pool"].message


def test_a_node_of_a_pool_that_is_ill(settings, simulator):
    simulator.cloud.create_node(f"projects/simulated/locations/{ZONES[0]}", "mine", {"accelerator_type": "v2-8"})
    given = settings(pool={"TPU": [f"{ZONES[0]}/mine"], "V100": ["x/y"]})
    assert "which is not a TPU type" in found(given, Status.PROBLEM)["tpu-pool"].message
    assert "mine is READY" in found(given, Status.OK)["tpu-pool"].message
    simulator.cloud.set_health("mine", Health.UNHEALTHY_MAINTENANCE)
    assert "UNHEALTHY_MAINTENANCE" in found(given, Status.WARNING)["tpu-pool"].message


class Bucket:
    """A bucket that something is or is not wrong with."""

    def __init__(self, *, wrong=None, proved=True):
        self._wrong = wrong
        self.proved = proved
        self.statement = "It was tried." if proved else "It could not be tried."

    def inspect(self, _account, *, signs):
        self.signs = signs
        if self._wrong:
            raise GradientError(self._wrong)
        return self


def test_the_bucket_of_each_region(settings):
    asked = []
    well = found(settings(), Status.OK, lambda region: asked.append(region) or Bucket())
    assert asked == ["us-central1", "us-west4"]
    assert "It was tried." in well["tpu-bucket"].message
    wrong = found(settings(), Status.PROBLEM, lambda _: Bucket(wrong="it is in another region"))
    assert "it is in another region" in wrong["tpu-bucket"].message
    unsure = found(settings(), Status.WARNING, lambda _: Bucket(proved=False))["tpu-bucket"]
    assert "GRADIENT_TPU__SERVICE_ACCOUNT" in unsure.fix


def test_it_is_asked_only_when_wanted(settings, simulator, capsys):
    doctor.run(settings(), as_json=True)
    assert simulator.calls == []
    assert doctor.run(settings(), as_json=True, tpu=True) == 1, "there is no database yet"
    checks = [one["check"] for one in json.loads(capsys.readouterr().out.partition("\n}\n")[2])["findings"]]
    assert "tpu-access" in checks
    assert simulator.cloud.record == [], "nothing was made"
