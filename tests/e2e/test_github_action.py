"""The example for GitHub Actions: its steps, run in their order against a real service."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from support.deployment import CLI_PROGRAM

WORKFLOW = Path(__file__).parents[2] / "examples" / "github-actions" / "train.yml"
PROGRAM = """
import json, os, pathlib
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as metrics:
    print(json.dumps({"step": 1, "loss": 0.5}), file=metrics)
pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"], "model.bin").write_text("weights")
print("trained")
raise SystemExit(int(os.environ["CODE"]))
"""


@pytest.fixture
def steps():
    """The steps that run a command, without the installation of the client."""
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert workflow[True], "YAML reads the key `on` as a truth value"
    assert job["env"]["GRADIENT_API_KEY"] == "${{ secrets.GRADIENT_API_KEY }}"
    assert all(set(step) <= {"name", "uses", "with", "run", "if"} for step in job["steps"])
    return [step for step in job["steps"] if "run" in step and "pip install" not in step["run"]]


def run_workflow(steps, service, folder):
    """Run the steps as a runner does: after a failure only those with `always()`; return exit codes and outputs."""
    env = {
        "PATH": f"{CLI_PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder.parent),
        "GRADIENT_URL": service.cli_json["url"],
        "GRADIENT_API_KEY": service.cli_json["apiKey"],
        "GITHUB_REPOSITORY": "me/vision",
        "GITHUB_SHA": "0123456789abcdef",
        "GITHUB_ENV": str(folder.parent / "github.env"),
        "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md"),
    }
    failed, done = False, {}
    for step in steps:
        condition = step.get("if", "")
        skipped = "env.JOB_ID" in condition and "JOB_ID" not in env
        if skipped or "cancelled()" in condition or (failed and "always()" not in condition):
            continue
        ran = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        done[step["name"].split()[0]] = ran
        failed |= ran.returncode != 0
        if (set_later := Path(env["GITHUB_ENV"])).exists():
            env |= dict(line.split("=", 1) for line in set_later.read_text().splitlines())
    return done


@pytest.mark.parametrize("code", [0, 3])
def test_the_workflow_ends_as_its_job_does(steps, service, tmp_path, code):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / ".gradient.toml").write_text(
        f'machineType = "CPU"\ncommand = "python train.py"\n[envVars]\nCODE = "{code}"\n'
    )
    done = run_workflow(steps, service, folder)
    assert {name: ran.returncode for name, ran in done.items()} == {
        "Submit": 0,
        "Follow": code,
        "Show": 0,
        "Download": 0,
    }, [ran.stderr for ran in done.values()]
    assert "trained" in done["Follow"].stdout
    assert "loss" in (tmp_path / "summary.md").read_text()
    assert (folder / "outputs" / "model.bin").read_text() == "weights"
