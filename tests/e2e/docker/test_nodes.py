"""Jobs over several nodes that are containers: they share the network of rank 0, and start and end together."""

import json

import pytest
from support.servers.private_docker_engine import SHELL_IMAGE

# Each listens at its own port, and says its rank to the next one.
RING = """\
port_of() { echo "$TF_CONFIG" | tr '"' '\\n' | sed -n 's/^127.0.0.1:\\([0-9]*\\)$/\\1/p' | sed -n "$(($1 + 1))p"; }
nc -l -p "$(port_of $RANK)" >heard &
echo $RANK >own
until nc $MASTER_ADDR "$(port_of $((($RANK + 1) % $WORLD_SIZE)))" <own 2>/dev/null; do sleep 0.1; done
wait
echo "after rank $(cat heard)"
"""
HAS_ENDED = 'until [ -e "$GRADIENT_STORAGE_DIR/rank-0-ends" ]; do sleep 0.05; done; sleep 1'


@pytest.fixture(scope="module")
def service_settings(docker_server):
    return docker_server.service_settings | {"GRADIENT_WORKER__SLOTS": "3"}


def run(service, command, nodes, **spec):
    """Submit nodes; return them by rank, with their logs, when all have ended."""
    job_id = service.submit(command, container=SHELL_IMAGE, nodes=nodes, **spec)
    array_id = service.job(job_id)["arrayId"]
    listed = json.loads(service.cli("jobs", "show", array_id, "--json").stdout)["jobs"]
    members = [service.wait_ended(member["id"]) for member in listed]
    return members, [service.raw_log(member["id"]).decode() for member in members]


def test_containers_connect_to_each_other_at_the_ports_of_tf_config(service, docker_server):
    members, logs = run(service, RING, 3)
    assert [member["reason"] for member in members] == ["completed"] * 3, logs
    assert logs == [f"after rank {(rank - 1) % 3}\n" for rank in range(3)]
    with docker_server.client() as client:
        assert client.containers(all=True) == []


def test_the_network_outlives_the_command_of_rank_0(service):
    command = f"""\
if [ $RANK = 0 ]; then sleep 600 & : >"$GRADIENT_STORAGE_DIR/rank-0-ends"; exit 0; fi
{HAS_ENDED}; ip route | grep -c default"""
    members, logs = run(service, command, 2)
    assert [member["reason"] for member in members] == ["completed"] * 2
    assert logs[1] == "1\n"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "reason"), [("exit 3", "exit_nonzero"), ("kill -KILL $$", "killed")])
def test_the_failure_of_rank_0_is_the_reason_and_all_run_again(service, command, reason):
    """Also if it ends before the others have joined its network."""
    members, logs = run(service, f"[ $RANK$GRADIENT_ATTEMPT != 01 ] || {{ {command}; }}\n{RING}", 2, maxAttempts=2)
    assert [(one["state"], one["attempt"]) for one in members] == [("Stopped", 2)] * 2, logs
    ended = [next(one for one in service.events(member["id"]) if one["kind"] == "ended") for member in members]
    assert [one["reason"] for one in ended] == [reason, "node_failed"], ended
