from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, HttpUrl, ValidationError


class SettingsGroup(BaseModel):
    """A group of settings. It refuses a name that it does not have, so that a misspelt variable is an error.

    A field without a description is a constant, which only tests shorten.
    """

    model_config = ConfigDict(extra="forbid")
    shared: ClassVar[tuple[str, ...]] = ()  # limits of which each of several API processes enforces its share

    def share(self, processes: int) -> Self:
        return self.model_copy(update={name: -(-getattr(self, name) // processes) for name in self.shared})


def _normalize(url: str) -> str:
    try:
        parsed = HttpUrl(url)
    except ValidationError as error:
        raise ValueError(f"{url!r} is not a URL such as https://jobs.example.org") from error
    if (parsed.path or "/").strip("/") or parsed.query is not None or parsed.fragment is not None:
        raise ValueError(
            f"{url!r} has a path, but pages and their links need a host name or a port of their own, such as "
            "https://jobs.example.org; have the proxy pass on all paths of that one."
        )
    return str(parsed).rstrip("/")


PublicUrl = Annotated[str, AfterValidator(_normalize)]
"""A URL as browsers send it: host name in lower case, and without the scheme's own port or a trailing slash."""
