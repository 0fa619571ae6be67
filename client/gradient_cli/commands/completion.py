"""`completion`: print the script that completes command lines in a shell.

shtab makes the scripts from the parser when the client is developed (`tests/gradient_cli/test_completion.py`), so that
the client does not need it and a key press does not start Python.
"""

from __future__ import annotations

import os
import sys

from gradient_cli.errors import OK
from gradient_cli.options import add_positional

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse

SHELLS = ("bash", "zsh", "fish")
_FOLDER = os.path.join(os.path.dirname(__file__), os.pardir, "completions")
_USE = """\
Load it whenever a shell starts:
  bash  echo 'eval "$(gradient-cli completion bash)"' >> ~/.bashrc
  zsh   mkdir -p ~/.zfunc && gradient-cli completion zsh > ~/.zfunc/_gradient-cli, and in ~/.zshrc
        fpath+=(~/.zfunc); autoload -Uz compinit && compinit
  fish  gradient-cli completion fish > ~/.config/fish/completions/gradient-cli.fish
"""


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `completion`."""
    add_positional(parser, "shell", needed=True, choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.epilog = _USE
    parser.set_defaults(run=print_script)


def print_script(args: argparse.Namespace) -> int:
    """Print the script."""
    with open(os.path.join(_FOLDER, f"gradient-cli.{args.shell}"), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return OK
