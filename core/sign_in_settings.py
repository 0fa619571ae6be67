"""How long what people get by signing in lasts."""

from pydantic import BaseModel, Field

_MAX_DAYS = 36_500


class SignInSettings(BaseModel):
    """Browser sessions, and keys that people get by signing in with a password."""

    session_days: float = Field(
        default=30.0, gt=0, le=_MAX_DAYS, description="days after which a browser session ends, however much it is used"
    )
    session_idle_days: float = Field(
        default=7.0, gt=0, le=_MAX_DAYS, description="days without a request after which a browser session ends"
    )
    key_days: float = Field(
        default=90.0,
        ge=0,
        le=_MAX_DAYS,
        description="days that a key works that was got by signing in with a password; 0: until it is revoked",
    )
