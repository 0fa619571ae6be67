"""The program that breaks hosts: a few faults of it, and that its check finds what would be wrong."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.hosts import LINES, violations_of

DATA = b"what the job wrote"
ENDED = {"state": "Stopped", "exitCode": 0, "reason": "completed"}


class AnsweringLab:
    """Answers as the service does about one job."""

    def __init__(self, log: str, data: bytes = DATA, **job: object) -> None:
        self._log, self._data, self._job = log, data, ENDED | job
        self.allowed = {"j1": "slurm_cancelled"}

    def request(self, _: str) -> dict[str, object]:
        return self._job

    def read(self, path: str) -> bytes:
        return self._log.encode() if path.endswith("/logs/raw") else self._data


def attempt(number, lines=range(1, LINES + 1), *, end=True):
    text = "".join(f"line {one} of {number}\n" for one in lines)
    return f"begins {number} on ada\n{text}" + f"ends {number} with {hashlib.sha256(DATA).hexdigest()}\n" * end


@pytest.mark.parametrize(
    ("lab", "wrong"),
    [
        (AnsweringLab(attempt(1)), []),
        (AnsweringLab(attempt(1, range(1, 4), end=False) + attempt(2)), []),
        (AnsweringLab(attempt(1), state="Failed", exitCode=1, reason="x"), ["ended as Failed: x"]),
        (AnsweringLab(attempt(1, [1], end=False), state="Cancelled", reason="slurm_cancelled"), []),
        (AnsweringLab(attempt(1) + attempt(1)), ["attempts ran more than once: ['1', '1']"]),
        (AnsweringLab(attempt(1, [1, 3], end=False) + attempt(2)), ["attempt 1 has lines ['1', '3']"]),
        (AnsweringLab(attempt(1, [1], end=False)), ["the last attempt has 1 lines and 0 ends"]),
        (AnsweringLab(attempt(1), data=b"other"), None),
    ],
)
def test_what_is_wrong_with_a_job_is_found(lab, wrong):
    found = list(violations_of(lab, "j1"))
    assert found == wrong if wrong is not None else "its artifact is" in found[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize("parts", ["hosts", "slurm"])
def test_a_few_faults_break_no_promise(parts):
    words = [sys.executable, "-m", f"chaos.{parts}", "--faults", "8", "--seed", "1", "--no-long-fault"]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 faults" in done.stdout
    assert "0 violations" in done.stdout
