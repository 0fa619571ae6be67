from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, HttpUrl, ValidationError, ValidationInfo, field_validator

_LARGEST, _MOST_BYTES = 2**31 - 1, 2**53  # columns of PostgreSQL and clocks take no more


class SettingsGroup(BaseModel):
    """A group of settings. It refuses a name that it does not have, so that a misspelt variable is an error."""

    model_config = ConfigDict(extra="forbid")
    shared: ClassVar[tuple[str, ...]] = ()  # limits of which each of several API processes enforces its share

    @field_validator("*")
    @classmethod
    def _is_usable(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - of each field's type
        _check(value, _MOST_BYTES if "bytes" in (info.field_name or "") else _LARGEST)
        return value

    def share(self, processes: int) -> Self:
        return self.model_copy(update={name: -(-getattr(self, name) // processes) for name in self.shared})


def _check(value: object, most: int) -> None:
    if isinstance(value, str | Path) and not str(value).isprintable():
        raise ValueError("It has a line break or another unprintable character, or is not UTF-8.")
    if isinstance(value, int | float) and not 0 <= value <= most:
        raise ValueError(f"It is not a number from 0 to {most}.")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for item in value if isinstance(value, list) else ():
        _check(item, most)


def require_host_and_port(url: str) -> None:
    """Raise `ValueError`, without a part of a URL, which may be of its password, if it cannot be taken apart."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValueError(
            "Its host or port cannot be read. In a password, write : as %3A, / as %2F, ? as %3F, # as %23, @ as %40, "
            "[ as %5B and ] as %5D."
        ) from None


def _normalize(url: str) -> str:
    try:
        parsed = HttpUrl(url)
    except ValidationError as error:
        raise ValueError("It is not a URL such as https://jobs.example.org.") from error
    if (parsed.path or "/").strip("/") or parsed.query is not None or parsed.fragment is not None:
        raise ValueError(
            "It has a path, but the dashboard needs a separate host name or port, such as "
            "https://jobs.example.org; have the proxy forward all its paths."
        )
    return str(parsed).rstrip("/")


PublicUrl = Annotated[str, AfterValidator(_normalize)]
"""A URL as browsers send it: host name in lower case, and without the scheme's own port or a trailing slash."""
