"""The base of all groups of settings."""

from pydantic import BaseModel, ConfigDict


class SettingsGroup(BaseModel):
    """A group of settings. It refuses a name that it does not have, so that a misspelt variable is an error."""

    model_config = ConfigDict(extra="forbid")
