"""The command line: every field of TrainOptions is a flag."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields

from .api import find_learning_rate, run
from .errors import TrainerError
from .options import TrainOptions
from .registry import DATASETS, MODELS, Registry

GROUPS = {"what": "what to train", "how": "how to train", "where": "where to read and write"}
PARSERS: dict[object, type] = {int: int, int | None: int, float: float, float | None: float}

EXAMPLES = """\
examples:
  python -m gradient_trainer
  python -m gradient_trainer --data mnist --epochs 2 --batch-size 128 --seed 1
  python -m gradient_trainer --model my_model.py --data digits --output outputs
  python -m gradient_trainer --model davidnet-cifar10 --data cifar10 --precision auto
  python -m gradient_trainer --model resnet32-cifar10 --data photos.zip --find-learning-rate

A training that was stopped or lost goes on from its last checkpoint when the same command
is given again. On SIGTERM it finishes its step, saves, and exits with 143.
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks, and gives flags enough room to stay on one line with their help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, 1 (failed) or 2 (cannot be carried out)."""
    parser = build_parser()
    chosen = vars(parser.parse_args(arguments))
    if chosen.pop("list"):
        print(f"{_format_list('models', MODELS)}\n\n{_format_list('data sets', DATASETS)}")
        return 0
    command = find_learning_rate if chosen.pop("find_learning_rate") else run
    try:
        command(TrainOptions(**chosen))
    except TrainerError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        # A full disk, for example; the system's message names the file.
        return _fail(str(error), TrainerError.exit_code)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Build the parser, whose results are the fields of TrainOptions, `list` and `find_learning_rate`."""
    parser = argparse.ArgumentParser(
        prog="python -m gradient_trainer",
        usage="%(prog)s [--model NAME] [--data NAME] [flags]",
        description="Train an image classifier with Keras.",
        epilog=f"{_format_list('models', MODELS)}\n\n{_format_list('data sets', DATASETS)}\n\n{EXAMPLES}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="list models and data sets, and exit")
    parser.add_argument(
        "--find-learning-rate",
        action="store_true",
        help="instead of training, try rising learning rates on one device, and suggest one",
    )
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for field in fields(TrainOptions):
        group = groups[field.metadata["group"]]
        flag = f"--{field.name.replace('_', '-')}"
        default = None if field.default is MISSING else field.default
        meaning = field.metadata["help"]
        if default is False:
            group.add_argument(flag, action="store_true", help=meaning)
        elif default is True:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=True, help=f"{meaning} (on)")
        else:
            shown = meaning if default is None else f"{meaning} ({default})"
            kind = PARSERS.get(field.type, str)
            group.add_argument(flag, metavar=field.metadata["metavar"], type=kind, default=default, help=shown)
    return parser


def _format_list(title: str, registry: Registry) -> str:
    rows = registry.summaries()
    width = max(map(len, rows))
    return "\n".join([f"{title}:", *(f"  {name:<{width}}  {summary}" for name, summary in rows.items())])


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code
