from sqlalchemy.orm import Session

from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem

_MAX_SHOWN = 3


def check(settings: Settings, session: Session) -> Finding:
    """Check that this host's keys decrypt every secret and every registry password."""
    vault = Vault(settings)
    count, failed = credentials.check_decryptable(session, vault)
    if failed:
        more = f" And {len(failed) - _MAX_SHOWN} more." if len(failed) > _MAX_SHOWN else ""
        return problem(
            "secrets",
            f"Cannot be decrypted: {' '.join(failed[:_MAX_SHOWN])}{more}",
            f"Restore the keys in {vault.key_location} from a backup, the same on every host; "
            "or store those values again.",
        )
    return ok(
        "secrets",
        f"{count} secrets and passwords are stored, and the keys in {vault.key_location} decrypt all of them.",
    )
