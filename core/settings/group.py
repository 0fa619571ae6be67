"""The base of all groups of settings, and a type that several have."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, HttpUrl, ValidationError


class SettingsGroup(BaseModel):
    """A group of settings. It refuses a name that it does not have, so that a misspelt variable is an error."""

    model_config = ConfigDict(extra="forbid")


def _normalize(url: str) -> str:
    try:
        return str(HttpUrl(url)).rstrip("/")
    except ValidationError as error:
        raise ValueError(f"{url!r} is not a URL such as https://jobs.example.org") from error


PublicUrl = Annotated[str, AfterValidator(_normalize)]
"""A URL as browsers send it: host name in lower case, and without the scheme's own port or a trailing slash."""
