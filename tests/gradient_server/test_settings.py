"""Settings that cannot be read: one line for each, which names the variable, and exit code 2."""

import os
import subprocess

import pytest
from support.deployment import SERVER_PROGRAM, Process

from core.errors import SettingsInvalid
from core.settings import Settings, variables
from gradient_server.main import main

pytestmark = pytest.mark.integration

SECRET = "hunter2secret"
WRONG = [
    # Broken JSON, and JSON of another type
    ("GRADIENT_TPU", "[0", "not a JSON object"),
    ("GRADIENT_TPU", "[0]", "not a JSON object"),
    ("GRADIENT_TPU__ZONES", "us-central1-b", "not a JSON list"),
    ("GRADIENT_TPU__ZONES", '[1, "a"]', "item 1: Input should be a valid string"),
    ("GRADIENT_TPU__RUNTIMES", '{"v3": 1', "not a JSON object"),
    ("GRADIENT_WORKER__GPUS", "0,1", "not a JSON list"),
    ("GRADIENT_WORKER__GPUS", "[" * 100_000, "not a JSON list"),
    ("GRADIENT_WORKER__MACHINE_TYPES", '{"CPU": 1}', "not a JSON list"),
    ("GRADIENT_API", '{"port": "many"}', "port: Input should be a valid integer"),
    ("GRADIENT_API", '{"prot": 80}', "prot: There is no such setting"),
    # Names
    ("GRADIENT_API__PROT", "80", "There is no such setting. Did you mean GRADIENT_API__PORT?"),
    ("GRADIENT_DATABSE__URL", f"postgresql://u:{SECRET}@h/d", "Did you mean GRADIENT_DATABASE__URL?"),
    ("GRADIENT_DATABASE_URL", f"postgresql://u:{SECRET}@h/d", "Did you mean GRADIENT_DATABASE__URL?"),
    ("GRADIENT__HOME", "/tmp", "Did you mean GRADIENT_HOME?"),
    ("GRADIENT_HOME__X", "1", "There is no such setting"),
    ("GRADIENT_API__PORT__X", "1", "There is no such setting"),
    # Types and ranges
    ("GRADIENT_API__PORT", "many", "valid integer"),
    ("GRADIENT_API__PORT", "65536", "less than or equal to 65535"),
    ("GRADIENT_API__PORT", "-1", "greater than or equal to 0"),
    ("GRADIENT_API__PROCESSES", "9" * 5000, "exceeded maximum size"),
    ("GRADIENT_WORKER__SLOTS", "0", "greater than or equal to 1"),
    ("GRADIENT_WORKER__MEMORY_MB", "99999999999", "not a number from 0 to"),
    ("GRADIENT_WORKER__CPUS", "nan", "greater than 0"),
    ("GRADIENT_WORKER__POLL_SECONDS", "inf", "not a number from 0 to"),
    ("GRADIENT_MACHINES__SIMULATE", "maybe", "valid boolean"),
    ("GRADIENT_PROCESS__SANDBOX", "yes", "'auto', 'require' or 'off'"),
    ("GRADIENT_LOG_LEVEL", "loud", "debug, info, warning or error"),
    ("GRADIENT_LOG_FORMAT", "xml", "console or json"),
    ("GRADIENT_WORKER__NODES_ADDRESS", "here", "IPv4 address"),
    # Text
    ("GRADIENT_WORKER__HOST", "latin-\udce9", "not UTF-8"),
    ("GRADIENT_HOME", "~nobody-here/jobs", "No user with that name"),
    ("GRADIENT_DOCKER__URL", "tcp://127.0.0.1:many", "host or port cannot be read"),
    ("GRADIENT_WORKER__HOST", "two\nlines", "line break"),
    ("GRADIENT_WORKER__GPUS", '["\\ud800"]', "not UTF-8"),
    # Secrets
    ("GRADIENT_DATABASE__URL", f"mysql://u:{SECRET}@h/d", "must begin with sqlite:/// or postgresql://"),
    ("GRADIENT_DATABASE__URL", f"postgresql://u:{SECRET}/x@h/d", "write : as %3A"),
    ("GRADIENT_DATABASE__URL", "sqlite:///", "does not name a file"),
    ("GRADIENT_DATABASE__URL", "sqlite:///a%00b", "does not name a file"),
    ("GRADIENT_DATABASE", f'{{"url": "{SECRET}"', "not a JSON object"),
    ("GRADIENT_QUEUE__BROKER_URL", SECRET, "URL of the Celery broker"),
    ("GRADIENT_QUEUE__BROKER_URL", f"kafka://:{SECRET}@h", "redis://…"),
    ("GRADIENT_QUEUE__BROKER_URL", f"redis://:{SECRET}@h:x/0", "write : as %3A"),
    ("GRADIENT_SECRETS__ENCRYPTION_KEYS", SECRET, "not a JSON list"),
    ("GRADIENT_SECRETS_ENCRYPTION_KEYS", f'["{SECRET}"]', "Did you mean GRADIENT_SECRETS__ENCRYPTION_KEYS?"),
    ("GRADIENT_API__PUBLIC_URL", f"https://u:{SECRET}@h/path", "has a path"),
    ("GRADIENT_WORKER__SERVICE_URL", f"http://u:{SECRET}@h", "Use https"),
]


@pytest.mark.parametrize(("variable", "value", "words"), WRONG)
def test_a_wrong_setting_is_one_line_without_a_secret_and_nothing_is_made(
    tmp_path, monkeypatch, capsys, variable, value, words
):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, value)
    assert main(["migrate"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {variable}: ")
    assert told.count("\n") == 1
    assert len(told) < 700
    assert words in told
    assert SECRET not in told
    assert "DATABASE" in variable or SECRET in value or repr(value)[:20] in told or "no such setting" in told
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "command",
    [["worker"], ["up", "--port", "0"], ["api", "--port", "0"], ["doctor"], ["join", "https://h", "--token=t"]],
)
def test_every_command_tells_of_all_of_them(tmp_path, command):
    wrong = {"GRADIENT_TPU": "[0", "GRADIENT_API__PORT": "many", "GRADIENT_WORKR__SLOTS": "1"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    process = Process(command, env | wrong | {"GRADIENT_HOME": str(tmp_path / "home")}, tmp_path / "log")
    assert process.wait() == 2
    lines = process.read_log().splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == sorted(wrong)
    assert {line.split(":")[0] for line in lines} == {"error"}
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "content",
    [None, *(pytest.param(one, marks=pytest.mark.slow) for one in (b"[CPU", b"\xff", b"[CPU]\nnonsense = 1"))],
)
def test_a_file_that_a_setting_names_is_told_like_a_setting(tmp_path, content):
    file = tmp_path / "machines.toml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    named = {"GRADIENT_HOME": str(tmp_path / "home"), "GRADIENT_MACHINES__FILE": str(file)}
    process = Process(["up", "--port", "0"], env | named, tmp_path / "log")
    assert process.wait() == 2
    assert process.read_log().splitlines()[-1].startswith("error: ")
    assert str(file) in process.read_log()
    assert "Traceback" not in process.read_log()


def test_a_real_process_ends_with_2_in_any_locale(tmp_path):
    env = {"GRADIENT_HOME": str(tmp_path / "home"), "GRADIENT_TPU__ZONES": "[ü", "LC_ALL": "C", "PATH": os.defpath}
    done = subprocess.run([SERVER_PROGRAM, "worker"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: GRADIENT_TPU__ZONES: It is not a JSON list")


def test_a_group_and_parts_of_it_can_both_be_set(monkeypatch):
    monkeypatch.setenv("GRADIENT_TPU", '{"zones": ["a"], "poll_seconds": 3}')
    monkeypatch.setenv("GRADIENT_TPU__PROVISION_TIMEOUT_SECONDS", "2")
    monkeypatch.setenv("gradient_tpu__spot", "true")
    monkeypatch.setenv("GRADIENT_ACCUMULATION_STEPS", "of a program")
    monkeypatch.setenv("GRADIENT_STATSD_PORT", "1")
    tpu = Settings(tpu={"project": "p"}).tpu
    assert (tpu.zones, tpu.poll_seconds, tpu.provision_timeout_seconds, tpu.spot, tpu.project) == (
        ["a"],
        3,
        2,
        True,
        "p",
    )
    assert Settings().statsd.port == 8125


def refusal():
    try:
        Settings()
    except SettingsInvalid as error:
        return error
    return None


@pytest.mark.parametrize("value", ["[0", "\udcff", "-1", "nan", "1e400", '{"a": 1}', "999999999999999999999"])
def test_no_setting_fails_in_another_way(monkeypatch, value):
    """Each value is taken, or refused by the name of its variable."""
    for variable in variables.names(Settings):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            refused = refusal()
            assert refused is None or (refused.variables == (variable,) and refused.message.isprintable())
