"""A worker that shares no folder with its service: it has a GRADIENT_HOME of its own, and reaches both by network."""

import hashlib
import json
import os
import socket
import subprocess
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.far_worker import ECHO, GATE, FarWorker, run_server
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def deployment(tmp_path, request):
    deployment = Deployment(tmp_path / "home", GRADIENT_WORKER__SWEEP_SECONDS="0.5", **getattr(request, "param", {}))
    deployment.start_api()
    yield deployment
    deployment.stop()


@pytest.fixture
def network(deployment):
    proxy = TcpProxy(urlsplit(deployment.cli_json["url"]).port)
    yield proxy
    proxy.cut()


@pytest.fixture
def far(deployment, network, tmp_path):
    return FarWorker(deployment, tmp_path / "far", network.url)


def test_a_job_on_another_host_has_its_log_and_its_artifacts_at_the_service(deployment, far):
    far.start()
    job_id = deployment.submit(
        "cd $GRADIENT_ARTIFACTS_DIR; mkdir many; echo early >early; : >empty;"
        "for i in $(seq 30); do echo $i >many/$i; done;"
        "echo first line; " + GATE.format(name="go") + "; seq 1000;"
        "head -c 6000000 /dev/urandom >large; sha256sum <large; echo late >early;"
        "mkdir none; chmod 750 none large; touch -d @1500000000 large none"
    )
    wait_until(lambda: deployment.raw_log(job_id) == b"first line\n", "the first line, while it runs")
    wait_until(lambda: deployment.artifacts(job_id)["totalFiles"] == 32, "its files, while it runs")
    assert deployment.artifact(job_id, "many/7") == b"7\n"
    far.open_gate()
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    log = deployment.raw_log(job_id)
    assert log.startswith(b"first line\n" + b"".join(b"%d\n" % i for i in range(1, 1001)))
    large = deployment.artifact(job_id, "large")
    assert len(large) == 6_000_000
    assert hashlib.sha256(large).hexdigest().encode() in log
    stored = deployment.artifacts(job_id)
    assert (stored["state"], stored["totalFiles"]) == ("complete", 33)
    assert (deployment.artifact(job_id, "early"), deployment.artifact(job_id, "empty")) == (b"late\n", b"")
    assert list((far.home / "artifacts").glob("*/*/*")) == [], "nothing is left on its host"
    kept = "stat -c '%n %a %Y' in/large in/none"
    follower = deployment.submit(f"cat in/many/7; sha256sum <in/large; {kept}", inputs=[f"{job_id}:in"])
    assert deployment.wait_ended(follower, 180)["state"] == "Stopped"
    assert deployment.raw_log(follower).startswith(b"7\n" + hashlib.sha256(large).hexdigest().encode())
    assert deployment.raw_log(follower).endswith(b"in/large 750 1500000000\nin/none 750 1500000000\n")


def test_a_link_that_is_cut_loses_nothing(deployment, network, far):
    far.start()
    job_id = deployment.submit(
        "echo before; " + GATE.format(name="cut") + "; seq 20000; echo kept >$GRADIENT_ARTIFACTS_DIR/kept;"
        "head -c 9000000 /dev/urandom >$GRADIENT_ARTIFACTS_DIR/large; : >$GRADIENT_STORAGE_DIR/written;"
        + GATE.format(name="end")
        + "; echo after"
    )
    wait_until(lambda: deployment.raw_log(job_id) == b"before\n", "the first line")
    network.cut()
    far.open_gate("cut")
    wait_until(lambda: list((far.home / "storage").glob("projects/*/written")), "it to write")
    assert deployment.raw_log(job_id) == b"before\n"
    assert deployment.job(job_id)["state"] == "Running"
    network.connect()
    lines = b"before\n" + b"".join(b"%d\n" % i for i in range(1, 20001))
    wait_until(lambda: deployment.raw_log(job_id) == lines, "the rest, once the link is back")
    network.cut()
    far.open_gate("end")
    wait_until(lambda: deployment.job(job_id)["phase"] == "collecting", "it to end without a link")
    network.connect()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 1)
    assert deployment.raw_log(job_id) == lines + b"after\n"
    assert deployment.artifact(job_id, "kept") == b"kept\n"
    assert len(deployment.artifact(job_id, "large")) == 9_000_000


def test_workspace_and_secret_come_from_the_service_and_a_checkpoint_reaches_another_host(
    deployment, network, far, tmp_path
):
    far.start()
    deployment.cli("secrets", "set", "token", given="the-value\n")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.sh").write_text(
        'printf %s "$TOKEN" | sha256sum; cd "$GRADIENT_ARTIFACTS_DIR"; mkdir -p ck; '
        'echo "$GRADIENT_ATTEMPT" >>ck/steps; head -c 9000000 /dev/zero >ck/weights; echo $GRADIENT_ATTEMPT;'
        '[ "$GRADIENT_ATTEMPT" = 2 ] && exit 0; ' + GATE.format(name="go") + "; exit 1"
    )
    create = ["jobs", "create", "--machineType", "CPU", "--workspace", str(folder), "--command", "sh main.sh"]
    job_id = json.loads(
        deployment.cli(*create, "--envVars", "TOKEN=secret:token", "--maxAttempts", "2", "--json").stdout
    )["id"]
    said = hashlib.sha256(b"the-value").hexdigest() + "  -\n"
    wait_until(lambda: deployment.raw_log(job_id).decode() == f"{said}1\n", "the first attempt's output")
    run_server(deployment, "drain", "--name", "far")
    FarWorker(deployment, tmp_path / "farther", network.url, name="farther").start()
    far.open_gate()
    job = deployment.wait_ended(job_id)
    assert deployment.raw_log(job_id).decode() == f"{said}1\n{said}2\n"
    assert (job["state"], job["attempt"]) == ("Stopped", 2)
    assert deployment.artifact(job_id, "ck/steps") == b"1\n2\n"
    assert deployment.artifact(job_id, "ck/weights") == bytes(9_000_000)


def test_a_token_opens_nothing_but_what_its_worker_holds(deployment, network, far):
    far.start()
    job_id = deployment.submit("echo said; " + GATE.format(name="go"))
    wait_until(lambda: deployment.raw_log(job_id) == b"said\n", "it to run")
    tokens = {
        "far": (far.home / "worker-token").read_text().strip(),
        "other": run_server(deployment, "workers", "token", "other").strip(),
    }
    tokens |= {"": "gw_unknown", "key": deployment.cli_json["apiKey"]}

    def status(method, path, whose):
        answer = httpx.request(method, network.url + path, headers={"Authorization": f"Bearer {tokens[whose]}"})
        return answer.status_code

    attempt = f"/worker/jobs/{job_id}/1"
    assert status("POST", f"{attempt}/log", "far") == 200
    for method, path in (
        *(("POST", f"{attempt}/log?offset=5"), ("PUT", f"{attempt}/artifacts"), ("POST", f"{attempt}/artifacts")),
        *(("GET", f"{attempt}/artifacts"), ("GET", f"{attempt}/environment"), ("GET", f"{attempt}/log")),
    ):
        assert status(method, path, "other") == 409, path
        assert status(method, path.replace("/1", "/2"), "far") == 409, path
        assert {status(method, path, whose) for whose in ("", "key")} == {401}, path
    assert status("GET", "/jobs", "far") == 401
    assert "The token of worker far was revoked" in run_server(deployment, "workers", "revoke", "far")
    wait_until(lambda: status("POST", f"{attempt}/log", "far") == 401, "the revocation to be noticed")


def test_a_worker_that_is_killed_while_the_link_is_cut_goes_on_where_it_was(deployment, network, far):
    worker = far.start()
    job_id = deployment.submit(
        "i=0; while [ ! -e $GRADIENT_STORAGE_DIR/end ]; do i=$((i+1)); echo $i; sleep 0.005; done; echo $i >count;"
        "mv count $GRADIENT_ARTIFACTS_DIR/"
    )
    wait_until(lambda: len(deployment.raw_log(job_id)) > 100, "it to print")
    network.cut()
    worker.kill()
    far.start()
    network.connect()
    far.open_gate("end")
    assert deployment.wait_ended(job_id)["attempt"] == 1
    count = int(deployment.artifact(job_id, "count"))
    assert deployment.raw_log(job_id) == b"".join(b"%d\n" % i for i in range(1, count + 1))


def test_a_worker_with_another_ones_token_or_none_does_not_start(deployment, far):
    def fail(name, why):
        assert why in far.fail(name)
        assert why in listed(deployment)[name]

    fail("near", "has the token of worker 'far', but this is worker 'near'")
    (far.home / "worker-token").write_text("gw_wrong")
    fail("far", "This worker token is unknown or revoked.")
    (far.home / "worker-token").unlink()
    fail("far", "worker-token cannot be read")


def listed(deployment):
    """Return why each worker takes no jobs, as the list of workers says."""
    workers = deployment.request("GET", "/workers").json()["workers"]
    return {one["name"]: one["refusal"] for one in workers if one["state"] == "refusing"}


def test_a_worker_that_reaches_the_service_alone_says_so_there(deployment, network, tmp_path):
    closed = "postgresql://worker:secret@127.0.0.1:1/jobs"
    alone = FarWorker(deployment, tmp_path / "alone", network.url, "alone", GRADIENT_DATABASE__URL=closed)
    alone.launch()
    said = wait_until(lambda: listed(deployment).get("alone"), "the list to say why")
    assert said.startswith("It waits: the database does not answer")
    assert "secret" not in said


def test_a_worker_that_is_revoked_while_it_runs_claims_nothing_and_ends_and_its_jobs_go_on_with_its_next_token(
    deployment, far
):
    worker = far.start()
    job_id = deployment.submit(
        "i=0; while [ ! -e $GRADIENT_STORAGE_DIR/end ]; do i=$((i+1)); echo $i; sleep 0.005; done; echo $i >count;"
        "mv count $GRADIENT_ARTIFACTS_DIR/"
    )
    wait_until(lambda: len(deployment.raw_log(job_id)) > 100, "it to print")
    run_server(deployment, "workers", "revoke", "far")
    later = deployment.submit("echo later")
    assert worker.wait() == 1
    assert "error: This worker token is unknown or revoked." in worker.read_log()
    assert [deployment.job(one)["state"] for one in (job_id, later)] == ["Running", "Pending"]
    assert "This worker token is unknown or revoked." in listed(deployment)["far"]
    far.renew_token()
    far.start()
    far.open_gate("end")
    assert deployment.wait_ended(job_id)["attempt"] == 1
    count = int(deployment.artifact(job_id, "count"))
    assert deployment.raw_log(job_id) == b"".join(b"%d\n" % i for i in range(1, count + 1))
    assert deployment.job(later)["state"] == "Pending"
    run_server(deployment, "resume", "--name", "far")
    assert deployment.wait_ended(later)["state"] == "Stopped"


def test_a_worker_with_the_services_folders_gets_no_token(deployment):
    worker = deployment.start_worker("near")
    wait_until(lambda: "ready." in worker.read_log(), "it to run")
    refused = deployment.start("workers", "token", "near")
    assert refused.wait() == 1
    [said] = refused.read_log().splitlines()
    assert said.startswith("error: A worker named 'near' uses this service's GRADIENT_HOME")


def test_a_large_file_and_many_small_ones_arrive_although_the_link_breaks_off_twice(deployment, network, far):
    far.start()
    large, many = 24_000_000, 60
    job_id = deployment.submit(
        GATE.format(name="go") + f"; cd $GRADIENT_ARTIFACTS_DIR; head -c {large} /dev/urandom >large; sha256sum large;"
        f"mkdir many; cd many; seq {many} | split -l 1 -a 4 - f"
    )
    wait_until(lambda: deployment.job(job_id)["state"] == "Running", "it to run")
    far.open_gate()
    for _ in range(2):
        network.cut_at = network.sent + large // 3
        wait_until(lambda: network.is_cut, "the link to break off")
        network.connect()
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    stored = deployment.artifacts(job_id)
    assert (stored["state"], stored["totalFiles"]) == ("complete", many + 1)
    said = deployment.raw_log(job_id).decode().split()[0]
    assert hashlib.sha256(deployment.artifact(job_id, "large")).hexdigest() == said
    assert deployment.artifact(job_id, "many/faaab") == b"2\n"
    assert network.sent < large * 1.7, "what has arrived is not sent again"


def test_a_worker_that_reaches_the_database_alone_claims_nothing_and_says_why(deployment, network, far):
    network.cut()
    worker = far.launch()
    wait_until(lambda: "does not answer" in listed(deployment).get("far", ""), "the list to say why")
    job_id = deployment.submit("echo said")
    wait_until(lambda: "does not answer" in str(deployment.job(job_id)), "the job to say why")
    doctor = deployment.start("doctor")
    doctor.wait()
    assert "It cannot fetch what jobs need: The service at" in " ".join(doctor.read_log().split())
    assert "claims_refused" in worker.read_log()
    network.connect()
    assert deployment.wait_ended(job_id)["attempt"] == 1
    assert deployment.raw_log(job_id) == b"said\n"
    network.cut()
    wait_until(lambda: "does not answer" in listed(deployment).get("far", ""), "the list to say it again")
    assert [event["kind"] for event in deployment.events(job_id)].count("claimed") == 1


def test_a_host_that_does_not_trust_the_services_certificate_claims_nothing(deployment, network, tmp_path):
    FarWorker(deployment, tmp_path / "far", network.url.replace("http:", "https:")).launch()
    said = wait_until(lambda: listed(deployment).get("far"), "the list to say why")
    assert "SSL" in said
    assert deployment.job(deployment.submit("echo said"))["attempt"] == 0


@pytest.mark.parametrize("hostname", ["far", "copy"])
def test_a_copy_of_a_host_is_refused_and_does_no_harm_to_its_jobs(deployment, network, far, tmp_path, hostname):
    far.start()
    job_id = deployment.submit("echo said; " + GATE.format(name="go"))
    wait_until(lambda: deployment.raw_log(job_id) == b"said\n", "it to run")
    copy = FarWorker(deployment, tmp_path / "copy", network.url, "far", GRADIENT_WORKER__HOST=hostname)
    token = (copy.home / "worker-token").read_text()
    (far.home / "worker-token").write_text(token)  # that of a name is one
    process = copy.launch(GRADIENT_WORKER__SLOTS="8")
    assert process.wait() == 1
    assert "runs worker 'far'. Each host needs its own name and token" in process.read_log()
    far.open_gate()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["attempt"], deployment.raw_log(job_id)) == ("Stopped", 1, b"said\n")


def test_a_host_takes_the_name_over_once_the_other_is_silent(deployment, network, far, tmp_path):
    first = far.start()
    first.kill()
    copy = FarWorker(deployment, tmp_path / "copy", network.url, "far", GRADIENT_WORKER__HOST="far")
    copy.start()
    assert deployment.wait_ended(deployment.submit("echo said"))["state"] == "Stopped"


def test_a_job_that_waits_for_the_link_to_start_runs_once_it_is_back_or_is_stopped(deployment, network, far, tmp_path):
    far.start()
    (tmp_path / "data").write_bytes(os.urandom(9_000_000))
    deployment.cli("storage", "put", str(tmp_path / "data"))
    network.cut_at = network.sent + 2_000_000
    stopped, kept = (deployment.submit("cat $GRADIENT_STORAGE_DIR/data | wc -c") for _ in range(2))
    wait_until(lambda: network.is_cut, "the link to break while the data are fetched")
    wait_until(lambda: all(deployment.job(one)["attempt"] == 1 for one in (stopped, kept)), "both to be claimed")
    assert deployment.request("POST", f"/jobs/{stopped}/stop").status_code in (200, 202)
    job = deployment.wait_ended(stopped)
    assert (job["state"], job["exitCode"]) == ("Cancelled", None), job
    network.connect()
    assert deployment.wait_ended(kept)["state"] == "Stopped"
    assert deployment.raw_log(kept) == b"9000000\n"


@pytest.fixture
def start_client(deployment):
    with ExitStack() as stack:

        def start(*arguments):
            command, env = [str(CLI_PROGRAM), "jobs", *arguments], deployment.client_environment()
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            client = stack.enter_context(subprocess.Popen(command, env=env, **streams))
            stack.callback(client.kill)
            return client

        yield start


def test_users_enter_a_job_and_reach_its_port_through_the_one_connection_of_its_worker(
    deployment, network, far, start_client
):
    far.start()
    job_id = deployment.submit(f'python3 -c "{ECHO}"')
    port = wait_until(lambda: deployment.raw_log(job_id).decode().strip(), "its server to listen")

    def enter(command, given=""):
        client = start_client("exec", job_id, "--", "sh", "-c", command)
        said, error = client.communicate(given.encode())
        return said.decode(), error.decode(), client.returncode

    wait_until(lambda: enter("true")[2] == 0, "its worker's connection")
    assert enter("cat; echo $GRADIENT_JOB_ID; exit 7", "given\n") == (f"given\n{job_id}\n", "", 7)
    unread = start_client("exec", job_id, "--", "cat", "/dev/zero")
    assert unread.stdout.read(1) == b"\0"
    much = start_client("exec", job_id, "--", "head", "-c", "20000000", "/dev/zero")
    assert len(much.communicate()[0]) == 20_000_000, "one that nobody reads holds up no other"

    forward = start_client("port-forward", job_id, f"{port}:0")
    local = urlsplit(forward.stdout.readline().split()[0].decode())
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(socket.create_connection((local.hostname, local.port), 30))
            connection.sendall(b"x" * 500_000 + b"\n")
            with connection.makefile("rb") as lines:
                assert lines.readline() == b"x" * 500_000 + b"\n"
        network.cut()
        assert connection.recv(1) == b""
    assert forward.wait() == 1
    assert b"The connection to the job's worker was lost." in forward.stderr.read()
    network.connect()
    wait_until(lambda: enter("echo back")[0] == "back\n", "its worker's next connection")
    run_server(deployment, "workers", "revoke", "far")
    wait_until(lambda: "cannot be reached" in enter("true")[1], "the revocation to end it")


def test_uploaded_files_are_fetched_once_and_follow_the_service(deployment, network, far, tmp_path):
    far.start()
    large = 30_000_000
    data = tmp_path / "set"
    data.mkdir()
    (data / "large").write_bytes(os.urandom(large))
    (data / "small").write_text("first\n")

    def put():
        deployment.cli("storage", "put", str(data))

    def read(command):
        job_id = deployment.submit(f"cd $GRADIENT_STORAGE_DIR; {command}")
        assert deployment.wait_ended(job_id)["state"] == "Stopped", deployment.raw_log(job_id)
        return deployment.raw_log(job_id).decode()

    put()
    network.cut_at = network.sent + large // 2
    job_id = deployment.submit("cd $GRADIENT_STORAGE_DIR; cat set/small; sha256sum <set/large; echo own >set/own")
    wait_until(lambda: network.is_cut, "the link to break off")
    network.connect()
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    digest = hashlib.sha256((data / "large").read_bytes()).hexdigest()
    assert deployment.raw_log(job_id).decode() == f"first\n{digest}  -\n"
    assert network.sent < large * 1.4, "what has arrived is not sent again"

    (data / "small").write_text("second\n")
    put()
    assert read("cat set/small set/own; sha256sum <set/large; echo mine >set/large") == f"second\nown\n{digest}  -\n"
    deployment.cli("storage", "rm", "--yes", "set/small")
    assert read("ls set; cat set/large") == "large\nown\nmine\n", "what jobs wrote stays"
    assert network.sent < large * 1.5


def test_what_libraries_download_outlives_the_job_and_the_jobs_own_folder_is_kept(deployment, far):
    far.start()
    variables = "$HF_HOME $TORCH_HOME $PIP_CACHE_DIR $UV_CACHE_DIR"
    job_id = deployment.submit(f"mkdir -p {variables}; echo model >$HF_HOME/model; echo $TORCH_HOME")
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    torch = deployment.raw_log(job_id).decode().strip()
    assert torch.startswith(str(far.home / "storage" / "projects"))
    command = f"ls -d {variables} | wc -l; cat $HF_HOME/model; echo $TORCH_HOME"
    job_id = deployment.submit(command, envVars={"TORCH_HOME": "/tmp"})
    assert deployment.wait_ended(job_id)["state"] == "Stopped"
    assert deployment.raw_log(job_id) == b"4\nmodel\n/tmp\n"


@pytest.mark.usefixtures("small_disk")  # which needs the same rights
@pytest.mark.parametrize("deployment", [{"GRADIENT_DISK__MIN_FREE_MB": "0"}], indirect=True)  # a ramfs says 0
@pytest.mark.parametrize("whose", [pytest.param("the service's", marks=pytest.mark.slow), "the host's"])
def test_a_file_system_without_extended_attributes_is_told(deployment, far, tmp_path, whose):
    home = far.home if whose == "the host's" else deployment.home
    folder = home / "storage"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "ramfs", "ramfs", str(folder)], check=True)
    try:
        far.start()
        (tmp_path / "data").write_text("data")
        deployment.cli("storage", "put", str(tmp_path / "data"))
        job = deployment.wait_ended(deployment.submit("true"))
        assert job["state"] == "Stopped"
        assert any("file system without extended attributes" in note for note in job["notes"]), job["notes"]
    finally:
        deployment.stop()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
