from __future__ import annotations

import re

from gradient_cli.errors import UsageError


def parse_array(name: str, value: object, *, reads_files: bool = True) -> str:
    text = str(value)
    path, percent, limit = text.partition("%")
    if "," in path or "\n" in path or re.fullmatch("[0-9]+-[0-9]+", path):
        return text
    if not reads_files:
        raise UsageError(f"{name}: {path!r} is neither a range nor a list.", hint="Write 0-99 or a,b,c.")
    try:
        with open(path, encoding="utf-8") as file:
            return "\n".join(file.read().splitlines()) + "\n" + percent + limit
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{name}: {path!r} is not a range, a list or a readable file: {error}",
            hint=f"Write --{name} 0-99, a,b,c or a file with one value per line; append %8 to run at most 8 at once.",
        ) from None


NODES = (
    "N",
    "start the command N times together, with $RANK, $WORLD_SIZE, $MASTER_ADDR, $MASTER_PORT and $TF_CONFIG",
)
OPTION = (
    parse_array,
    "0-99|A,B,...|FILE",
    "submit one job per value: $GRADIENT_ARRAY_INDEX, $GRADIENT_ARRAY_VALUE; append %%8 to run at most 8 at once",
)
