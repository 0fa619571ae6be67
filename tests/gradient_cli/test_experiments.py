"""`experiments list`, `show` and `run`; tests/e2e/training/test_experiments.py runs them on a real service."""

import json
from pathlib import Path

import pytest

from gradient_cli.experiments import recipe as recipes
from gradient_trainer.cli import build_parser
from gradient_trainer.options import TrainOptions

NAMES = ["feeding-a-tpu", "gpu-vs-tpu", "managed-tpu", "mixed-precision", "steps-per-second"]
PACES = {"CPU": 2.0, "V100": 90.0, "TPU": 180.0}
SHARES = {"startup_share": 0.4, "communication_share": 0.02, "flops_share": 0.3, "bandwidth_share": 0.1}


def job(machine_type, **fields):
    made = {"id": f"j{machine_type.lower()}", "machineType": machine_type, "simulated": False, "command": "train"}
    return made | {"state": "Stopped", "finishedAt": "2026-01-01T00:00:00Z", "durationSeconds": 60.0, **fields}


def series(name, *values):
    points = [{"step": 10 * number, "time": "", "value": value} for number, value in enumerate(values)]
    return {"name": name, "source": "job", "points": points, "last": values[-1], "min": 0, "max": 0}


def answer(server, *jobs, paces=PACES, beside=False, shares=SHARES):
    """Answer the requests of a run with these jobs; `paces`: by job or machine type."""
    planned = [{"job": {}, "notes": []}] * len(jobs)
    server.on("POST", "/jobs", *planned, *jobs)
    members = [
        {"jobId": each["id"], "stepsPerSecond": paces.get(each["id"]) or paces[each["machineType"]], "beside": beside}
        | {"otherCpus": None}
        for each in jobs
    ]
    made = {"id": "c1", "url": "http://server/ui/comparisons/c1", "rows": [{"members": members}]}
    server.on("POST", "/comparisons/from-jobs", made)
    server.on("GET", "/comparisons/c1", made)
    for each in jobs:
        server.on("GET", f"/jobs/{each['id']}", each)
        metrics = [series("test_accuracy", 0.5), series("peak_host_bytes", 2e9), series("batch_size", 16)]
        metrics += [series("val_accuracy", "NaN"), series("examples_per_second", 7.0)]
        server.on("GET", f"/jobs/{each['id']}/metrics", {"series": metrics})
        figures = [{"name": name, "value": value, "text": ""} for name, value in shares.items()]
        server.on("GET", f"/jobs/{each['id']}/prediction", {"machines": [], "bottleneck": {"figures": figures}})


def run_experiment(cli, *options):
    return cli("experiments", "run", "steps-per-second", "--machineType", "CPU,V100", *options)


def test_real_machines_are_compared_with_the_published_ratio(cli, server):
    answer(server, job("CPU"), job("V100"), job("V100", id="jschedule"))
    done = run_experiment(cli, "--output", "out", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads((cli.folder / "out" / "figures.json").read_text())
    measured = {each["text"]: each["measured"] for each in figures["statements"]}
    assert measured["A V100 is about 50 times as fast as the CPU"] == {"V100 against CPU": 45.0}
    assert measured["A K80 is 8 to 9 times as fast as the CPU"] == {}
    markdown = (cli.folder / "out" / "report.md").read_text()
    assert "| A V100 is about 50 times as fast as the CPU | 50 x | 45 x (V100 against CPU) |" in markdown
    assert "| resnet32 | V100 | 1 of 1 | 90 | 1440 | 1m 00s | 50.00% | 40% | 2% | 30% | 10% | 2.0 GB |" in markdown
    assert "| Tesla V100 | about 50 | 3.06 $/h (AWS p3.2xlarge, Azure NC6s_v3) |" in markdown
    assert "simulated" not in markdown
    assert "Scale: scaled down: 12 steps of 16 images of CIFAR-10" in markdown
    assert "Scaled down, the jobs are too short to confirm or contradict the publication." in markdown


def test_what_was_not_measured_is_absent(cli, server):
    answer(server, job("CPU"), job("V100"), job("V100", id="jschedule"), shares={})
    assert run_experiment(cli, "--output", "out").returncode == 0
    (cell, *_) = json.loads((cli.folder / "out" / "figures.json").read_text())["measured"]
    assert cell["median"]["examples_per_second"] == cell["jobs"][0]["examples_per_second"] == 32.0
    assert {cell["median"][name] for name in (*SHARES, "val_accuracy", "input_wait_share", "other_cpus")} == {None}
    assert "starting up" not in (cli.folder / "out" / "report.md").read_text()


def test_a_time_is_compared_by_the_time_of_a_step(cli, server):
    levels = ["O0", "O1", "O2", "bfloat16", "O3", "batch-512-O0", "batch-512-O1", "batch-512-O2"]
    jobs = [job("CPU", id=f"j{name.lower()}", durationSeconds=60.0 + at) for at, name in enumerate(levels)]
    answer(server, *jobs, paces={"CPU": 96.0, "jo1": 6.0})
    done = cli("experiments", "run", "mixed-precision", "--machineType", "CPU", "--json")
    assert done.returncode == 0, done.stderr
    measured = {each["text"]: each["measured"] for each in json.loads(done.stdout)["statements"]}
    assert measured["O1 on a T4 takes 0.55 of the time of O0 (31:14 of 57:17); on a P100 1.01"] == {"CPU": 16.0}
    markdown = (cli.folder / "experiment-mixed-precision" / "report.md").read_text()
    assert "Measured ratios of times are of the time of one step" in markdown


@pytest.mark.parametrize("options", [[], ["--parallel"]])
def test_jobs_run_one_after_the_other_unless_in_parallel(cli, server, options):
    answer(server, job("CPU"), job("V100"), job("V100", id="jschedule"), beside=bool(options))
    assert run_experiment(cli, "--output", "out", *options).returncode == 0
    sent = [request.json.get("after") for request in server.requests_to("POST", "/jobs")]
    assert sent == [None] * 3 + ([None] * 3 if options else [None, ["jcpu:ended"], ["jv100:ended"]])
    measured = json.loads((cli.folder / "out" / "figures.json").read_text())["measured"]
    assert [run["beside"] for cell in measured for run in cell["jobs"]] == [bool(options)] * 3
    markdown = (cli.folder / "out" / "report.md").read_text()
    assert ("3 of 3 jobs ran side by side on one host" in markdown) is bool(options)


def test_a_folder_that_cannot_be_made_is_an_error_as_json_too(cli, server):
    server.on("GET", "/machine-types", {"machineTypes": []})
    (cli.folder / "file").touch()
    done = run_experiment(cli, "--output", "file/out", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["message"].endswith("file/out: Not a directory")


def test_simulated_machines_have_a_table_of_their_own_and_no_ratio(cli, server):
    answer(server, job("CPU"), job("V100", simulated=True), job("V100", id="jschedule", simulated=True))
    assert run_experiment(cli, "--full").returncode == 0
    markdown = (cli.folder / "experiment-steps-per-second" / "report.md").read_text()
    real, simulated = markdown.split("## Measured on simulated machines")
    assert "| resnet32 | CPU |" in real
    assert "V100 (simulated)" not in real
    assert "| resnet32 | V100 (simulated) |" in simulated
    assert "| 50 x | not measured on real machines |" in simulated
    assert "too short" not in markdown
    assert "Scale: full: 2,000 steps of 128 images of CIFAR-10; 100,000 in schedule" in markdown


def test_a_failed_job_is_reported_without_its_figures(cli, server):
    answer(server, job("CPU"), job("V100", state="Failed", message="exit code 1"), job("V100", id="jschedule"))
    done = run_experiment(cli)
    assert done.returncode == 1
    assert "gradient-cli jobs logs jv100" in done.stderr
    assert (
        "| resnet32 | V100 | 0 of 1 | not measured |"
        in (cli.folder / "experiment-steps-per-second" / "report.md").read_text()
    )


def test_repeats_are_submitted_with_their_seeds_and_other_data(cli, server):
    answer(server, job("CPU"), job("CPU", id="jcpu2"))
    words = ["--machineType", "CPU", "--repeats", "2", "--data", "cifar10=my photos.zip"]
    server.on("POST", "/jobs", {"job": {}, "notes": []}, job("CPU"), job("CPU", id="jcpu2"))
    assert cli("experiments", "run", "steps-per-second", *words).returncode == 0
    planned, *sent = [request.json for request in server.requests_to("POST", "/jobs")]
    assert [each["envVars"] for each in sent] == [{"SEED": "1"}, {"SEED": "2"}]
    assert "--data 'my photos.zip' --seed $SEED" in planned["command"] == sent[0]["command"]


def test_machine_types_of_the_publication_are_the_default(cli, server):
    types = [{"name": "CPU", "available": True}, {"name": "V100", "available": False}]
    server.on("GET", "/machine-types", {"machineTypes": types})
    refused = cli("experiments", "run", "managed-tpu")
    assert refused.returncode == 2
    assert "this server has none of TPU" in refused.stderr
    assert "--machineType with its machine types: CPU" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["mixed-precison"], "Did you mean mixed-precision?"),
        (["mixed-precision", "--repeats", "0"], "repeats: 0 must be at least 1"),
        (["mixed-precision", "--machineType", "CPU", "--repeats", "17"], "136 jobs exceed the limit of 100"),
        (["mixed-precision", "--data", "imagenet=x"], "Write NAME=OTHER with a NAME of cifar10, digits"),
        (["mixed-precision", "--machineType", "CPU,CPU"], "names a machine type twice"),
        (["mixed-precision", "--output", "old"], "old contains a report already"),
    ],
)
def test_a_wrong_request_submits_nothing(cli, server, options, message):
    (cli.folder / "old").mkdir()
    (cli.folder / "old" / "report.md").touch()
    refused = cli("experiments", "run", *options)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert server.requests == []
    assert [path.name for path in cli.folder.iterdir()] == ["old"]


def test_list_and_show_need_no_server(cli, server):
    listed = json.loads(cli("experiments", "list", "--json").stdout)["experiments"]
    assert [each["name"] for each in listed] == NAMES
    assert all(name in cli("experiments", "list").stdout for name in NAMES)
    shown = cli("experiments", "show", "mixed-precision").stdout
    assert "O0 fp32   T4      57:17    7657        86.75 %" in shown
    assert json.loads(cli("experiments", "show", "gpu-vs-tpu", "--json").stdout)["ratios"][0]["published"] == -0.002
    assert server.requests == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("full", [False, True])
def test_every_command_is_one_that_its_program_accepts(name, full):
    recipe = recipes.load(name)
    members = {member.name for member in recipe.members}
    for ratio in recipe.ratios:
        assert {ratio.of[0], ratio.over[0]} <= {None, *members}
    for member in recipe.members:
        command = recipe.command_of(member, {}, full=full)
        if recipe.workspace:
            assert command.startswith(("python main.py", "python -m gradient_trainer "))
            assert (Path(recipe.workspace) / "main.py").is_file()
        if "main.py" not in command:
            flags = command.replace("$SEED", "1").removeprefix("python -m gradient_trainer ").split()
            chosen = vars(build_parser().parse_args(flags))
            del chosen["list"], chosen["find_learning_rate"]
            TrainOptions(**chosen)


def test_some_members_run_on_a_few_machines_alone(cli, server):
    made = [job("CPU"), job("TPU", id="jall"), job("TPU", id="jschedule"), job("TPU", id="jone")]
    answer(server, *made)
    assert cli("experiments", "run", "steps-per-second", "--machineType", "CPU,TPU", "--full").returncode == 0
    sent = [request.json for request in server.requests_to("POST", "/jobs")][len(made) :]
    assert [(each["name"].split()[-1], each["machineType"]) for each in sent] == [
        *(("resnet32", "CPU"), ("resnet32", "TPU"), ("schedule", "TPU"), ("one-core", "TPU"))
    ]
    _, whole, schedule, one_core = [each["command"] for each in sent]
    assert one_core == f"{whole} --devices 1"
    assert "--milestones 40%,60%,80% --batch-size 128 --steps 100000" in schedule
    markdown = (cli.folder / "experiment-steps-per-second" / "report.md").read_text()
    assert "| A TPU v2 replica, as one core, is about 2 times as fast as the V100 | 2 x | not measured" in markdown
