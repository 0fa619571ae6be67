"""The systemd units say what keeps jobs alive over a restart of their worker."""

import configparser
from pathlib import Path

UNITS = Path(__file__).parent.parent.parent / "deploy" / "systemd"


def unit(name, section="Service"):
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string((UNITS / name).read_text())
    return parser[section]


def test_a_restart_of_the_worker_leaves_its_jobs_alone():
    service = unit("gradient-jobs-worker.service")
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    assert "PrivateTmp" not in service
    assert int(service["TimeoutStopSec"]) > 20, "the worker needs 20 s to let go of its jobs"
