"""Completion in shells."""

import subprocess

import pytest

from gradient_cli.commands.completion import SHELLS


@pytest.fixture
def script(cli):
    def write(shell):
        path = cli.folder / f"completion.{shell}"
        path.write_text(cli("completion", shell).stdout)
        return path

    return write


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
def test_bash_completes(cli, script, typed, expected):
    words = typed.split(" ")
    (cli.folder / "train.py").touch()
    program = f"""
        source {script("bash")}
        COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}"); COMP_CWORD={len(words) - 1}
        $(complete -p gradient-cli | sed -E 's/.*-F ([^ ]+).*/\\1/') gradient-cli "{words[-1]}" "{words[-2]}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    shown = subprocess.run(["bash", "-c", program], cwd=cli.folder, capture_output=True, text=True, check=True)
    assert expected <= set(shown.stdout.split())


def test_another_shell_is_refused(cli):
    refused = cli("completion", "tcsh")
    assert refused.returncode == 2
    assert "bash" in refused.stderr
