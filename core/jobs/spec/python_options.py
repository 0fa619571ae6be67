import re
from collections.abc import Sequence

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

_VERSION = re.compile(r"3\.[0-9]{1,2}(\.[0-9]{1,3})?\Z")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?\Z")
_MAX_LINES = 500
_MAX_LINE = 2000


def check_python(version: str | None) -> None:
    if version is not None and not _VERSION.match(version):
        raise SpecInvalid(f"{quoted(version)} is not a version of Python. Give it as 3.12 or 3.12.4.", field="python")


def check_requirements(packages: Sequence[str], file: str | None, extras: Sequence[str], groups: Sequence[str]) -> None:
    for line in packages:
        if not line.strip() or not line.isprintable() or len(line) > _MAX_LINE or line.lstrip().startswith("#"):
            raise SpecInvalid(
                f"{quoted(line)} is not a line of a requirements.txt. Give one such as numpy>=2.", field="packages"
            )
    if file is not None and (not file.isprintable() or not file or file.startswith("/") or ".." in file.split("/")):
        raise SpecInvalid(
            f"{quoted(file)} is not the path of a file in the workspace. Give it as requirements/gpu.txt.",
            field="requirementsFile",
        )
    for field, names in (("packages", packages), ("extras", extras), ("groups", groups)):
        if len(names) > _MAX_LINES:
            raise SpecInvalid(f"{len(names):,} {field}; at most {_MAX_LINES} are allowed.", field=field)
        wrong = next((name for name in names if field != "packages" and not _NAME.match(name)), None)
        if wrong is not None:
            raise SpecInvalid(f"{quoted(wrong)} is not the name of one of the {field}, such as dev.", field=field)
