"""The client's stored state: the server's address, the API key, and the last job of each folder."""

from __future__ import annotations

import json
import os
from typing import Any

from gradient_cli.errors import UNREACHABLE, ClientError, UsageError
from gradient_cli.text import decode

_MAX_FOLDERS = 200


class Settings:
    """The server's address, what named it (a flag, a variable or a file), and the API key (empty: none)."""

    __slots__ = ("key", "source", "url")

    def __init__(self, url: str, key: str, source: str = "url") -> None:
        self.url = url.rstrip("/")
        self.key = key
        self.source = source


def config_dir() -> str:
    """Return the client's own folder, by default `~/.config/gradient`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gradient")


def login_file() -> str:
    return os.path.join(config_dir(), "config.json")


def server_file() -> str:
    """Return the path of the file that a server on this machine writes for local clients."""
    home = os.environ.get("GRADIENT_HOME") or os.path.join(os.path.expanduser("~"), ".gradient-jobs")
    return os.path.join(home, "cli.json")


def resolve(url: str | None, key: str | None) -> Settings:
    """Return the server and key to use: flags, then environment, then `login`, then a server on this machine.

    GRADIENT_HOME names a server on this machine, and so is part of the environment. A key saved with one address is
    never sent to another.
    """
    source = "--url" if url else "GRADIENT_URL"
    key_source = "--apiKey" if key else "GRADIENT_API_KEY"
    url = url or os.environ.get("GRADIENT_URL") or ""
    key = strip_key(key or os.environ.get("GRADIENT_API_KEY") or "", key_source)
    if url and key:
        return Settings(url, key, source)
    for path in _saved_files():
        saved = read_json(path)
        saved_url = _text(path, saved, "url").rstrip("/")
        if saved_url and url.rstrip("/") in {"", saved_url}:
            return Settings(saved_url, key or strip_key(_text(path, saved, "apiKey"), path), source if url else path)
    if url:
        return Settings(url, key, source)
    raise ClientError(
        "no server is configured",
        hint="Start one on this machine with `gradient-server up`, or log in to one: "
        "`gradient-cli login --url https://… --apiKey …` (or GRADIENT_URL and GRADIENT_API_KEY).",
        code=UNREACHABLE,
    )


def _text(path: str, saved: dict[str, Any], name: str) -> str:
    value = saved.get(name) or ""
    if not isinstance(value, str):
        raise UsageError(f"{path}: {name} is not text", hint="Delete the file, and log in again.")
    return value


def _saved_files() -> list[str]:
    """Return the files with an address and a key, the one to use first."""
    files = [login_file(), server_file()]
    # Others may have the variable for a server that is not theirs.
    named = "GRADIENT_HOME" in os.environ and os.access(files[1], os.R_OK)
    return files[::-1] if named else files


def explain_missing_key(url: str) -> str:
    """Return where a key for this address was looked for, and what was found there instead."""
    problems = []
    for path in _saved_files():
        try:
            saved_url = str(read_json(path).get("url") or "").rstrip("/")
        except ClientError as error:
            problems.append(str(error))
            continue
        if not saved_url:
            problems.append(f"{path} does not exist")
        elif saved_url == url:
            problems.append(f"{path} has this address but no key")
        else:
            problems.append(f"{path} has a key for {saved_url}")
    return f"GRADIENT_API_KEY is not set; {'; '.join(problems)}."


def strip_key(key: str, source: str = "apiKey") -> str:
    """Strip the white space that copying adds to a key, which `source` named."""
    key = key.strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            f"{source}: contains characters that are not allowed in a key",
            hint="Copy the key again, without quotes or line breaks.",
        )
    return key


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON object from a file; a missing file reads as an empty object."""
    try:
        with open(path, "rb") as file:
            value = json.loads(decode(file.read()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid JSON"
        if isinstance(error, json.JSONDecodeError):
            reason = f"not valid JSON: {error}"
        raise UsageError(
            f"cannot read {path}: {reason}", hint="Fix its permissions or contents, or delete it."
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"cannot read {path}: not a JSON object", hint="Delete it and log in again.")
    return value


def write_json(path: str, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON object atomically to a file that only this user may read."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=indent))
            file.write("\n")
        os.replace(part, path)
    except OSError:
        if os.path.lexists(part):
            os.unlink(part)
        raise


def remember(noun: str, folder: str, url: str, made: str) -> None:
    """Store the id of what was made last in a folder: of `noun`, such as jobs."""
    path = _last_path(noun)
    try:
        folders = read_json(path)
    except ClientError:  # a damaged file is replaced: it only saves typing
        folders = {}
    folders.pop(folder, None)
    folders[folder] = {"id": made, "url": url}
    write_json(path, dict(list(folders.items())[-_MAX_FOLDERS:]))


def last(noun: str, folder: str, url: str) -> str | None:
    """Return the id of what was made last in a folder on this server, if one is stored."""
    entry = read_json(_last_path(noun)).get(folder)
    if not isinstance(entry, dict) or entry.get("url") != url:
        return None
    return str(entry["id"]) if entry.get("id") else None


def _last_path(noun: str) -> str:
    return os.path.join(config_dir(), f"last-{noun}.json")
