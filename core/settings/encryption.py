from pydantic import Field, SecretStr

from core.settings.group import SettingsGroup


class SecretSettings(SettingsGroup):
    encryption_keys: list[SecretStr] = Field(
        default=[],
        description="encryption keys (32 bytes in URL-safe Base64) as a JSON list, the first for new values; "
        "default: those in secrets.key under GRADIENT_HOME, which is created when first needed",
    )
