"""`compare create`, `jobs`, `list`, `show`, `export` and `delete`."""

import csv
import io
import json
import os
from contextlib import suppress

import pytest

SPREAD = {"median": 20.5, "low": 20.0, "high": 21.0}

BOTTLENECK = {
    "kind": "input",
    "summary": "Bound by input: 80% of the running time.",
    "figures": [{"name": "input_share", "value": 0.8, "text": "80% of the running time waiting for input"}],
    "advice": ["Cache the prepared examples."],
    "missing": [],
}


def machine_row(name, **fields):
    row = {
        "machineType": name,
        "title": name,
        "simulated": False,
        "jobs": 3,
        "succeeded": 3,
        "failed": 0,
        "stepsPerSecond": SPREAD,
        "speedup": 1.0,
        "final": {"median": 0.95, "low": 0.94, "high": 0.96},
        "seconds": SPREAD,
        "secondsToTarget": {"median": 90.0, "low": 80.0, "high": 95.0},
        "peakMemoryBytes": 2_000_000_000,
        "peakGpuMemoryBytes": None,
        "pricePerHour": 3.06,
        "cost": 0.0174,
        "costToTarget": 0.0765,
        "costPer1000Steps": 0.0415,
        "marks": [],
        "labels": ["tied fastest"],
        "fastest": 1,
        "cheapest": 2,
        "mostAccurate": 1,
        "slowerBy": None,
        "dearerBy": {"value": 0.5, "low": 0.4, "high": 0.6},
        "worseBy": None,
        "onMetricTimeFront": True,
        "onMetricCostFront": False,
        "onTimeCostFront": None,
        "bottleneck": BOTTLENECK,
        "members": [],
    }
    return row | fields


def comparison(*rows, **fields):
    made = {
        "id": "c1234567890abc",
        "name": None,
        "url": "http://server/ui/comparisons/c1234567890abc",
        "metric": "acc|x",
        "goal": "max",
        "target": 0.9,
        "jobs": 6,
        "ended": 6,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "rows": list(rows),
        "results": ["Fastest: V100; T4, the next, takes 2 times as much."],
        "differences": [],
        "notes": [],
    }
    return made | fields


UNMEASURED = machine_row(
    "CPU",
    simulated=True,
    succeeded=1,
    failed=2,
    marks=["simulated", "2 of 3 failed"],
    labels=[],
    **dict.fromkeys(("stepsPerSecond", "speedup", "final", "seconds", "secondsToTarget", "peakMemoryBytes")),
    bottleneck=None,
    **dict.fromkeys(("cost", "costToTarget", "costPer1000Steps", "fastest", "cheapest", "mostAccurate")),
    **dict.fromkeys(("onMetricTimeFront", "onMetricCostFront")),
)


def test_a_folder_is_uploaded_once_for_all_machine_types(cli, server):
    (cli.folder / "train.py").write_text("print(1)\n")
    server.on("POST", "/jobs", {"job": {}, "notes": []})
    server.on("POST", "/comparisons", comparison(machine_row("CPU"), machine_row("V100")))
    options = ["--repeats", "3", "--metric", "val_accuracy", "--target", "0.9"]
    made = cli("compare", "create", "-m", "cpu,V100", *options, "--", "python", "train.py")
    assert (made.returncode, made.stdout) == (0, "c1234567890abc\n"), made.stderr
    assert "6 jobs on 2 machine types" in made.stderr
    assert "gradient-cli compare show c1234567890abc --wait" in made.stderr
    assert server.requests_to("POST", "/jobs")[0].json["machineType"] == "cpu", "one is validated before the upload"
    (sent,) = server.requests_to("POST", "/comparisons")
    spec = sent.json
    assert [spec["workspaceSha256"]] == list(server.workspaces)
    assert (spec["machineType"], spec["repeats"], spec["command"]) == ("cpu,V100", 3, "python train.py")
    assert (spec["metric"], spec["target"]) == ("val_accuracy", 0.9)
    assert sent.headers["Idempotency-Key"]
    assert spec["serial"] is True
    cli("compare", "create", "-m", "cpu,V100", "--parallel", "--", "python", "train.py")
    assert server.requests_to("POST", "/comparisons")[1].json["serial"] is False


def test_fronts_are_words_in_the_table_and_lines_below_it(cli, server):
    low = {"median": 0.9, "low": 0.9, "high": 0.9}
    cpu = machine_row("CPU", final=low, cost=0.001, onMetricTimeFront=False, onMetricCostFront=True)
    survivors = {"title": "V100 (2 of 3 failed)", "marks": ["2 of 3 failed"]}
    v100 = machine_row("V100", onMetricCostFront=True, onTimeCostFront=True, **survivors)
    server.on(
        "GET", "/comparisons/c1234567890abc", comparison(v100, cpu, UNMEASURED, machine_row("TPU", simulated=True))
    )
    shown = cli("compare", "show", "c1234567890abc", "--explain")
    head, *rows = shown.stdout.splitlines()
    assert [row[head.index("PARETO FRONT OF") :] for row in rows] == [
        "acc|x and time; acc|x and cost; time and cost",
        "acc|x and cost",
        "",
        "acc|x and time",
    ]
    assert [line for line in shown.stderr.splitlines() if "Pareto" in line] == [
        "Pareto front of acc|x and time: V100 (2 of 3 failed) (0.95 in 20s)",
        "Pareto front of acc|x and cost: CPU (0.9 for $0.0010), V100 (2 of 3 failed) (0.95 for $0.0174)",
        "Pareto front of time and cost: V100 (2 of 3 failed) (1m 30s for $0.0765)",
        "Pareto front of acc|x and time (simulated): TPU (0.95 in 20s)",
    ]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_terminal_has_machine_rank_cost_time_and_metric_below_the_conclusion(cli, server, columns):
    decision = {"headline": "Take V100: $0.0765; cheapest.", "changes": []}
    found = comparison(machine_row("V100"), UNMEASURED, decision=decision)
    server.on("GET", "/comparisons/c1234567890abc", found)
    leader, follower = os.openpty()
    with cli.start(
        "compare", "show", "c1234567890abc", stdout=follower, stderr=follower, env={"COLUMNS": columns}
    ) as run:
        os.close(follower)
        shown = ""
        with suppress(OSError):  # EIO: all have closed it
            while data := os.read(leader, 65536):
                shown += data.decode()
        assert run.wait() == 0, shown
    os.close(leader)
    assert shown.index("Take V100") < shown.index("MACHINE")
    for text in ("V100", "tied fastest", "$0.0765", "1m 30s", "0.95 (0.94-0.96)", "CPU [1]"):
        assert text in shown


def test_without_metric_and_target_the_front_is_of_the_whole_run(cli, server):
    row = machine_row("V100", onMetricTimeFront=None, onTimeCostFront=True)
    server.on("GET", "/comparisons/c1234567890abc", comparison(row, metric=None, target=None))
    shown = cli("compare", "show", "c1234567890abc", "--explain")
    assert "Pareto front of time and cost: V100 (20s for $0.0174)" in shown.stderr


def test_a_program_from_git_needs_no_upload(cli, server):
    server.on("POST", "/comparisons", comparison())
    url = "https://host/repo.git"
    made = cli("compare", "create", "-m", "CPU,V100", "--workspace", url, "--command", "true", "--json")
    assert json.loads(made.stdout)["id"] == "c1234567890abc"
    assert server.requests_to("POST", "/comparisons")[0].json["workspace"] == url


def test_the_table_has_figures_ranks_differences_and_notes(cli, server):
    difference = {"name": "command", "values": {"a": ["j1"], "": ["j2"]}}
    t4 = machine_row("T4", labels=["cheapest"])
    found = comparison(machine_row("V100"), t4, UNMEASURED, differences=[difference], notes=["Be careful."])
    server.on("GET", "/comparisons/c1234567890abc", found)
    shown = cli("compare", "show", "c1234567890abc", "--explain")
    assert shown.returncode == 0, shown.stderr
    head, v100, t4, cpu = shown.stdout.splitlines()
    assert head.split("  ")[0] == "MACHINE"
    for text in ("20.5 (20-21)", "0.95 (0.94-0.96)", "1m 30s", "$0.0765", "$3.06", "1.9 GiB", "input", "tied fastest"):
        assert text in v100
    assert "cheapest" not in v100
    assert "cheapest" in t4
    assert cpu.startswith("CPU [1] ")
    assert "[1] simulated, 2 of 3 failed" in shown.stderr
    assert "1 of 3" in cpu
    assert "Fastest: V100; T4, the next, takes 2 times as much." in shown.stderr
    assert "differs: command: a (j1); none (j2)" in shown.stderr
    assert "note: Be careful." in shown.stderr
    assert "V100: Bound by input: 80% of the running time. (80% of the running time waiting" in shown.stderr
    assert "  advice: Cache the prepared examples." in shown.stderr
    brief = cli("compare", "show", "c1234567890abc")
    assert brief.stdout == shown.stdout
    first, *_, pointer = brief.stderr.splitlines()
    assert (first, pointer.split(",")[0]) == (
        "[1] simulated, 2 of 3 failed",
        "--explain also prints certainty of the ranks",
    )
    assert "note: Be careful." in brief.stderr
    assert [text for text in ("Fastest", "Pareto front of", "Bound by") if text in brief.stderr] == []


def test_show_waits_for_the_last_job_though_the_server_restarts(cli, server, protocol):
    away = protocol.error(502, "bad gateway")
    server.on("GET", "/comparisons/c1234567890abc", comparison(ended=5), away, comparison(machine_row("V100")))
    shown = cli("compare", "show", "c1234567890abc", "--wait")
    assert "V100" in shown.stdout
    assert ["5 of 6" in shown.stderr, "6 of 6" in shown.stderr] == [True, True]


def test_show_with_wait_gives_the_highest_exit_code(cli, server, protocol):
    states = {"j1": "Stopped", "j2": "Failed", "j3": "Error"}
    members = [{"jobId": one, "state": state} for one, state in states.items()]
    server.on("GET", "/comparisons/c1234567890abc", comparison(machine_row("V100", members=members)))
    server.on("GET", "/jobs/j2", protocol.ended(7, "Failed"))
    server.on("GET", "/jobs/j3", protocol.ended(None, "Error"))
    assert cli("compare", "show", "c1234567890abc", "--wait").returncode == 7
    assert cli("compare", "show", "c1234567890abc", "--wait", "--json").returncode == 7
    assert cli("compare", "show", "c1234567890abc").returncode == 0


def test_a_comparison_is_named_by_the_beginning_of_its_id_or_is_the_last_one_here(cli, server, protocol):
    named = [{"id": "c1234567890abc"}, {"id": "c1999999999999"}]
    server.on("GET", "/comparisons", {"comparisons": named})
    server.on("GET", "/comparisons/c1234567890abc", comparison(machine_row("V100")))
    server.on("DELETE", "/comparisons/c1234567890abc", protocol.Reply(status=204))
    assert cli("compare", "show", "c12").returncode == 0
    refused = cli("compare", "show", "c1")
    assert refused.returncode == 2
    assert "several comparisons have an id that begins with 'c1': c1234567890abc, c1999999999999" in refused.stderr
    pages = [{"comparisons": [one], "next": one["id"]} for one in named[:1]] + [
        {"comparisons": named[1:], "next": None}
    ]
    server.on("GET", "/comparisons", *pages)
    assert "c1234567890abc, c1999999999999" in cli("compare", "delete", "c1").stderr, "also of an older page"
    assert "no comparison has been created in this folder yet" in cli("compare", "show").stderr
    made = {"id": "c1234567890abc", "url": "", "jobs": 1, "rows": [1]}
    server.on("POST", "/comparisons/from-jobs", made)
    assert cli("compare", "jobs", "j3zrsbk1u2stm9").returncode == 0
    for args in (["show"], ["show", "@last"], ["export", "@last"], ["delete", "@last"]):
        shown = cli("compare", *args)
        assert shown.returncode == 0, shown.stderr
        assert "c1234567890abc (the last one from this folder)" in shown.stderr
    assert "comparison: required" in cli("compare", "delete").stderr


def test_a_comparison_is_exported(cli, server):
    server.on("GET", "/comparisons/c1234567890abc", comparison(machine_row("V100"), UNMEASURED, notes=["Be careful."]))
    rows = list(csv.DictReader(io.StringIO(cli("compare", "export", "c1234567890abc", "--format", "csv").stdout)))
    assert [row["machineType"] for row in rows] == ["V100", "CPU"]
    assert (rows[0]["secondsToTarget"], rows[0]["secondsToTargetLow"], rows[1]["final"]) == ("90.0", "80.0", "")
    assert [(row["onMetricTimeFront"], row["onMetricCostFront"]) for row in rows] == [("True", "False"), ("", "")]
    assert (rows[0]["dearerByLow"], rows[0]["slowerBy"], rows[1]["marks"]) == ("0.4", "", "simulated; 2 of 3 failed")
    assert json.loads(cli("compare", "export", "c1234567890abc", "--format", "json").stdout)["id"] == "c1234567890abc"
    lines = cli("compare", "export", "c1234567890abc").stdout.splitlines()
    assert "ACC\\|X" in lines[0]
    assert lines[1].count("---") == len(lines[0].replace("\\|", "").split("|")) - 2
    assert lines[-1] == "Be careful."
    assert "Pareto front of acc\\|x and time: V100 (0.95 in 20s)" in lines
    assert "Fastest: V100; T4, the next, takes 2 times as much." in lines


def test_comparisons_are_listed_renamed_and_deleted(cli, server):
    server.on("GET", "/comparisons", {"comparisons": [comparison(name="digits", ended=2)], "next": None})
    assert cli("compare", "list").stdout.splitlines()[1].split()[:3] == ["c1234567890abc", "digits", "2"]
    server.on("GET", "/comparisons", {"comparisons": [comparison()], "next": "c1234567890abc"})
    assert "only the newest 1; --limit N lists more" in cli("compare", "list").stderr
    server.on("PATCH", "/comparisons/c1234567890abc", {"id": "c1234567890abc", "name": "moons"})
    assert "c1234567890abc: moons" in cli("compare", "rename", "c1234567890abc", "moons").stderr
    server.on("DELETE", "/comparisons/c1234567890abc", {})
    assert cli("compare", "delete", "c1234567890abc").returncode == 0


def test_without_comparisons_a_command_is_named(cli, server):
    server.on("GET", "/comparisons", {"comparisons": [], "next": None})
    assert "compare create" in cli("compare", "list").stderr


EXPORTED = {"format": "gradient-jobs comparison", "sha256": "0" * 64}


def test_a_comparison_is_written_to_a_file_and_imported_elsewhere(cli, server):
    server.on("GET", "/comparisons/c1234567890abc/export", EXPORTED)
    written = cli("compare", "export", "c1234567890abc", "--to", "results/v100.json")
    assert (written.returncode, written.stdout) == (0, ""), written.stderr
    path = cli.folder / "results" / "v100.json"
    assert json.loads(path.read_text()) == EXPORTED
    assert "--to and --format" in cli("compare", "export", "c1", "--to", "x", "--format", "md").stderr
    assert "cannot write results" in cli("compare", "export", "c1234567890abc", "--to", "results").stderr
    server.on("POST", "/comparisons/import", comparison(machine_row("V100")))
    imported = cli("compare", "import", "results/v100.json")
    assert (imported.returncode, imported.stdout) == (0, "c1234567890abc\n"), imported.stderr
    (sent,) = server.requests_to("POST", "/comparisons/import")
    assert sent.body == path.read_bytes()


def test_what_cannot_be_imported_is_said(cli, server, protocol):
    assert "cannot read none.json: No such file" in cli("compare", "import", "none.json").stderr
    assert "Is a directory" in cli("compare", "import", ".").stderr
    (cli.folder / "large").write_bytes(b"{" * (1024**2 + 1))
    assert "larger than 1,048,576 bytes" in cli("compare", "import", "large").stderr
    (cli.folder / "damaged").write_bytes(b'{"format"')
    server.on("POST", "/comparisons/import", protocol.error(400, "The file is damaged"))
    refused = cli("compare", "import", "damaged")
    assert refused.returncode != 0
    assert "The file is damaged" in refused.stderr
    assert server.requests_to("POST", "/comparisons/import")[0].body == b'{"format"'


def test_imported_rows_stand_below_the_own_ones(cli, server):
    beside = machine_row("T4", labels=[], marks=["imported from https://other.example"])
    found = comparison(machine_row("V100"), sameProgram=[{"comparisonId": "c2", "rows": [beside]}])
    server.on("GET", "/comparisons/c1234567890abc", found)
    _, own, imported = cli("compare", "show", "c1234567890abc").stdout.splitlines()
    assert own.startswith("V100 ")
    assert "tied fastest" in own
    assert imported.startswith("T4 [1] ")
    assert "fastest" not in imported
    rows = csv.DictReader(io.StringIO(cli("compare", "export", "c1234567890abc", "--format", "csv").stdout))
    assert [row["marks"] for row in rows] == ["", "imported from https://other.example"]
