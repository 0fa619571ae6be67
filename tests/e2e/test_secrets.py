"""A secret reaches the job that names it, and nobody else: not the database, not a log, not an answer."""

import hashlib
import secrets
from pathlib import Path

import pytest
from support.deployment import wait_until
from support.faults.invariants import check_invariants
from support.faults.observed_deployment import ObservedDeployment
from support.live_folder import find_files_with

from core.db.models.jobs import Job

SAYS_HASH = 'printf %s "$TOKEN" | sha256sum'


def digest(value):
    return hashlib.sha256(value.encode()).hexdigest()


@pytest.fixture
def service(tmp_path, redis):
    service = ObservedDeployment(tmp_path / "home", redis=redis, canary=False, GRADIENT_QUEUE__BROKER_URL=redis.url)
    service.start_api()
    service.start_worker(GRADIENT_WORKER__SWEEP_SECONDS="1")
    yield service
    service.stop()


def store(service, name, value, *more):
    done = service.cli("secrets", "set", name, *more, given=f"{value}\n")
    assert value not in done.stdout + done.stderr


def files_holding(folder: Path, value: str):
    return sorted(str(path.relative_to(folder)) for path in find_files_with(folder, value))


def test_a_secret_reaches_its_job_and_turns_up_nowhere_else(service):
    canary = f"canary-{secrets.token_hex(16)}"
    service.canary = canary  # in no job's specification: the history looks for it everywhere
    store(service, "wandb", canary)
    env = {"TOKEN": "secret:wandb", "PLAIN": "seen"}
    good = service.request("POST", "/jobs", json=body(f"{SAYS_HASH}; echo $PLAIN; exit 3", env)).json()["id"]
    broken = service.request("POST", "/jobs", json=body("no-such-program-here $TOKEN", env)).json()["id"]
    unfetched = body("true", env) | {"workspace": "file:///nowhere"}
    assert service.request("POST", "/jobs", json=unfetched).status_code == 400
    unfetched["workspace"] = "http://127.0.0.1:1/none.git"
    unfetched = service.request("POST", "/jobs", json=unfetched).json()["id"]
    jobs = [service.wait_ended(job_id) for job_id in (good, broken, unfetched)]
    assert [job["reason"] for job in jobs] == ["exit_nonzero", "command_not_found", "workspace_fetch"]
    assert service.raw_log(good).decode() == f"{digest(canary)}  -\nseen\n"
    assert [job["envVars"] for job in jobs] == [env] * 3
    clone = service.request("POST", f"/jobs/{good}/clone").json()["id"]
    answers = [
        service.request("GET", f"/jobs/{clone}").text,
        service.request("GET", f"/jobs/{good}/events").text,
        service.request("POST", "/jobs?dryRun=true", json=body("true", env)).text,
        service.request("GET", "/secrets").text,
        service.request("GET", f"/ui/jobs/{good}").text,
        service.request("GET", f"/ui/jobs/{good}/config").text,
        service.request("GET", f"/jobs/{good}/diff?other={broken}").text,
        service.cli("jobs", "show", good).stdout,
        service.cli("secrets", "list").stdout,
    ]
    assert service.wait_ended(clone)["exitCode"] == 3
    assert service.raw_log(clone).startswith(digest(canary).encode())
    wait_until(lambda: service.scratch() == [], "the scratch directories to go")
    assert [answer for answer in answers if canary in answer] == []
    assert canary not in repr(service.rows(Job)), "nor in a specification"
    assert good in service.messages().decode(errors="replace"), "the messages that are looked through"
    check_invariants(service, outputs=False)
    assert files_holding(service.home.parent, canary) == [], "no file under the home, no log of a process, no message"


def body(command, env):
    return {"machineType": "CPU", "command": command, "envVars": env}


def test_a_projects_own_secret_goes_first_and_a_change_is_for_jobs_to_come(service):
    service.request("POST", "/projects", json={"name": "vision"})
    store(service, "token", "everybody's-value")
    store(service, "token", "vision's-own-value", "--project", "vision")
    env = {"TOKEN": "secret:token"}
    submitted = [
        service.request("POST", "/jobs", json=body(SAYS_HASH, env) | {"project": project}).json()["id"]
        for project in ("default", "vision")
    ]
    logs = [service.wait_ended(job_id) and service.raw_log(job_id).decode() for job_id in submitted]
    assert logs == [f"{digest(value)}  -\n" for value in ("everybody's-value", "vision's-own-value")]
    service.cli("secrets", "delete", "token", "--project", "vision")
    store(service, "token", "another value\nof two lines")
    job_id = service.request("POST", "/jobs", json=body(SAYS_HASH, env) | {"project": "vision"}).json()["id"]
    service.wait_ended(job_id)
    assert service.raw_log(job_id).decode() == f"{digest('another value' + chr(10) + 'of two lines')}  -\n"


def rotate(service):
    process = service.start("secrets", "rotate")
    return process.wait(), process.read_log()


def test_keys_are_rotated_under_a_running_service_and_a_lost_one_is_said(service):
    store(service, "token", "the-value")
    keys = service.home / "secrets.key"
    assert keys.stat().st_mode & 0o777 == 0o600
    first = keys.read_text()
    assert rotate(service) == (0, f"1 value encrypted with the first key of {keys}.\n")
    assert keys.read_text().splitlines()[1:] == first.splitlines()
    env = {"TOKEN": "secret:token"}
    job_id = service.request("POST", "/jobs", json=body(SAYS_HASH, env)).json()["id"]
    assert service.wait_ended(job_id)["exitCode"] == 0
    assert service.raw_log(job_id).decode() == f"{digest('the-value')}  -\n"
    keys.write_text(first)  # a backup from before the rotation
    code, said = rotate(service)
    assert (code, "secret token" in said) == (1, True)
    job_id = service.request("POST", "/jobs", json=body(SAYS_HASH, env)).json()["id"]
    wait_until(lambda: service.job(job_id)["reason"] == "retrying", "the job to wait for its next try")
    assert "secret token" in service.job(job_id)["message"]
    assert str(keys) in service.job(job_id)["message"]
