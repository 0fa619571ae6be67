"""Jobs that use Weights & Biases or MLflow: one run over attempts, and its link."""

import json

import pytest

URL = "https://wandb.example.org:8443/team/demo/runs/"
# As the library prints it: in colours, to stderr.
TRAIN = f"""
echo "seen|$WANDB_RUN_ID|$WANDB_RESUME|$WANDB_TAGS|$MLFLOW_RUN_CONTEXT"
printf 'wandb: View run \\033[33mname\\033[0m at: \\033[34m\\033[4m{URL}%s\\033[0m\\n' "$WANDB_RUN_ID" >&2
echo "View run dull at http://ml.example.org/#/experiments/0/runs/0123abcd"; echo "no https://x.org/runs/link"
test "$GRADIENT_ATTEMPT" = 2
"""


@pytest.fixture
def seen(deployment):
    """A function that returns what an attempt found in its variables."""

    def seen(job_id, attempt):
        lines = [line for line in deployment.raw_log(job_id).decode().splitlines() if line.startswith("seen|")]
        return lines[attempt - 1].split("|")[1:]

    return seen


def test_a_run_continues_over_attempts_and_is_linked(deployment, seen):
    deployment.start_up()
    job_id = deployment.submit(TRAIN, envVars={"WANDB_MODE": "offline", "MLFLOW_X": "1"}, maxAttempts=2)
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 2)
    links = [f"Its run: {URL}{job_id}", "Its run: http://ml.example.org/#/experiments/0/runs/0123abcd"]
    assert job["notes"] == links
    shown = deployment.cli("jobs", "show", job_id).stdout
    assert f"{URL}{job_id}" in shown
    page = deployment.request("GET", f"/ui/jobs/{job_id}").text
    assert f'<a href="{URL}{job_id}" rel="noopener noreferrer">' in page
    for attempt in (1, 2):
        run, resume, tags, context = seen(job_id, attempt)
        assert (run, resume, tags) == (job_id, "allow", "")
        assert json.loads(context) == {"gradient.job": job_id, "gradient.root": job_id}
    clone = deployment.request("POST", f"/jobs/{job_id}/clone", json={}).json()["id"]
    again = deployment.request("POST", f"/jobs/{clone}/clone", json={"envVars": {"WANDB_RUN_ID": "mine"}}).json()["id"]
    for cloned, run in ((clone, clone), (again, "mine")):
        deployment.wait_ended(cloned)
        found = seen(cloned, 1)
        assert found[0] == run
        if cloned == clone:
            assert found[2] == job_id
            assert json.loads(found[3])["gradient.root"] == job_id


def test_without_a_tracker_nothing_is_set_and_nothing_looked_for(deployment, seen):
    deployment.start_up()
    job_id = deployment.submit(TRAIN, envVars={"MY_WANDB_KEY": "x"}, maxAttempts=2)
    job = deployment.wait_ended(job_id)
    assert (job["notes"], seen(job_id, 1)) == ([], ["", "", "", ""])
