"""Lock files: the versions in those of Poetry, PDM and Pipenv, and whether a uv.lock is that of its project."""

from __future__ import annotations

import json
import re
from typing import Any

from gradient_cli.text import parse_toml
from gradient_cli.workspace.dependencies.imports import normal_name

_FIELD = re.compile(r'(?m)^(name|version|markers) = (".*")$')
_ELSEWHERE = re.compile(r'(?m)^\[package\.source\]\ntype = "(?!legacy)|^(git|path|url) = ')
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*([^;@]*)")


def read_pins(text: str) -> tuple[str, ...]:
    """Return the versions that a lock file of Poetry or PDM names, as constraints.

    Left out are packages that come from no index, and of several versions of one those that have no markers.
    """
    versions_of: dict[str, list[tuple[str, str]]] = {}
    for chunk in text.split("[[package]]")[1:]:
        fields = dict(_FIELD.findall(chunk))
        if {"name", "version"} <= set(fields) and not _ELSEWHERE.search(chunk):
            markers = json.loads(fields["markers"]) if "markers" in fields else ""
            versions_of.setdefault(json.loads(fields["name"]), []).append((json.loads(fields["version"]), markers))
    return tuple(
        f"{name}=={version}" + (f" ; {markers}" if markers else "")
        for name, versions in versions_of.items()
        for version, markers in versions
        if len(versions) == 1 or markers
    )


def read_pipfile_pins(text: str) -> tuple[str, ...]:
    """Return the versions that a Pipfile.lock names, as constraints; none if it is not one."""
    try:
        sections = [json.loads(text)[name] for name in ("default", "develop")]
        entries = {name: entry for section in reversed(sections) for name, entry in section.items()}
        return tuple(f"{name}{entry['version']}" for name, entry in entries.items() if "version" in entry)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def locks_folder(lock: str, path: str) -> bool:
    """Return whether a uv.lock has the project at a path, relative to it."""
    return _chunk_of(lock, path) is not None


def changed_since(lock: str, path: str, lines: tuple[str, ...]) -> list[str]:
    """Return the requirements of a project that its uv.lock does not have, as far as this is certain."""
    chunk = _chunk_of(lock, path)
    if chunk is None:
        return []
    try:
        metadata: dict[str, Any] = parse_toml(chunk).get("package", {}).get("metadata", {})
    except ValueError:
        return []
    locked: dict[str, list[frozenset[str] | None]] = {}
    for entry in metadata.get("requires-dist", []):
        elsewhere = set(entry) - {"name", "extras", "marker", "specifier"}
        specifier = None if elsewhere else _parts(entry.get("specifier", ""))
        locked.setdefault(normal_name(entry["name"]), []).append(specifier)
    changed = []
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        versions = locked.get(normal_name(match[1]))
        if versions is None or not (None in versions or "@" in line or _parts(match[2]) in versions):
            changed.append(line)
    return changed


def _chunk_of(lock: str, path: str) -> str | None:
    source = re.compile(rf'(?m)^source = {{ (?:editable|virtual) = "{re.escape(path)}" }}$')
    return next((chunk for chunk in lock.split("[[package]]")[1:] if source.search(chunk)), None)


def _parts(specifier: str) -> frozenset[str]:
    return frozenset(re.sub(r"[\s()]", "", specifier).split(","))
