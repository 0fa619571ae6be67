import json

import pytest

OTHERS = {"us-west4-a/gj-x": "the installation gx"}


def test_tpus_are_listed_with_whose_they_are_and_what_they_cost(cli, server):
    tpu = {"name": "gj-j1-1", "zone": "us-central1-b", "provisioning": "queued", "state": "READY", "health": "HEALTHY"}
    tpu |= {"jobId": "j1", "machineType": "TPU", "simulated": True, "billedAt": "2020-01-01T00:00:00.000Z", "cost": 3.5}
    waiting = tpu | {"name": "gj-j2-1", "state": "WAITING_FOR_RESOURCES", "health": None, "billedAt": None, "cost": 0}
    waiting["detail"] = "not looked at since 09:12:03 UTC"
    server.on("GET", "/tpus", {"tpus": [tpu, waiting], "unowned": OTHERS, "refusal": "2026-11-27 09:12 UTC: no key"})
    shown = cli("tpus", "list")
    head, first, second = shown.stdout.splitlines()
    assert head.split()[:4] == ["NAME", "ZONE", "TYPE", "PROVISIONING"]
    assert first.split()[:8] == ["gj-j1-1", "us-central1-b", "TPU", "(simulated)", "queued", "READY", "HEALTHY", "j1"]
    assert first.endswith("$3.50")
    assert "not yet" in second
    assert "us-west4-a/gj-x is billed, too, for the installation gx" in shown.stderr
    assert "gj-j2-1: not looked at since 09:12:03 UTC" in shown.stderr
    assert "since 2026-11-27 09:12 UTC: no key" in shown.stderr
    assert json.loads(cli("tpus", "list", "--json").stdout)["tpus"] == [tpu, waiting]


def test_no_tpu_is_said_in_words(cli, server):
    server.on("GET", "/tpus", {"tpus": [], "unowned": {}, "recentCost": 0.0127})
    shown = cli("tpus", "list")
    assert (shown.stdout, shown.returncode) == ("", 0)
    assert "nothing is billed" in shown.stderr
    assert "last 30 days cost $0.0127, including those of deleted jobs" in shown.stderr


@pytest.mark.parametrize(
    ("owned", "unowned", "refusal", "code", "told"),
    [
        (True, {}, None, 0, "every billed TPU is owned by a living job"),
        (False, {}, None, 1, "us-east1-a/gj-j1-1  job j1, which no longer runs on it: the worker deletes it"),
        (True, OTHERS, None, 1, "us-west4-a/gj-x  the installation gx"),
        (True, {}, "09:12 UTC: no key", 1, "since 09:12 UTC: no key"),
    ],
)
def test_what_is_billed_for_no_living_job_is_a_leak(cli, server, owned, unowned, refusal, code, told):
    tpu = {"name": "gj-j1-1", "zone": "us-east1-a", "jobId": "j1", "owned": owned}
    server.on("GET", "/tpus", {"tpus": [tpu], "unowned": unowned, "refusal": refusal})
    shown = cli("leaks")
    assert (shown.returncode, told in shown.stdout + shown.stderr) == (code, True), shown
    assert ("us-east1-a/gj-j1-1" in cli("leaks", "--json").stdout) == (not owned)
