"""Jobs in a row: a file of them, artifacts of one in the workspace of the next, and what is not there any more."""

import json

import pytest

PIPELINE = """\
[[jobs]]
name = "train"
command = 'mkdir -p $GRADIENT_ARTIFACTS_DIR/best && echo weights >$GRADIENT_ARTIFACTS_DIR/best/model.bin'

[[jobs]]
name = "evaluate"
command = 'cat data/model/best/model.bin && echo more >>data/model/best/model.bin && echo good >score.txt'
inputs = ["train:data/model"]
outputs = ["score.txt"]

[[jobs]]
name = "clean"
command = "exit 3"
after = ["evaluate"]

[[jobs]]
name = "report"
command = "cat in/score.txt"
inputs = ["evaluate:in"]
after = ["clean:ended", "evaluate"]
"""


def test_a_file_of_jobs_runs_in_its_order_with_the_artifacts_of_earlier_ones(service, tmp_path):
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here.txt").write_text("of the folder")
    (tmp_path / ".gradient.toml").write_text('machineType = "CPU"\n')
    made = service.cli("run", "pipeline.toml", "--json", folder=tmp_path)
    train, evaluate, clean, report = (job["id"] for job in json.loads(made.stdout))
    assert [service.wait_ended(one)["exitCode"] for one in (train, evaluate, clean, report)] == [0, 0, 3, 0]
    assert service.raw_log(evaluate) == b"weights\n"
    assert service.raw_log(report) == b"good\n"
    assert service.artifact(train, "best/model.bin") == b"weights\n", "the next job changed a copy"
    assert [file["path"] for file in service.artifacts(evaluate)["files"]] == ["score.txt"]
    again = service.submit("cat in/score.txt", inputs=[f"{evaluate}:in"])
    assert service.wait_ended(again)["exitCode"] == 0


def test_an_input_without_artifacts_ends_the_job(service):
    first = service.submit("true")
    ended = service.wait_ended(service.submit("true", inputs=[f"{first}:in"]))
    assert (ended["state"], ended["reason"]) == ("Error", "input_missing")
    assert f"job {first} has no artifacts" in ended["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "not a list of jobs"),
        ('[[jobs]]\ncommand = "true"', "job 1 has no unique name"),
        ('[[jobs]]\nname = "a"\ncommand = "true"\nafter = ["a"]', "a waits for a, which is not above it"),
        (
            '[[jobs]]\nname = "a"\ncommand = "true"\nafter = ["b"]\n[[jobs]]\nname = "b"\ncommand = "true"',
            "a waits for b, which is not above it",
        ),
        ('[[jobs]]\nname = "a"\ncomand = "true"', "a: unknown option 'comand'"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused(service, tmp_path, text, words):
    (tmp_path / "wrong.toml").write_text(text)
    refused = service.cli("run", "wrong.toml", folder=tmp_path, code=2)
    assert words in refused.stderr


def test_jobs_above_one_that_is_refused_are_stopped(service, tmp_path):
    (tmp_path / "p.toml").write_text(
        '[[jobs]]\nname = "a"\nworkspace = "none"\nmachineType = "CPU"\ncommand = "sleep 600"\n'
        '[[jobs]]\nname = "b"\nworkspace = "none"\nmachineType = "CPU"\ncommand = "true"\nafter = ["a", "j0nosuch"]\n'
    )
    refused = service.cli("run", "p.toml", folder=tmp_path, code=4)
    assert "There is no job j0nosuch" in refused.stderr
    assert service.wait_ended(refused.stdout.split()[0])["state"] == "Cancelled"
