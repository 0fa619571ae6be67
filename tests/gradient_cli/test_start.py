import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradient_cli
from gradient_cli.main import COMMANDS, build_parser

pytestmark = pytest.mark.integration

SNAPSHOTS = Path(__file__).parent / "snapshots"
SLOW = {"http.client", "ssl", "socket", "tarfile", "pathspec", "pathlib", "dataclasses", "shutil", "urllib"}


READ_FIRST = ["", "jobs", "jobs create", "jobs run", "compare create", "notebooks run", "sweeps create"]
"""Commands whose help is recorded, so that a change is read as a person would."""


@pytest.mark.parametrize("path", READ_FIRST, ids=lambda path: path or "root")
def test_help_is_as_recorded(cli, path):
    shown = cli(*path.split(), "--help", env={"COLUMNS": "100"})
    file = SNAPSHOTS / f"{path.replace(' ', '-') or 'root'}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(shown.stdout)
    assert shown.returncode == 0
    assert shown.stdout == file.read_text(), "run with UPDATE_SNAPSHOTS=1 and review the change"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_explains_itself_and_its_options(cli, path):
    shown = cli(*path.split(), "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: gradient-cli {path}")
    parser = build_parser(path)
    for word in path.split():
        (group,) = (action for action in parser._actions if isinstance(action.choices, dict))
        parser = group.choices[word]
    assert parser.description
    assert [action.option_strings or action.dest for action in parser._actions if not action.help] == []


def test_help_loads_nothing_slow():
    program = (
        "import sys\nfrom gradient_cli.main import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('\\nLOADED', *sys.modules)"
    )
    # -S: the packages installed beside us load modules of their own at start.
    env = {"PYTHONPATH": str(Path(gradient_cli.__path__[0]).parent), "COLUMNS": "80"}
    shown = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env=env, check=True)
    loaded = set(shown.stdout.rpartition("LOADED")[2].split())
    assert "gradient_cli.main" in loaded
    assert not loaded & SLOW


def test_jobs_list_loads_nothing_that_it_does_not_use(cli, server):
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    program = "import sys\nfrom gradient_cli.main import main\nmain()\nprint('LOADED', *sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-S", "-c", program, "jobs", "list"],
        capture_output=True,
        text=True,
        check=True,
        env={**cli.env, "PYTHONPATH": str(Path(gradient_cli.__path__[0]).parent)},
    )
    assert not set(shown.stdout.split()) & {
        "tarfile",
        "pathspec",
        "gradient_cli.workspace.packing.archive",
        "gradient_cli.commands.jobs.create",
    }


@pytest.mark.parametrize("args", [[], ["jobs"], ["jobs", "artifacts"], ["projects"]])
def test_a_group_without_a_command_shows_its_commands(cli, args):
    shown = cli(*args)
    assert shown.returncode == 2
    assert "commands:" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("args", "help_of"),
    [
        (["jobs", "artifact"], "gradient-cli jobs"),
        (["jobs", "list", "--bogus"], "gradient-cli jobs list"),
        (["jobs", "list", "--limit", "many"], "gradient-cli jobs list"),
        (["nonsense"], "gradient-cli"),
    ],
)
def test_wrong_usage_names_the_help_to_read(cli, args, help_of):
    shown = cli(*args)
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: ")
    assert f"`{help_of} --help`" in shown.stderr


def test_the_server_may_be_named_before_or_after_the_command(cli, server):
    server.on("GET", "/projects", {"projects": []})
    elsewhere = {"GRADIENT_URL": "http://127.0.0.1:1", "GRADIENT_API_KEY": None}
    for args in (
        ["--url", server.url, "--apiKey", "k1", "projects", "list"],
        ["projects", "list", "--url", server.url, "--api-key", "k1"],
    ):
        assert cli(*args, env=elsewhere).returncode == 0
    assert [request.headers["x-api-key"] for request in server.requests] == ["k1", "k1"]


def test_version_of_the_server(cli, server):
    server.on("GET", "/health", {"status": "ok", "version": "9.8.7"})
    assert '"server": "9.8.7"' in cli("version", "--json").stdout
