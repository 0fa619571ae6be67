"""Variables of a job that decide from where its requirements are installed, and passwords in addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_USED = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_\w+_(USERNAME|PASSWORD)|FIND_LINKS|NO_INDEX|INSECURE_HOST|HTTP_TIMEOUT|PRERELEASE"
    r"|RESOLUTION|EXCLUDE_NEWER|TORCH_BACKEND|EXTRA_INDEX_URL)\Z|NETRC\Z"
)
_OF_PIP = {
    "UV_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
}
_OTHERS = re.compile(r"(PIP|UV)_\w+\Z")
# They change how, and not what is installed, or what the command itself does.
_HARMLESS = re.compile(
    r"\w+_(\w*CACHE\w*|\w*PROGRESS\w*|\w*COLOR|DISABLE_PIP_VERSION_CHECK|NO_INPUT|ROOT_USER_ACTION|BREAK_SYSTEM_PACKAGES"
    r"|COMPILE\w*|QUIET|VERBOSE|\w*TIMEOUT|\w*RETRIES|CONCURRENT\w*|SYSTEM_PYTHON|PROJECT_ENVIRONMENT|NO_SYNC|LOCKED"
    r"|FROZEN|PYTHON_DOWNLOADS|PYTHON_INSTALL_DIR|LINK_MODE|TOOL\w*|NO_WARN\w*|DEFAULT_TIMEOUT)\Z"
)
_REFERENCE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_PASSWORD = re.compile(r"(\w://[^\s/:@]*:)(?!\$\{)[^\s/@]+@")
_TOKEN = re.compile(r"(https?://)(?!\$\{)[^\s/:@]{12,}@")


def used_names(texts: Iterable[str], offered: Iterable[str]) -> list[str]:
    """Return the names, of those of a job's variables, that the installation of requirements uses."""
    named = {name for text in texts for name in _REFERENCE.findall(text)}
    return sorted(name for name in offered if name in named or _USED.match(name) or name in _OF_PIP)


def unused_names(used: Iterable[str], offered: Iterable[str]) -> list[str]:
    """Return the names of variables for pip or uv that it does not use, although they may change what is installed."""
    left = set(offered).difference(used)
    return sorted(name for name in left if _OTHERS.match(name) and not _HARMLESS.match(name))


def fill_in(text: str, variables: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]), text)


def for_uv(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables by the names that uv knows."""
    renamed = {_OF_PIP.get(name, name): value for name, value in variables.items()}
    if "PIP_FIND_LINKS" in variables:
        renamed["UV_FIND_LINKS"] = ",".join(variables["PIP_FIND_LINKS"].split())
    return renamed


def hide_passwords(text: str) -> str:
    """Return a text without the passwords of its addresses."""
    return _TOKEN.sub(r"\1****@", _PASSWORD.sub(r"\1****@", text))
