"""deploy/init makes secrets once, for its owner alone."""

import re
import stat
import subprocess
from pathlib import Path

INIT = Path(__file__).parent.parent.parent / "deploy" / "init"


def run_init(*arguments):
    return subprocess.run([str(INIT), *map(str, arguments)], capture_output=True, text=True, check=False)


def init(file, *options):
    done = run_init(*options, file)
    assert done.returncode == 0, done.stderr
    return done


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_secrets_are_made_for_the_owner_alone_and_said_to_nobody(tmp_path):
    file = tmp_path / ".env"
    done = init(file)
    values = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert values.pop("COMPOSE_PROFILES") == "simulated"
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
    done = run_init("--docker", file)
    assert (done.returncode, file.read_text()) == (1, before)
    assert "has COMPOSE_PROFILES=simulated" in done.stderr


def test_an_unknown_option_is_no_file():
    done = run_init("--dokcer")
    assert (done.returncode, done.stderr) == (2, "--dokcer is no option: deploy/init [--docker] [FILE]\n")
