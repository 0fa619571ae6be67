"""Jobs on several nodes of a cluster: one allocation, whose nodes find each other and end together."""

import json

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until

from core.settings.slurm import SlurmSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def place(slurm, tmp_path):  # noqa: ARG001 - where its jobs run
    place = BackendHarness("slurm", tmp_path, slurm=SlurmSettings(enabled=True, poll_seconds=1))
    yield place
    place.clear()


def log_of(place, spec, rank):
    lines = place.output(spec).decode().splitlines()
    return [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]


def running(place, command, **options):
    """Launch a job on two nodes, each of which prints `up`, and wait for that."""
    spec = place.spec(command, nodes=2, **options)
    handle = place.launch(spec)

    def is_up():
        assert place.backend.ended(handle) is None
        return all(log_of(place, spec, rank)[:1] == ["up"] for rank in range(2))

    wait_until(is_up, "both nodes to run")
    return spec, handle


MEET = """
echo "$SLURMD_NODENAME $SLURM_JOB_ID $RANK $NODE_RANK $WORLD_SIZE $GRADIENT_NODE_ADDRESSES"
echo "$TF_CONFIG"
echo $RANK >"$GRADIENT_ARTIFACTS_DIR/rank"
python3 - <<END
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    listener = socket.create_server(address)
    print("hello", listener.accept()[0].recv(100).decode())
else:
    while True:
        try:
            socket.create_connection(address).sendall(os.environ["WHO"].encode())
            break
        except ConnectionRefusedError:
            pass
END
"""


def test_nodes_of_one_allocation_find_each_other(place):
    variables = {"WORLD_SIZE": "mine", "WHO": "rank 1"}
    artifacts = place.spec("true").artifacts
    env = variables | {"GRADIENT_ARTIFACTS_DIR": str(artifacts)}
    spec = place.spec(MEET, nodes=2, env_vars=variables, env=env)
    handle = place.launch(spec)
    assert place.wait(handle).code == 0
    first, second = (log_of(place, spec, rank) for rank in range(2))
    names, number = handle["allocation"]["addresses"], handle["allocation"]["name"]
    assert first[0] == f"{names[0]} {number} 0 0 mine 127.0.0.1,127.0.0.1"
    assert second[0] == f"{names[1]} {number} 1 1 mine 127.0.0.1,127.0.0.1"
    configs = [json.loads(lines[1]) for lines in (first, second)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in range(2)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert (first[2], len(second)) == ("hello rank 1", 2)
    assert place.backend.node_exits(handle) == {"0": 0, "1": 0}
    assert [(spec.artifacts / path).read_text() for path in ("rank", "hosts/1/rank")] == ["0\n", "1\n"]


def test_a_single_node_is_rank_0(place):
    spec = place.spec("echo $RANK of $WORLD_SIZE; exit 3", nodes=1)
    ended = place.wait(place.launch(spec))
    assert (ended.code, ended.reason, log_of(place, spec, 0)) == (3, None, ["0 of 1"])


SAVES = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("other", "end"),
    [(SAVES, "saved"), ("trap '' TERM; echo up; while :; do sleep 0.1; done", "up")],
    ids=["saves", "ignores SIGTERM"],
)
def test_a_node_that_fails_ends_all_within_the_grace_period(place, other, end):
    fails = "echo up; until [ -e go ]; do sleep 0.1; done; exit 5"
    spec, handle = running(place, f"if [ $RANK = 1 ]; then {fails}; fi; {other}", stop_grace=3)
    (spec.workspace / "go").touch()
    ended = place.wait(handle)
    assert (ended.code, ended.reason) == (5, "slurm_rank_failed")
    assert f"rank 1 of 2 nodes ({handle['allocation']['addresses'][1]}) failed first, with exit code 5" in ended.detail
    assert log_of(place, spec, 0)[-1] == end
    assert place.backend.node_exits(handle)["1"] == 5


def test_a_stop_reaches_all_nodes_and_a_restarted_worker_doubles_no_line(place):
    spec, handle = running(place, SAVES)
    place.backend = place.new_instance()
    place.backend.signal(handle, grace=True)
    assert place.wait(handle).code is not None
    logs = [log_of(place, spec, rank) for rank in range(2)]
    assert [(lines[0], lines[-1], lines.count("up"), lines.count("saved")) for lines in logs] == [
        ("up", "saved", 1, 1)
    ] * 2
    place.backend.destroy(handle)
    assert place.backend.owned() == []


def test_a_lost_node_ends_the_job(place, slurm):
    _, handle = running(place, "echo up; sleep 600")
    node = handle["allocation"]["addresses"][1]
    slurm.fail_node(node)
    ended = place.wait(handle)
    slurm.start_daemon(node)
    assert ended.reason == "slurm_node_failed"
