"""The command and the project file beside the form of a job, and the texts of its fields."""

import shlex
import tomllib

import pytest

from core.jobs.spec.job_spec import JobSpec
from gradient_cli.main import build_parser
from gradient_cli.workspace import job_spec
from service.dashboard.forms import cli_equivalent
from service.dashboard.forms.job_fields import describe_spec, parse_fields

FIELDS_OF_A_JOB = {
    "machineType": "CPU",
    "command": "python train.py --name 'it\"s' \\ $HOME",
    "name": "-dash é",
    "envVars": {"A": "1 2", "Q": 'say "x"\nagain'},
    "tags": ["a", "b c"],
    "outputs": ["*.pt"],
    "ports": ["0:8888"],
    "timeLimit": 5400,
    "maxAttempts": 3,
    "cpus": 1.5,
    "workingDir": "src",
}


def test_the_command_beside_the_form_submits_the_same_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(cli_equivalent.as_command(FIELDS_OF_A_JOB).replace("\\\n", ""))
    args = build_parser("jobs create").parse_args(words[1:])
    assert job_spec.resolve(args, filed=False) == (FIELDS_OF_A_JOB, "none", [])


@pytest.mark.parametrize(
    ("command", "fields", "given"),
    [
        (
            "sweeps create",
            {
                "params": {"batch": "8", "text": "a,b"},
                "space": {"lr": "log:1e-5..1e-1"},
                "metric": "loss:min",
                "trials": 4,
            },
            {"param": ["batch=8", 'text="a,b"', "lr=log:1e-5..1e-1"], "metric": "loss:min", "trials": 4},
        ),
        ("schedules create", {"cron": "0 3 * * *", "onMiss": "all"}, {"cron": "0 3 * * *", "onMiss": "all"}),
        (
            "compare create",
            {"repeats": 3, "serial": True, "target": 0.9},
            {"repeats": 3, "parallel": False, "target": 0.9},
        ),
        ("compare create", {"metric": "acc:max"}, {"metric": "acc:max", "parallel": True}),
    ],
)
def test_the_command_beside_the_form_makes_what_has_several_jobs(command, fields, given):
    job = {"machineType": "CPU", "command": "python train.py $GRADIENT_ARRAY_VALUE"}
    words = shlex.split(cli_equivalent.as_command(job | fields, command).replace("\\\n", ""))
    args = build_parser(command).parse_args(words[1:])
    assert {name: getattr(args, name) for name in given} == given
    assert args.command == job["command"]


def test_the_project_file_beside_the_form_is_of_the_same_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = cli_equivalent.as_project_file(FIELDS_OF_A_JOB)
    assert tomllib.loads(text)["workspace"] == "none"
    (tmp_path / ".gradient.toml").write_text(text, encoding="utf-8")
    args = build_parser("jobs create").parse_args(["jobs", "create"])
    assert job_spec.resolve(args)[:2] == (FIELDS_OF_A_JOB, "none")


def test_the_texts_of_a_job_stand_for_the_same_job():
    spec = JobSpec(
        machine_type="CPU",
        command="a\nb",
        env_vars={"A": " padded ", "B": '"quoted', "C": "x\ny", "D": ""},
        tags=("t",),
        ports=("0:80:tcp",),
        cpus=0.5,
        memory_mb=64,
        time_limit=93784,
        stop_grace=0,
        stop_signal="SIGUSR1",
        warn_before="90 s : int",
        python="3.12",
        outputs=("o",),
    )
    fields, errors = parse_fields(describe_spec(spec, "p"))
    assert errors == {}
    same = {"machineType": "CPU", "command": "a\nb", "envVars": spec.env_vars, "tags": ["t"], "cpus": 0.5}
    assert fields == same | {
        "project": "p",
        "ports": list(spec.ports),
        "memoryMb": 64,
        "timeLimit": 93784,
        "stopGrace": 0,
        "stopSignal": "USR1",
        "warnBefore": "1m30s:INT",
        "python": "3.12",
        "outputs": ["o"],
    }
