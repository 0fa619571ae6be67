"""`gradient-server doctor --gpu`, with a substitute for the driver and for the Python that has torch."""

import pytest
from support.nvidia_driver import MIB, FakeDriver

from gradient_server.checks import gpus
from gradient_server.checks.finding import Status


@pytest.fixture
def check(tmp_path, monkeypatch):
    """A function that runs the checks while each GPU's program does this."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def check(program):
        python = tmp_path / "python3"
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
        return [(finding.status, finding.message) for finding in gpus.check()]

    return check


def test_each_free_gpu_is_put_to_work(check, monkeypatch):
    driver = FakeDriver(monkeypatch, 4)
    driver.memory[1], driver.ecc = 9000 * MIB, {2: 5}
    driver.lost = {3}
    found = check('test "$3" = 20 || exit 9; case $CUDA_VISIBLE_DEVICES in *0) echo 4321 0;; *) echo 7 2;; esac')
    assert found[0] == (
        Status.OK,
        "GPU 0 has no faults on record, and right results: 4,321 products of the same matrices are equal.",
    )
    assert found[1][0] is Status.WARNING
    assert "it was not put to work: 9,000 MiB in use" in found[1][1]
    assert found[2] == (Status.PROBLEM, "GPU 2: 5 ECC errors since its last reset could not be corrected.")
    assert found[3] == (Status.PROBLEM, "GPU 3: it fell off the bus.")
    assert driver.open == 0


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("echo 7 2", Status.PROBLEM, "wrong results: 2 of 7 products"),
        (
            "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1",
            Status.WARNING,
            "No module named 'torch'",
        ),
        ("exec sleep 60", Status.PROBLEM, "did not finish"),
    ],
)
def test_work_that_fails_is_told(check, monkeypatch, program, status, says):
    FakeDriver(monkeypatch, 1)
    monkeypatch.setattr(gpus, "_MOST_SECONDS", 0.5)
    ((found, message),) = check(program)
    assert (found, says in message) == (status, True), message


def test_without_a_gpu_nothing_is_put_to_work(check, monkeypatch):
    FakeDriver(monkeypatch, 0)
    assert check("exit 1") == [(Status.OK, "This machine has no NVIDIA GPU.")]
