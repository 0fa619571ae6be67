"""The packages that jobs without a container have by default, in the versions of `default_packages.txt`."""

import re
from functools import cache
from pathlib import Path

DEFAULT = Path(__file__).with_name("default_packages.txt")
"""Requirements with digests, as `.ci/lock-default` writes them."""
TRAINER = DEFAULT.with_name("trainer_packages.txt")  # these and those of the trainer
_PINNED = re.compile(r"(?m)^([a-z0-9-]+)==([^ ;\\]+)")


@cache
def locked_versions() -> dict[str, str]:
    """Return the version of each distribution; of one that is locked for several Pythons, the last."""
    return dict(sorted(pin for file in (DEFAULT, TRAINER) for pin in _PINNED.findall(file.read_text(encoding="utf-8"))))
