"""`skill install`: write the agent skill of this client, as https://agentskills.io describes skills."""

from __future__ import annotations

import argparse
import os

from gradient_cli.commands.version import client_version
from gradient_cli.errors import ClientError
from gradient_cli.formatting import print_result
from gradient_cli.options import add_json

NAME = "gradient-jobs"
_FOLDERS = (".agents", "skills", NAME)
_HEAD = """\
---
name: gradient-jobs
description: Run machine-learning trainings on the machines of a Gradient Jobs server with gradient-cli, from a \
project folder: submit, follow, find out why a job waits or failed, fetch artifacts, sweep parameters, compare machine \
types. Use it for trainings that this machine should not or cannot run.
metadata:
  version: "{version}"
---

# Gradient Jobs

`gradient-cli` uploads the current folder and runs a command in it on another machine. Written for version {version}:
after an upgrade of the client, `gradient-cli skill install` refreshes this file. Only options in `--help` exist.

## Train

1. `gradient-cli whoami --json`: the server, and what the key may do. If it fails, ask the user to run
   `gradient-cli login`.
2. `gradient-cli machine-types --json`: names, hardware, price an hour, what is free.
3. `gradient-cli jobs check --machineType NAME --command 'python train.py' --timeLimit 2h --json`: price, start, upload,
   `findings` with remedies. Tell the user the price before you submit what costs money, and set `--timeLimit`.
4. The same with `jobs create` and `--detach`; keep `id`.
5. `gradient-cli jobs wait ID`: exits with the command's exit code. `gradient-cli jobs logs ID --tail 50`: the end of
   the log.
6. `gradient-cli jobs artifacts get ID`: what the command wrote to `$GRADIENT_ARTIFACTS_DIR`.

## Rules

- `--json` before parsing anything; errors then are `{{"error": {{"message", "hint", …}}}}`. `next` says what to run.
- A job that waits or failed says why in `message` of `gradient-cli jobs show ID --json`. Read it before you act, and
  mend the cause; the same job again fails again.
- Checkpoints go to `$GRADIENT_ARTIFACTS_DIR`; save one at SIGTERM, which comes before the time limit.
- Metrics: `import gradient_jobs; gradient_jobs.log(step=step, loss=loss)`.
- Stop what is no longer needed: `gradient-cli jobs stop ID`.

## Commands

"""


def add_install(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--global", dest="everywhere", action="store_true", help="for all folders: ~/.agents (default: this folder)"
    )
    add_json(parser)
    parser.set_defaults(run=install)


def install(args: argparse.Namespace) -> int:
    folder = os.path.join(os.path.expanduser("~") if args.everywhere else os.getcwd(), *_FOLDERS)
    path = os.path.join(folder, "SKILL.md")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(build_text())
    except OSError as error:
        raise ClientError(f"cannot write {path}: {error.strerror}") from None
    return print_result(args, {"path": path, "version": client_version()}, f"wrote {path}")


def build_text() -> str:
    from gradient_cli.main import COMMANDS

    rows = [f"- `gradient-cli {name}`: {summary}" for name, (where, summary) in COMMANDS.items() if where]
    return _HEAD.format(version=client_version()) + "\n".join(rows) + "\n"
