"""deploy/init makes secrets once, for its owner alone."""

import re
import stat
import subprocess
from pathlib import Path

INIT = Path(__file__).parent.parent.parent / "deploy" / "init"


def init(file):
    done = subprocess.run([str(INIT), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_secrets_are_made_for_the_owner_alone_and_said_to_nobody(tmp_path):
    file = tmp_path / ".env"
    done = init(file)
    values = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert set(values) == {"POSTGRES_PASSWORD", "WORKER_POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in values.values())
    assert len(set(values.values())) == 3
    assert mode(file) == 0o600
    assert not any(value in done.stdout + done.stderr for value in values.values())
    assert list(tmp_path.iterdir()) == [file], "nothing is left beside it"


def test_a_second_run_changes_nothing(tmp_path):
    file = tmp_path / ".env"
    init(file)
    before = file.read_text()
    file.chmod(0o644)
    init(file)
    assert file.read_text() == before
    assert mode(file) == 0o600, "what was open to others is not any more"


def test_what_is_set_already_stays(tmp_path):
    file = tmp_path / ".env"
    file.write_text("GRADIENT_LOG_LEVEL=debug\nPOSTGRES_PASSWORD=mine\nREDIS_PASSWORD=\n#end")
    init(file)
    lines = file.read_text().splitlines()
    assert lines[:4] == ["GRADIENT_LOG_LEVEL=debug", "POSTGRES_PASSWORD=mine", "REDIS_PASSWORD=", "#end"]
    assert len(lines) == 6
    assert re.fullmatch(r"REDIS_PASSWORD=[0-9a-f]{64}", lines[5]), "an empty one is none; the last line counts"


def test_two_servers_have_different_secrets(tmp_path):
    init(tmp_path / "a")
    init(tmp_path / "b")
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()
