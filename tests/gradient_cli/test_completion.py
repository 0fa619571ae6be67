"""Completion in shells: the scripts are those that shtab makes of the parser, and shells complete with them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import shtab

import gradient_cli
from gradient_cli.commands.completion import SHELLS
from gradient_cli.main import build_parser

FOLDER = Path(gradient_cli.__path__[0]) / "completions"
FILES = {"file", "envFile", "workspace", "relDockerfilePath"}


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                yield from parsers(child)


@pytest.fixture(scope="module")
def parser():
    root = build_parser()
    for one in parsers(root):
        for action in one._actions:
            if action.dest in FILES | {"to"}:
                action.complete = shtab.FILE if action.dest in FILES else shtab.DIRECTORY
    return root


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_made_of_the_parser(cli, parser, shell):
    made = shtab.complete(parser, shell)
    made = "".join(f"{line.rstrip()}\n" for line in made.splitlines())
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (FOLDER / f"gradient-cli.{shell}").write_text(made)
    assert cli("completion", shell).stdout == made, "run with UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gradient-cli jo", {"jobs"}),
        ("gradient-cli jobs cl", {"clone"}),
        ("gradient-cli jobs create --machineT", {"--machineType"}),
        ("gradient-cli jobs artifacts ", {"list", "get"}),
        ("gradient-cli completion ", set(SHELLS)),
        ("gradient-cli jobs run tra", {"train.py"}),
    ],
)
def test_bash_completes(cli, typed, expected):
    words = typed.split(" ")
    (cli.folder / "train.py").touch()
    program = f"""
        source {FOLDER / "gradient-cli.bash"}
        COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}"); COMP_CWORD={len(words) - 1}
        $(complete -p gradient-cli | sed -E 's/.*-F ([^ ]+).*/\\1/') gradient-cli "{words[-1]}" "{words[-2]}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    shown = subprocess.run(["bash", "-c", program], cwd=cli.folder, capture_output=True, text=True, check=True)
    assert expected <= set(shown.stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n", FOLDER / f"gradient-cli.{shell}"], check=True)


def test_another_shell_is_refused(cli):
    refused = cli("completion", "tcsh")
    assert refused.returncode == 2
    assert "bash" in refused.stderr
