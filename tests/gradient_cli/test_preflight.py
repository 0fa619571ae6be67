"""`jobs check` and `jobs create --dry-run`: what would go wrong with a job, and nothing that would not."""

import json

import pytest

TOKEN = "hf_" + "aB3dE5fG7h" * 4
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 2
PLAN = {
    "job": {"backend": "process", "image": None, "envVars": {}},
    "machineType": {"name": "CPU"},
    "defaultPackages": [],
    "maxWorkspaceFiles": 1000,
    "wouldStart": "would start at once",
}


@pytest.fixture
def check(cli, server):
    """Check a command in a folder with these files; returns the findings, by severity and message."""

    def run(command, *options, code, plan=PLAN, **files):
        for name, text in {"train.py": "import json\n", **files}.items():
            path = cli.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        server.on("POST", "/jobs", plan)
        checked = cli("jobs", "check", "-m", "CPU", "--command", command, *options, "--json")
        assert checked.returncode == code, checked.stdout + checked.stderr
        assert TOKEN not in checked.stdout + checked.stderr
        assert cli("jobs", "check", "-m", "CPU", "--command", command, *options).returncode == code
        assert all(request.query["dryRun"] == "true" for request in server.requests_to("POST", "/jobs"))
        return [(finding["severity"], finding["message"], finding["remedy"]) for finding in found(checked)]

    return run


def found(shown):
    return json.loads(shown.stdout)["findings"]


@pytest.mark.parametrize(
    ("command", "files", "severity", "message", "remedy"),
    [
        ("python trian.py", {}, "error", "trian.py is not in the folder", "--workspace"),
        (
            "python train.py",
            {"train.py": "import numpyro\n", "requirements.txt": "torch\n"},
            "error",
            "numpyro",
            "--with",
        ),
        (
            "cd src && python -u main.py",
            {"lib/main.py": ""},
            "error",
            "src/main.py is not in",
            "did you mean lib/main.py?",
        ),
        ("pip install x; torchrun --nproc 2 go.py", {}, "error", "go.py is not in the folder", "--workspace"),
        ("./run.sh --fast", {}, "error", "run.sh is not in the folder", "--workspace"),
        ("python -c print(1)", {}, "error", "a shell refuses the command (line 1: syntax error", "single quotes"),
        ("python train.py --lr= --epochs 3", {}, "warning", "--lr= has no value", "single quotes"),
        ("python train.py", {"a/b.py": f"#\nx = '{TOKEN}'\n"}, "warning", "a/b.py, line 2, would be", "secrets set"),
        (
            "python train.py",
            {"a.txt": KEY},
            "warning",
            "a.txt, line 1, would be uploaded, and has a private",
            "secrets",
        ),
        (f"T={TOKEN} python train.py", {}, "warning", "the command, which has a token of Hugging Face", "secret:NAME"),
        ("python data.bin", {"data.bin": "x", ".gitignore": "*.bin"}, "error", "data.bin is excluded", "--include"),
    ],
)
def test_what_would_go_wrong_is_told_with_its_remedy(check, cli, command, files, severity, message, remedy):
    if ".gitignore" in files:
        (cli.folder / ".git").mkdir()
    [finding] = check(command, code=1, **files)
    assert finding[0] == severity
    assert message in finding[1]
    assert remedy in finding[2]


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --name='' --lr=0.1",
        "git clone https://x/y && python y/main.py",
        "curl -o main.py https://x && python main.py",
        "python main.py || python train.py",
        "python /storage/main.py",
        "python $SCRIPT.py && python ${A}b.py",
        "bash -c 'python main.py'",
        "python -m pytest.main",
        "cat > main.py <<'EOF'\nprint('it''s')\nEOF\npython main.py",
        "echo 'it is' # don't\npython train.py",
        "for i in 1 2; do python train.py --seed $i; done",
        "python data/main.py",
    ],
)
def test_what_is_right_gives_no_finding(check, command):
    names = {"hf_a_function_with_a_long_name_in_2_parts": 1, "key": "AKIAIOSFODNN7EXAMPLE", "sk": "sk-" + "a" * 60}
    lines = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    assert check(command, "--input", "j1:data", code=0, **{"a.py": lines, "b.bin": f"\0{TOKEN}"}) == []


def test_a_container_brings_its_own_modules(check):
    plan = {**PLAN, "job": {**PLAN["job"], "image": "tf:2"}}
    assert (
        check("python train.py", code=0, plan=plan, **{"train.py": "import torch", "requirements.txt": "numpy"}) == []
    )


def test_variables_and_the_start_are_looked_at_and_large_folders_are_named(check, cli):
    (cli.folder / "data" / "a").mkdir(parents=True)
    with (cli.folder / "data" / "a" / "x.npy").open("wb") as file:
        file.truncate(120_000_000)
    plan = {**PLAN, "wouldStart": "cannot start: no worker offers it", "job": {**PLAN["job"], "envVars": {"T": TOKEN}}}
    findings = check("python train.py", "-e", f"T={TOKEN}", "--largeWorkspace", "1e6", code=1, plan=plan)
    assert [finding[:2] for finding in findings] == [
        ("warning", "whoever sees the job sees the variable T, which has a token of Hugging Face, hf_…"),
        ("warning", "it cannot start: no worker offers it"),
        ("info", "the folder has 120.0 MB (data/a 120.0 MB, train.py 12 B)"),
    ]


def test_what_is_found_in_several_lines_is_never_printed(check, cli):
    key = f"{KEY}\n{'oDKzV9cXb1R4' * 5}\n-----END PRIVATE KEY-----"
    job = {**PLAN["job"], "command": f"echo\n{TOKEN}\necho '{key}'", "envVars": {"K": key}}
    check(job["command"], "-e", f"K={key}", code=1, plan={**PLAN, "job": job})
    for options in ([], ["--json"]):
        shown = cli("jobs", "check", "-m", "CPU", "--command", job["command"], "-e", f"K={key}", *options).stdout
        assert "-----BEGIN PRIVATE KEY-----…" in json.dumps(shown, ensure_ascii=False)
        assert not [line for line in key.splitlines()[1:-1] if line in shown]


def test_a_refusal_is_a_finding_of_a_check_and_an_error_of_a_dry_run(cli, server, protocol):
    refusal = "The job can cost $7.60: the budget has $1.00 left and it resets at 2026-12-01."
    server.on("POST", "/jobs", protocol.error(402, refusal, name="BudgetSpent"))
    options = ("-m", "CPU", "--workspace", "none", "--command", "true", "--json")
    [finding] = found(checked := cli("jobs", "check", *options))
    assert (finding["severity"], finding["message"], checked.returncode) == ("error", refusal[:-1], 1)
    dry = cli("jobs", "create", *options, "--dry-run")
    assert (dry.returncode, json.loads(dry.stdout)["next"]) == (4, ["gradient-cli whoami"])
    server.on("POST", "/jobs", protocol.error(401, "unknown key"))
    assert cli("jobs", "check", *options).returncode == 3


def test_next_names_what_makes_sense(cli, server, protocol):
    def steps(*arguments):
        return [step.removeprefix("gradient-cli ") for step in json.loads(cli(*arguments, "--json").stdout)["next"]]

    job = f"/jobs/{protocol.id}"
    server.on("GET", job, protocol.job(state="Failed", exitCode=1, finishedAt="2026-01-01T00:00:00Z"))
    of_job = [f"jobs {verb} {protocol.id}" for verb in ("why", "logs", "artifacts list", "clone")]
    assert steps("jobs", "show", protocol.id) == of_job
    shown = cli("jobs", "show", protocol.id).stderr
    assert all(f"  gradient-cli {step}\n" in shown + "\n" for step in of_job)
    clone = {"option": "memoryMb", "value": 4096}
    server.on("GET", f"{job}/why", {"id": protocol.id, "reason": "memory", "clone": clone})
    assert steps("jobs", "why", protocol.id) == [f"jobs clone {protocol.id} --memoryMb 4096"]
    server.on("GET", "/projects", {"projects": [{"id": "pr1", "name": "a"}]})
    assert steps("projects", "list") == ["projects show pr1"]
    server.on("DELETE", job, protocol.Reply(status=204))
    assert steps("jobs", "delete", protocol.id) == ["jobs list"]


@pytest.mark.parametrize(
    ("state", "code", "severity"),
    [("found", 0, None), ("missing", 1, "warning"), ("login", 1, "warning"), ("unknown", 0, "info")],
)
def test_what_the_registry_says_of_the_image_is_told(check, cli, state, code, severity):
    image = {"state": state, "message": "It says so.", "remedy": "Do that.", "digest": "sha256:1" * (state == "found")}
    findings = check("python train.py", code=code, plan={**PLAN, "imageCheck": image})
    assert findings == ([] if severity is None else [(severity, "It says so", "Do that.")])
    shown = cli("jobs", "check", "-m", "CPU", "--command", "python train.py").stdout
    assert ("registry" in shown) == (state == "found")
