import json

WORKER = {
    "name": "lab-1",
    "state": "ready",
    "seenAt": "2020-01-01T00:00:00.000Z",
    "jobIds": ["j1"],
    "slots": 2,
    "gpus": [{"gpu": "0", "jobId": "j1"}, {"gpu": "1", "jobId": None}],
    "machineTypes": ["V100"],
    "backends": ["docker"],
}


def test_workers_are_listed(cli, server):
    server.on("GET", "/workers", {"workers": [WORKER, WORKER | {"name": "lab-2", "gpus": None, "machineTypes": None}]})
    head, first, second = cli("workers", "list").stdout.splitlines()
    assert head.split() == ["NAME", "STATE", "HEARTBEAT", "JOBS", "GPUS", "TAKES"]
    for text in ("lab-1", "ready", "1/2", "V100 (docker)"):
        assert text in first
    assert "all types (docker)" in second
    assert json.loads(cli("workers", "list", "--json").stdout)["workers"][0] == WORKER
    refusing = WORKER | {"state": "refusing", "backends": [], "refusal": "It has no mark."}
    server.on("GET", "/workers", {"workers": [refusing, WORKER | {"name": "lab-2", "lowDisk": "1 MiB is free"}]})
    listed = cli("workers", "list")
    assert listed.stdout.splitlines()[1].split()[::6] == ["lab-1", "nothing"]
    assert listed.stderr.splitlines() == ["lab-1: It has no mark.", "lab-2: 1 MiB is free"]
    gpus = [{"gpu": "0", "fault": "it has to be reset"}, {"gpu": "1"}]
    drained = WORKER | {"state": "drained", "drainReason": "3 jobs in turn failed", "gpus": gpus}
    server.on("GET", "/workers", {"workers": [drained]})
    listed = cli("workers", "list")
    assert "1/2" in listed.stdout.splitlines()[1]
    assert listed.stderr.splitlines() == [
        "lab-1: 3 jobs in turn failed",
        "lab-1: GPU 0 is broken: it has to be reset",
        "  gradient-cli workers resume lab-1",
    ]
    server.on("GET", "/workers", {"workers": []})
    assert "no worker has reported yet" in cli("workers", "list").stderr


def test_a_worker_is_drained_and_resumed(cli, server):
    server.on("POST", "/workers/lab-1/drain", WORKER)
    server.on("POST", "/workers/lab-1/resume", WORKER)
    assert cli("workers", "drain", "lab-1").stderr.splitlines() == [
        "worker lab-1 claims no more jobs; 1 job still runs on it",
        "  gradient-cli workers resume lab-1",
    ]
    assert cli("workers", "resume", "lab-1").stderr == "worker lab-1 claims jobs again\n"
    assert json.loads(cli("workers", "drain", "lab-1", "--json").stdout) == WORKER
