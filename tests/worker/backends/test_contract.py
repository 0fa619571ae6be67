"""The same questions to every launcher: its five calls, and the usage that it samples."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until
from support.google.tpu_simulator import MemoryResourceInventory, running_simulator, tpu_settings
from support.toy_backend import TOY

from core.catalogue.backends import BACKENDS
from core.settings.slurm import SlurmSettings
from core.settings.worker import ProcessSettings
from core.system.processes import keep_ignored_signals_from_children
from worker.attempt.scratch import Scratch
from worker.backends import base
from worker.backends.base import CONTROL, STORAGE, WRAPPER, LaunchError
from worker.runner.control_files import WARNED_FILE

pytestmark = pytest.mark.integration


# The simulator's is the TPU backend under another name; here that one talks to the simulator anyhow.
OTHERS = [name for name, backend in BACKENDS.items() if backend.selectable and name != "docker"]


@pytest.fixture(params=["sandbox", "docker", "toy", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", TOY)
    with contextlib.ExitStack() as stack:
        name, options = request.param, {}
        if request.param == "sandbox":
            request.getfixturevalue("bubblewrap")
            name, options["process"] = "process", ProcessSettings(sandbox="require")
        if request.param == "docker":
            options["docker"] = request.getfixturevalue("docker_server").settings()
        if request.param == "tpu":
            tpu = tpu_settings(stack.enter_context(running_simulator()))
            options |= {"tpu": tpu, "resource_inventory": MemoryResourceInventory(), "machine_type": "TPU"}
        if request.param == "slurm":
            request.getfixturevalue("slurm")
            options["slurm"] = SlurmSettings(enabled=True)
        place = BackendHarness(name, tmp_path, **options)
        yield place
        place.clear()


WITH_BASH = pytest.mark.parametrize(
    "place", ["sandbox", "toy", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)], indirect=True
)
"""The tests' own container image has no bash."""


def in_each_place(name, values, in_containers=1):
    """Each value in processes, the first ones in containers, too; all of them everywhere if slow tests run."""
    cases = [pytest.param(place, value) for place in ("sandbox", "toy") for value in values]
    for number, value in enumerate(values):
        cases.append(pytest.param("docker", value, marks=pytest.mark.slow if number >= in_containers else ()))
        cases += [pytest.param(place, value, marks=pytest.mark.slow) for place in OTHERS]
    return pytest.mark.parametrize(("place", name), cases, indirect=["place"])


@in_each_place("code", [42, 0, 1, 255])
def test_output_and_exit_code_are_in_the_control_folder(place, code):
    spec = place.spec(f"echo out; echo err >&2; exit {code}")
    handle = place.launch(spec)
    exit_ = place.wait(handle)
    assert (exit_.code, exit_.reason) == (code, None)
    assert sorted(place.output(spec).split()) == [b"err", b"out"]
    assert place.backend.ended(handle).code == code, "asked again, it says the same"


@WITH_BASH
@pytest.mark.parametrize(
    "command",
    [
        'trap "echo saved" INT; kill -INT $$; echo after',
        "trap 'echo saved; exit 4' QUIT; sh -c 'kill -QUIT $PPID'; echo after",
        'trap "echo saved" HUP; kill -HUP 0; echo after',
        "sh -c 'kill -INT $$; echo lost'; echo $?",
        "sh -c 'kill -QUIT $$; echo lost' & wait $!; echo $?",
        "kill -INT 0; echo lost",
        "kill -HUP $$; echo lost",
        "kill -KILL 0; echo lost",
        'echo "$# ${1-none} ${0##*/}"',
        "set -u; echo $1",
        "return 3; echo after",
        "local x=1; echo after",
        "exit 3\nif fi",
        "cat <<E\n$0\nE",
        "false\\\n || echo joined",
        'trap "echo end" EXIT; set -e; false; echo lost',
        "# a remark\nf() { return 3; }; f",
        "exec sh -c 'exit 5'",
    ],
)
def test_a_command_does_what_it_does_after_bash_c(place, command):
    keep_ignored_signals_from_children()  # these tests may have been started with SIGINT ignored
    plain = subprocess.run(
        ["bash", "-c", command], start_new_session=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    spec = place.spec(command)
    ended = place.wait(place.launch(spec))
    assert ended.code == plain.returncode % 256 if plain.returncode >= 0 else 128 - plain.returncode
    assert place.output(spec) == plain.stdout


@WITH_BASH
def test_no_signal_is_ignored_or_blocked(place):
    keep_ignored_signals_from_children()
    spec = place.spec("grep -E '^Sig(Blk|Ign)' /proc/self/status; sh -c \"grep -E '^Sig(Blk|Ign)' /proc/self/status\"")
    place.wait(place.launch(spec))
    masks = [int(line.split()[1], 16) for line in place.output(spec).splitlines()]
    assert len(masks) == 4
    of_the_c_library = 1 << 31 | 1 << 32  # signals 32 and 33, which no program can set
    assert [mask & ~of_the_c_library for mask in masks] == [0, 0, 0, 0]


@in_each_place(
    "case",
    [
        ("#!/bin/sh -e\nfalse\necho lost", 1, b""),
        ("#!/bin/sh\necho one\nreturn 7 2>/dev/null || exit 7", 7, b"one"),
        ("#!/nothing/like/it\n1", 127, b"not found"),
    ],
)
def test_the_first_line_of_a_command_may_name_its_program(place, case):
    command, code, said = case
    spec = place.spec(command)
    assert place.wait(place.launch(spec)).code == code
    assert said in place.output(spec)
    assert b"lost" not in place.output(spec)


def test_launch_may_be_repeated_and_runs_once(place):
    spec = place.spec('echo run >>"$PWD/runs"; sleep 600')
    first, runs = place.launch(spec), spec.workspace / "runs"
    wait_until(lambda: runs.exists() and runs.read_text(), "the command to run")
    again = place.launch(spec)
    assert again["name"] == first["name"]
    assert place.backend.ended(again) is None
    assert runs.read_text() == "run\n"


def test_many_launches_at_once_run_once(place):
    spec = place.spec('echo run >>"$PWD/runs"')
    barrier = threading.Barrier(10)

    def launch(_):
        barrier.wait()
        return place.launch(spec)

    with ThreadPoolExecutor(10) as pool:
        handles = list(pool.map(launch, range(10)))
    assert place.wait(handles[0]).code == 0
    assert (spec.workspace / "runs").read_text() == "run\n"


def test_a_lease_that_is_lost_between_create_and_start_starts_nothing(place):
    class Lost(Exception):
        pass

    def confirm():
        raise Lost

    spec = place.spec('touch "$PWD/ran"')
    with pytest.raises(Lost):
        place.launch(spec, confirm)
    # Whatever was made may stay: the present holder of the lease can use it, and a sweep finds it.
    for handle in place.backend.owned():
        assert place.backend.ended(handle | {"launched": time.monotonic(), "launched_at": time.time()}) is None
        place.backend.destroy(handle)
    assert place.backend.owned() == []
    assert not (spec.workspace / "ran").exists()


def test_a_start_after_the_attempt_is_over_runs_nothing(place):
    """A zombie wakes between its check and its start."""
    spec = place.spec('touch "$GRADIENT_TEST_FILE"')
    spec.env["GRADIENT_TEST_FILE"] = f"{place.inside(spec.storage, STORAGE)}/ran"
    scratch = Scratch(place.root / "attempts", spec.job_id, spec.attempt)
    with contextlib.suppress(LaunchError):
        place.launch(spec, scratch.remove)
    assert place.backend.owned() == []
    assert not (spec.storage / "ran").exists()


def test_stop_asks_all_processes_and_then_ends_them(place):
    spec = place.spec("trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done")
    handle = place.launch(spec)
    wait_until(lambda: b"up" in place.output(spec), "its first line")
    for _ in range(2):
        place.backend.signal(handle, grace=True)
    wait_until(lambda: b"asked" in place.output(spec), "the trap to run")
    assert place.backend.ended(handle) is None
    place.backend.signal(handle, grace=False)
    assert place.wait(handle).code == 137
    place.backend.signal(handle, grace=False)
    assert place.backend.ended(handle).code == 137


@in_each_place("name", ["USR1", "TERM"])
def test_a_warning_reaches_the_main_program_and_no_other(place, name):
    program = f"sh -c 'trap \"echo warned\" {name}; echo up; while :; do sleep 0.1; done'"
    spec, handle = place.running(f"sleep 600 | cat & {program} | cat; echo never", warn_before=f"60:{name}")
    place.backend.warn(handle, signal.Signals[f"SIG{name}"])
    wait_until(lambda: b"warned" in place.output(spec), "the trap to run")
    wait_until((spec.control / WARNED_FILE).exists, "the record")
    assert place.backend.ended(handle) is None
    assert place.backend.sample(handle).get("processes", 7) >= 5
    place.backend.signal(handle, grace=False)
    place.wait(handle)
    assert place.output(spec).split() == [b"up", b"warned"]


def test_a_warning_ends_no_program_that_does_not_handle_it(place):
    spec, handle = place.running("sleep 600 | cat & echo up; while :; do sleep 0.1; done", warn_before="60")
    place.backend.warn(handle, signal.SIGTERM)
    place.backend.signal(handle, grace=True)
    place.wait(handle)
    assert not (spec.control / WARNED_FILE).exists()


@in_each_place("name", ["USR1", "INT"])
def test_a_stop_has_the_signal_of_the_job(place, name):
    """SIGINT is SIGTERM in an image without bash, which has its programs ignore it."""
    traps = f'trap "echo got TERM; exit 3" TERM; trap "echo got {name}; exit 3" {name}'
    spec, handle = place.running(
        f"sh -c '{traps}; echo up; while :; do sleep 0.1; done' | cat; echo got nothing", stop_signal=name
    )
    place.backend.signal(handle, grace=True)
    place.wait(handle)
    expected = "TERM" if (place.name, name) == ("docker", "INT") else name
    assert [line for line in place.output(spec).splitlines() if line.startswith(b"got")] == [
        b"got " + expected.encode()
    ]


def test_a_job_whose_wrapper_is_killed_is_lost(place):
    handle = place.launch(place.spec("kill -KILL $PPID"))
    assert place.wait(handle).reason == "process_lost"
    place.backend.destroy(handle)
    assert place.backend.owned() == []


def test_destroy_ends_everything_and_may_be_repeated(place):
    spec, handle = place.running("setsid sleep 600 & sleep 600 & echo up; wait")
    place.backend.destroy(handle)
    wait_until(lambda: place.backend.owned() == [], "nothing of it to be left")  # Slurm lists its end a moment later
    place.backend.destroy(handle)
    place.backend.signal(handle, grace=True)
    assert place.output(spec) == b"up\n", "what it printed stays"


def test_another_instance_finds_the_same_job_again(place):
    """A restarted worker makes an instance of its own."""
    spec, handle = place.running("echo up; sleep 600; exit 3")
    heir = place.new_instance()
    assert heir.ended(handle) is None
    assert [owned["name"] for owned in heir.owned()] == [spec.name]
    heir.signal(handle, grace=False)
    assert wait_until(lambda: heir.ended(handle), "its end").code == 137


def test_a_sample_tells_memory_and_processes(place):
    _spec, handle = place.running("echo up; sleep 600")
    sample = wait_until(lambda: place.backend.sample(handle), "a sample")
    assert sample["memory_bytes"] > 0
    assert sample["processes"] >= 1


@in_each_place(
    "attack",
    [
        "mkfifo",
        "head -c 1000000 /dev/zero >",
        "ln -s missing",
        "mkdir",
        "echo 99999999999999999999 >",
        "echo -5 >",
        "echo nonsense >",
    ],
    in_containers=2,
)
def test_a_forged_exit_file_harms_nobody_else(place, attack):
    forge = f'rm "$CONTROL/exit"; {attack} "$CONTROL/exit"; touch "$CONTROL/forged"; sleep 600'
    spec = place.spec(forge, env={"CONTROL": ""})
    spec.env["CONTROL"] = place.inside(spec.control, CONTROL)
    handle = place.launch(spec)
    wait_until((spec.control / "forged").exists, "the attack")
    ended = place.backend.ended(handle)
    assert ended is None or ended.code is None or 0 <= ended.code <= 255


@in_each_place("name", ["log", "exit", "started"])
def test_a_link_in_the_control_folder_is_not_followed(place, name):
    """The wrapper runs with its worker's rights: it must not write where a job points it."""
    target = place.root / "precious"
    target.write_text("precious")
    spec = place.spec(f'rm "$CONTROL/{name}"; ln -s "$TARGET" "$CONTROL/{name}"; echo out; exit 3', env={"CONTROL": ""})
    spec.env.update(CONTROL=place.inside(spec.control, CONTROL), TARGET=str(target))
    ended = place.wait(place.launch(spec))
    assert ended.code in {3, None}
    assert target.read_text() == "precious"


def test_exit_codes_survive_a_removed_log(place):
    spec = place.spec('rm "$CONTROL/log"; echo lost; exit 4', env={"CONTROL": ""})
    spec.env["CONTROL"] = place.inside(spec.control, CONTROL)
    assert place.wait(place.launch(spec)).code == 4


def test_variables_of_the_job_may_have_the_names_that_scripts_use(place):
    scripts = [*WRAPPER.parent.glob("*.sh"), *(Path(base.__file__).parent / "slurm").glob("*.sh")]
    names = re.findall(r"\b(?:[a-z]\w*_)?([a-z]+)=", "".join(map(Path.read_text, scripts)))
    mine = dict.fromkeys([*names, "count", "line"], "the job's")
    spec = place.spec("env", env=mine)
    assert place.wait(place.launch(spec)).code == 0
    printed = dict(line.split("=", 1) for line in place.output(spec).decode().splitlines() if "=" in line)
    assert {name: printed.get(name) for name in mine} == mine


def test_a_password_in_a_command_is_in_no_list_of_processes(place):
    """Anybody on the host may run ps; arguments of what the job starts itself are its own to keep short."""
    canary = f"canary{os.urandom(8).hex()}"
    spec = place.spec(f"PASSWORD={canary}; echo up; sleep 600")
    place.launch(spec)
    wait_until(lambda: place.output(spec) == b"up\n", "its first line")
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    assert canary not in listed


def test_a_program_that_saves_at_sigterm_says_how_it_ended(place):
    spec, handle = place.running(
        "sh -c 'trap \"sleep 0.3; echo saved; exit 7\" TERM; echo up; while :; do sleep 0.1; done'; true"
    )
    place.backend.signal(handle, grace=True)
    assert place.wait(handle).code == 7
    assert b"saved" in place.output(spec)


@in_each_place("folder", ["link", "pipe"])
def test_a_command_is_not_written_where_an_earlier_start_points_it(place, folder):
    spec, target = place.spec("echo right"), place.root / "precious"
    target.write_text("precious")
    if folder == "link":
        (spec.control / "command").symlink_to(target)
    else:
        os.mkfifo(spec.control / "command")
    assert place.wait(place.launch(spec)).code == 0
    assert (place.output(spec), target.read_text()) == (b"right\n", "precious")


def test_a_quota_that_is_full_at_the_start_is_a_full_disk(place, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(base, "write_atomically", refuse)
    with pytest.raises(LaunchError) as failed:
        place.launch(place.spec("true"))
    assert failed.value.reason == "disk_full"


def test_the_wrapper_is_plain_posix_shell():
    done = subprocess.run(["sh", "-n", str(WRAPPER)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
