"""`gradient-server secrets rotate` at the same time as another rotation."""

import os
import subprocess
from pathlib import Path

from support.deployment import SERVER_PROGRAM, wait_until

from core.db import migrations
from core.db.database import Database
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings import Settings


def is_waiting_for_a_lock(pid):
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(lock[1] == "->" and lock[5] == str(pid) for lock in locks)


def test_a_second_rotation_waits_for_the_first_and_keeps_its_key(tmp_path):
    settings = Settings(home=tmp_path)
    vault, database = Vault(settings), Database(settings.database_url)
    migrations.upgrade(database)
    with database.write() as session:
        credentials.put_secret(session, vault, ALL_PROJECTS, "token", "the-value")
    with vault.lock_keys():
        vault.add_key()
        keys = (tmp_path / "secrets.key").read_text()
        env = os.environ | {"GRADIENT_HOME": str(tmp_path)}
        second = subprocess.Popen([SERVER_PROGRAM, "secrets", "rotate"], env=env, stdout=subprocess.PIPE)
        wait_until(lambda: is_waiting_for_a_lock(second.pid) or second.poll() is not None, "the rotation to wait")
        assert (tmp_path / "secrets.key").read_text() == keys
        with database.write() as session:
            assert credentials.reencrypt_all(session, vault) == (1, [])
        vault.drop_old_keys()
    said, _ = second.communicate()
    assert (second.returncode, said[:8]) == (0, b"1 value ")
    assert (tmp_path / "secrets.key").read_text().splitlines()[1:] == keys.splitlines()[:1]
    with database.read() as session:
        assert credentials.check_decryptable(session, vault) == (1, [])
    database.close()
