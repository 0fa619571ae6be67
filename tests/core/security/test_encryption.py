"""Encrypted texts: they can be decrypted only with the key, and only for the purpose they were encrypted for."""

import threading

import pytest
from cryptography.fernet import Fernet

from core.errors import SecretUnreadable
from core.security.encryption import Vault, key_id
from core.settings import SecretSettings, Settings

KEYS = [Fernet.generate_key().decode() for _ in range(2)]


def vault(home, *keys):
    return Vault(Settings(home=home, secrets=SecretSettings(encryption_keys=list(keys))))


def test_what_is_sealed_shows_nothing_and_is_opened_again(tmp_path):
    sealed = [vault(tmp_path).encrypt("secret a", "grüße\nfrom\tme") for _ in range(2)]
    assert vault(tmp_path).decrypt("secret a", sealed[0]) == "grüße\nfrom\tme"
    assert sealed[0] != sealed[1], "the same text twice looks different"
    assert "from" not in sealed[0]


def test_the_first_key_is_made_once_for_everybody_and_for_its_owner_alone(tmp_path):
    home = tmp_path / "home"
    sealed = []
    threads = [threading.Thread(target=lambda: sealed.append(vault(home).encrypt("p", "x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [vault(home).decrypt("p", one) for one in sealed] == ["x"] * 8
    assert [path.name for path in home.iterdir()] == ["secrets.key"]
    assert (home / "secrets.key").stat().st_mode & 0o777 == 0o600


def test_opening_makes_no_key(tmp_path):
    with pytest.raises(SecretUnreadable, match="holds no key"):
        vault(tmp_path).decrypt("p", vault(tmp_path / "elsewhere").encrypt("p", "x"))
    assert not (tmp_path / "secrets.key").exists()


def test_what_was_sealed_for_one_purpose_is_of_no_use_for_another(tmp_path):
    sealed = vault(tmp_path).encrypt("secret a", "x")
    with pytest.raises(SecretUnreadable, match="belongs to another entry"):
        vault(tmp_path).decrypt("secret b", sealed)


@pytest.mark.parametrize("change", [lambda text: text[:-4], lambda text: text.swapcase(), lambda _: ""])
def test_what_was_changed_is_refused(tmp_path, change):
    start, _, token = vault(tmp_path).encrypt("p", "x").partition(":")
    with pytest.raises(SecretUnreadable):
        vault(tmp_path).decrypt("p", f"{start}:{change(token)}")


def test_a_missing_key_is_named(tmp_path):
    sealed = vault(tmp_path, KEYS[0]).encrypt("p", "x")
    with pytest.raises(SecretUnreadable) as refused:
        vault(tmp_path, KEYS[1]).decrypt("p", sealed)
    assert key_id(KEYS[0]) in refused.value.message
    assert key_id(KEYS[1]) in refused.value.message
    assert "GRADIENT_SECRETS__ENCRYPTION_KEYS" in refused.value.message
    assert KEYS[1] not in refused.value.message


def test_the_first_key_is_for_new_values_and_the_others_for_old_ones(tmp_path):
    old = vault(tmp_path, KEYS[0]).encrypt("p", "x")
    both = vault(tmp_path, KEYS[1], KEYS[0])
    assert both.decrypt("p", old) == "x"
    assert vault(tmp_path, KEYS[1]).decrypt("p", both.reencrypt("p", old)) == "x"


def test_a_rotation_keeps_the_key_before_for_who_was_just_writing(tmp_path):
    first = vault(tmp_path).encrypt("p", "x")
    for _ in range(3):
        vault(tmp_path).add_key()
        last = vault(tmp_path).encrypt("p", "y")
        vault(tmp_path).drop_old_keys()
    assert len((tmp_path / "secrets.key").read_text().split()) == 2
    assert vault(tmp_path).decrypt("p", last) == "y"
    with pytest.raises(SecretUnreadable):
        vault(tmp_path).decrypt("p", first)


@pytest.mark.parametrize(
    "content", ["", "no key\n", f"{KEYS[0][:-1]}\n", "ü"], ids=["empty", "words", "short", "strange"]
)
def test_a_broken_file_is_no_reason_for_a_new_key(tmp_path, content):
    (tmp_path / "secrets.key").write_text(content)
    (tmp_path / "secrets.key").chmod(0o600)
    with pytest.raises(SecretUnreadable, match=r"secrets\.key"):
        vault(tmp_path).encrypt("p", "x")
    assert (tmp_path / "secrets.key").read_text() == content


def test_a_key_that_everybody_can_read_is_refused(tmp_path):
    vault(tmp_path).encrypt("p", "x")
    (tmp_path / "secrets.key").chmod(0o644)
    with pytest.raises(SecretUnreadable, match="chmod 600"):
        vault(tmp_path).encrypt("p", "x")


def test_settings_that_hold_no_key_are_told_so_without_it(tmp_path):
    with pytest.raises(SecretUnreadable, match="GRADIENT_SECRETS__ENCRYPTION_KEYS") as refused:
        vault(tmp_path, "hunter2").encrypt("p", "x")
    assert "hunter2" not in refused.value.message
    assert "hunter2" not in repr(Settings(home=tmp_path, secrets=SecretSettings(encryption_keys=["hunter2"])))
