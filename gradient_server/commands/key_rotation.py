import argparse
import sys
from contextlib import closing, nullcontext

from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from gradient_server.commands.keys import open_database
from gradient_server.home import require_home
from service.auth.signing import SIGNING_KEYS, SigningKeys


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    return _rotate_signing(settings, forget=parsed.forget) if parsed.command == "signing" else _rotate(settings)


def _rotate(settings: Settings) -> int:
    """Re-encrypt all stored values; return 1 if some could not be decrypted.

    If the keys are in the service's own file, a new one is created first, and a second rotation waits until this one
    has ended. If the settings name the keys, the administrator puts the new one first, in every process.
    """
    vault, database = Vault(settings), open_database(settings)
    require_home(settings, database)
    with nullcontext() if vault.keys_from_settings else vault.lock_keys():
        if not vault.keys_from_settings:
            vault.add_key()
        with database.write() as session:
            done, failed = credentials.reencrypt_all(session, vault)
        if not failed and not vault.keys_from_settings:
            vault.drop_old_keys()
    database.close()
    for problem in failed:
        print(f"error: {problem}", file=sys.stderr)
    if failed:
        print("Old keys were kept.", file=sys.stderr)
        return 1
    print(f"{done} value{'' if done == 1 else 's'} encrypted with the first key of {vault.key_location}.")
    return 0


def _rotate_signing(settings: Settings, *, forget: bool) -> int:
    """Sign links and S3 tokens with a new key from now on; return the exit code."""
    with closing(open_database(settings)) as database:
        require_home(settings, database)
    path = settings.root / SIGNING_KEYS
    SigningKeys(path).rotate(forget=forget)
    older = "are refused from now on" if forget else "stay valid until they expire"
    print(f"{path} contains a new key. Signatures of the previous key {older}.")
    return 0
