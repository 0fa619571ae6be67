"""`completion`: print the script that completes command lines in a shell.

shtab makes it of the parser, so it always has the commands of this client; a key press does not start Python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from gradient_cli.errors import OK
from gradient_cli.options import add_positional

SHELLS = ("bash", "zsh", "fish")
_FILES = {"file", "from_file", "envFile", "workspace", "relDockerfilePath"}
_FOLDERS = {"to", "output"}
_USE = """\
Load it whenever a shell starts:
  bash  echo 'eval "$(gradient-cli completion bash)"' >> ~/.bashrc
  zsh   mkdir -p ~/.zfunc && gradient-cli completion zsh > ~/.zfunc/_gradient-cli, and in ~/.zshrc
        fpath+=(~/.zfunc); autoload -Uz compinit && compinit
  fish  gradient-cli completion fish > ~/.config/fish/completions/gradient-cli.fish
"""


def add_completion(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "shell", needed=True, choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.epilog = _USE
    parser.set_defaults(run=print_script)


def print_script(args: argparse.Namespace) -> int:
    import shtab

    from gradient_cli.main import build_parser

    root = build_parser()
    for action in _all_actions(root):
        if action.dest in _FILES | _FOLDERS:
            action.complete = shtab.FILE if action.dest in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads it
    sys.stdout.write(f"{shtab.complete(root, args.shell)}\n")
    return OK


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        yield action
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                yield from _all_actions(child)
