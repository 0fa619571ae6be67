"""An array from the command line to its end: each member's log, artifacts and exit code, and a repeat of the failed."""

import json
import re
from functools import partial

import pytest

from gradient_cli.formatting import format_duration

COMMAND = """\
echo "$GRADIENT_ARRAY_INDEX is $GRADIENT_ARRAY_VALUE of $GRADIENT_ARRAY_ID" | tee $GRADIENT_ARTIFACTS_DIR/said.txt
test $GRADIENT_ARRAY_VALUE != bad"""


@pytest.fixture
def cli(service, tmp_path):
    return partial(service.cli, folder=tmp_path, code=None)


@pytest.fixture
def create(cli, tmp_path):
    (tmp_path / ".gradient.toml").write_text('machineType = "CPU"\nworkspace = "none"\n')

    def create(*arguments):
        return cli("jobs", "create", "--command", COMMAND, *arguments)

    return create


def test_an_array_of_a_file_runs_and_its_failed_members_are_repeated(cli, create, tmp_path):
    (tmp_path / "values.txt").write_text("good\nbad\nfine\n")
    made = create("--array", "values.txt%2", "--name", "sweep")
    assert made.returncode == 1, made.stderr
    listed = json.loads(cli("jobs", "list", "--json").stdout)["jobs"]
    array = next(job for job in listed if job["name"] == "sweep")
    array_id = array["arrayId"]
    assert array["arrayMembers"] == {"Stopped": 2, "Failed": 1}
    assert f"array {array_id}" in made.stderr
    assert "1 Failed, 2 Succeeded" in made.stderr
    assert "1 Failed, 2 Succeeded" in cli("jobs", "list").stdout
    said = [f"{index} is {value} of {array_id}" for index, value in enumerate(("good", "bad", "fine"))]
    assert cli("jobs", "logs", array_id).stdout.splitlines() == [f"[{line[0]}] {line}" for line in said]
    assert cli("jobs", "logs", f"{array_id}_2").stdout.splitlines() == said[2:]
    shown = cli("jobs", "show", array_id).stdout
    heading, table = shown.split("ID ", 1)
    assert [line.split()[1:3] for line in table.splitlines()[1:]] == [["0", "good"], ["1", "bad"], ["2", "fine"]]
    members = json.loads(cli("jobs", "show", array_id, "--json").stdout)
    for field in ("durationSeconds", "cost"):
        assert members[field] == pytest.approx(sum(job[field] for job in members["jobs"]), abs=2e-3)
    assert re.search(r"members +1 Failed, 2 Succeeded\n", heading)
    assert re.search(
        rf"ran {re.escape(format_duration(members['durationSeconds']))} in all, (would )?cost ", made.stderr
    )
    assert f"gradient-cli jobs artifacts get {array_id}" in made.stderr
    assert "1/said.txt" in cli("jobs", "artifacts", "list", array_id).stdout
    got = cli("jobs", "artifacts", "get", array_id, "--to", "got")
    assert got.returncode == 0, got.stderr
    assert [(tmp_path / "got" / str(index) / "said.txt").read_text() for index in range(3)] == [
        f"{one}\n" for one in said
    ]
    assert cli("jobs", "wait", array_id).returncode == 1
    again = cli("jobs", "clone", array_id, "--onlyFailed", "--detach")
    assert again.returncode == 0, again.stderr
    assert cli("jobs", "wait").returncode == 1, "the array is the last of this folder"
    assert cli("jobs", "logs", again.stdout.strip()).stdout == f"[1] 1 is bad of {again.stdout.strip()}\n"


def test_an_array_is_stopped_and_deleted_whole(cli, create):
    made = create("--array", "0-9", "--command", "sleep 600", "--detach")
    array_id = made.stdout.strip()
    assert cli("jobs", "open", array_id).stdout.endswith(f"/ui/jobs/{array_id}\n")
    stopped = cli("jobs", "stop", array_id, "--now")
    assert stopped.returncode == 0, stopped.stderr
    assert cli("jobs", "wait", array_id).returncode == 1
    members = json.loads(cli("jobs", "list", "--array", array_id, "--json").stdout)["jobs"]
    assert [job["state"] for job in members] == ["Cancelled"] * 10
    assert cli("jobs", "delete", array_id).returncode == 0
    gone = cli("jobs", "show", array_id)
    assert "no such array" in gone.stderr
    assert "no such array" in cli("jobs", "open", array_id).stderr


@pytest.mark.parametrize("members", ["nothing.txt", "no"])
def test_an_array_of_a_file_that_does_not_exist_is_refused(create, members):
    refused = create("--array", members)
    assert refused.returncode == 2
    assert f"'{members}' is not a range, a list or a readable file" in refused.stderr


def test_the_log_of_an_array_is_followed_to_the_end_of_its_last_member(cli, create):
    script = (
        'n=$GRADIENT_ARRAY_INDEX; echo first; sleep 0.$n; for i in 1 2 3; do echo "$n:$i"; done; printf open; exit $n'
    )
    array_id = create("--array", "0-1", "--command", script, "--detach").stdout.strip()
    followed = cli("jobs", "logs", array_id, "--follow")
    assert followed.returncode == 1, followed.stderr
    lines = followed.stdout.splitlines()
    for member in (0, 1):
        own = [line for line in lines if line.startswith(f"[{member}] ")]
        assert own == [f"[{member}] {text}" for text in ("first", *(f"{member}:{i}" for i in (1, 2, 3)), "open")]
    rows = [json.loads(line) for line in cli("jobs", "logs", array_id, "--json", "--search", "1:2").stdout.splitlines()]
    assert [(row["member"], row["message"]) for row in rows] == [(1, "1:2")]
    last = cli("jobs", "logs", array_id, "--tail", "1").stdout.splitlines()
    assert last == ["[0] open", "[1] open"]


def test_a_column_or_an_order_of_a_metric_shows_each_member(cli):
    command = 'echo "{\\"m\\": $GRADIENT_ARRAY_INDEX}" >>$GRADIENT_METRICS_FILE'
    options = ("-m", "CPU", "--workspace", "none", "--param", "depth=3", "--name", "measured")
    assert cli("jobs", "create", *options, "--array", "0-2", "--command", command).returncode == 0
    listed = cli("jobs", "list", "--columns", "m", "--limit", "3").stdout.splitlines()
    assert sorted(line.split()[-1] for line in listed[1:]) == ["0", "1", "2"]
    ordered = cli("jobs", "list", "--sort=-m", "--columns", "name", "--limit", "3", "--json").stdout
    assert [job["arrayIndex"] for job in json.loads(ordered)["jobs"]] == [2, 1, 0]
    with_param = cli("jobs", "list", "--columns", "params.depth", "--limit", "3").stdout.split()
    assert with_param[1::2] == ["depth", "3", "3", "3"]
    assert "3 Succeeded" in cli("jobs", "list", "--sort=-cost", "--columns", "name,state").stdout
