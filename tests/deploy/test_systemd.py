"""The systemd units say what keeps jobs alive over a restart of their worker."""

import configparser
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent.parent / "deploy" / "systemd"


def unit(name, section="Service"):
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string((UNITS / name).read_text())
    return parser[section]


@pytest.mark.parametrize("name", ["gradient-jobs-api.service", "gradient-jobs-worker.service"])
def test_both_come_back_and_have_few_rights(name):
    service = unit(name)
    assert service["Restart"] == "always"
    assert service["User"] == "gradient"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert service["EnvironmentFile"] == "/etc/gradient-jobs/env"
    assert "Environment" not in service, "a unit file can be read by everybody"


def test_the_port_of_the_api_stays_open_over_its_restart():
    assert unit("gradient-jobs-api.service", "Unit")["Requires"] == "gradient-jobs-api.socket"
    assert unit("gradient-jobs-api.socket", "Socket")["ListenStream"] == "127.0.0.1:8780"


def test_a_restart_of_the_worker_leaves_its_jobs_alone():
    service = unit("gradient-jobs-worker.service")
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    assert "PrivateTmp" not in service
    assert int(service["TimeoutStopSec"]) > 20, "the worker needs 20 s to let go of its jobs"


def test_the_api_has_no_process_to_spare():
    assert "KillMode" not in unit("gradient-jobs-api.service")
