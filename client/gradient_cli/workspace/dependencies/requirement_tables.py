from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_CARET_OR_TILDE = re.compile(r"([\^~])\s*([0-9][0-9.]*)((?:[^\s0-9.]\S*)?)\Z")
_QUOTED = re.compile(r"""(?:"([^"]*)"|'([^']*)')\s*(?:#.*)?\Z""")
_INLINE = re.compile(r"(?m)^dependencies:\s*\[(.*)\]\s*$")


def lines_of(table: dict[str, Any], extras: tuple[str, ...] = (), offered: dict[str, Any] | None = None) -> list[str]:
    """Return the lines of a table of packages, as Poetry and Pipenv write it.

    `offered`: names of optional packages by extra; None: nothing is optional.
    """
    chosen = {str(name) for extra in extras for name in (offered or {}).get(extra) or ()}
    lines = []
    for name, wanted in table.items():
        for item in wanted if isinstance(wanted, list) else [wanted]:
            optional = isinstance(item, dict) and item.get("optional") and offered is not None
            if name != "python" and (not optional or name in chosen):
                lines.append(_line(name, item))
    return lines


def python_of(table: dict[str, Any]) -> str | None:
    """Return the versions of Python that Poetry's table asks for, as a version specifier."""
    wanted = table.get("python")
    return _specifier(wanted) or None if isinstance(wanted, str) else None


def _line(name: str, wanted: object) -> str:
    if not isinstance(wanted, dict):
        return f"{name}{_specifier(str(wanted))}"
    full = f"{name}[{','.join(map(str, wanted['extras']))}]" if wanted.get("extras") else name
    markers = [str(wanted["markers"])] if wanted.get("markers") else []
    if isinstance(wanted.get("python"), str):
        parts = re.findall(r"(?<![<>=!~])([<>=!~]+)\s*([0-9.*]+)", _specifier(wanted["python"]))
        markers += [f"python_full_version {sign} '{version}'" for sign, version in parts]
    if isinstance(wanted.get("platform"), str):
        markers.append(f"sys_platform == '{wanted['platform']}'")
    text = full + _source(wanted)
    return f"{text} ; {' and '.join(f'({marker})' for marker in markers)}" if markers else text


def _source(wanted: dict[str, Any]) -> str:
    if "git" in wanted:
        ref = next((f"@{wanted[key]}" for key in ("rev", "tag", "branch", "ref") if key in wanted), "")
        below = f"#subdirectory={wanted['subdirectory']}" if "subdirectory" in wanted else ""
        return f" @ git+{wanted['git']}{ref}{below}"
    location = next((str(wanted[key]) for key in ("path", "file", "url") if key in wanted), None)
    return _specifier(str(wanted.get("version", "*"))) if location is None else f" @ {location}"


def _specifier(wanted: str) -> str:
    """Return Poetry's constraint as pip writes it: `^1.2` as `>=1.2,<2`. Of alternatives (`||`) the last counts."""
    return ",".join(filter(None, map(_part, wanted.rpartition("||")[2].split(","))))


def _part(specifier: str) -> str:
    specifier = re.sub(r"([<>=!~^])\s+", r"\1", specifier.strip())
    match = None if specifier.startswith("~=") else _CARET_OR_TILDE.match(specifier)
    if match is None:
        return "" if specifier == "*" else specifier if specifier[:1] in "<>=!~" else f"=={specifier}"
    numbers = [int(number) for number in match[2].strip(".").split(".")]
    kept = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
    at = kept if match[1] == "^" else min(1, len(numbers) - 1)
    return f">={match[2]}{match[3]},<{'.'.join(map(str, [*numbers[:at], numbers[at] + 1]))}"


def split_conda(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of the pip part of an environment.yml, and its other dependencies."""
    if inline := _INLINE.search(text):
        return [], [item.strip(" \"'") for item in inline[1].split(",") if item.strip()]
    of_pip: list[str] = []
    others: list[str] = []
    indent = None  # of the word `pip:`
    for depth, value in _items(text):
        if indent is not None and depth > indent:
            of_pip.append(value)
            continue
        indent = depth if value == "pip:" else None
        if indent is None:
            others.append(value)
    return of_pip, others


def _items(text: str) -> Iterator[tuple[int, str]]:
    inside = False
    for line in text.splitlines():
        if re.match(r"[A-Za-z]", line):
            inside = line.startswith("dependencies:")
        elif inside and re.match(r"\s*-\s", line) and (value := _value_of(line.lstrip()[1:].strip())):
            yield len(line) - len(line.lstrip()), value


def _value_of(text: str) -> str:
    """Return a value of YAML without its quotation marks and its comment."""
    if match := _QUOTED.match(text):
        return match[1] or match[2] or ""
    return re.split(r"\s#", text, maxsplit=1)[0].rstrip()
