"""OpenSSH's own clients in running jobs: commands, files and ports, wherever a job runs and other sessions work."""

import contextlib
import hashlib
import os
import select
import socket
import stat
import subprocess

import pytest
from support.deployment import TIMEOUT_SECONDS, Deployment, wait_until
from support.far_worker import ECHO, FarWorker
from support.servers.private_docker_engine import SHELL_IMAGE
from support.slurm_cluster import CLUSTER_TYPE, running_cluster

from core.jobs.exec import audit

SANDBOX, CONTAINER, FAR, SLURM = "sandbox", "docker", "another host", "Slurm"
HOST = "127.0.0.1.gradient"
BOOTSTRAP = """
set -e
mkdir -p "$PWD/.server" && cd "$PWD/.server"
uname -ms >&2
cat >serve.py <<'END'
{program}
END
nohup python3 serve.py >log 2>&1 </dev/null &
while [ ! -s log ]; do sleep 0.1; done
echo "listeningOn==$(cat log)=="
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Person:
    """Somebody whose computer `ssh-config` has set up, with an API key of their own."""

    def __init__(self, service, home, **key):
        self.folder = home / ".ssh"
        self.variables = {"HOME": str(home)}
        if key:
            made = service.request("POST", "/keys", json=key).json()
            self.variables |= {"GRADIENT_URL": service.cli_json["url"], "GRADIENT_API_KEY": made["apiKey"]}
            self.key_id = made["id"]
        home.mkdir()
        service.cli("ssh-config", **self.variables)
        [config] = (self.folder / "gradient_jobs").iterdir()
        # For ssh the home is that of /etc/passwd.
        self.options = ["-F", str(config), "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.folder}/known_hosts"]

    def run(self, job_id, *words, code=0, **more):
        return self.call("ssh", f"{job_id}@{HOST}", *words, code=code, **more)

    def call(self, program, *words, code=0, **more):
        command = [program, *self.options, *words]
        done = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_SECONDS, **more)
        assert code == done.returncode, done.stdout + done.stderr
        return done

    def enters(self, job_id):
        command = ["ssh", *self.options, f"{job_id}@{HOST}", "true"]
        return subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_SECONDS).returncode == 0

    @contextlib.contextmanager
    def started(self, job_id, *words, options=()):
        command = ["ssh", *self.options, *options, f"{job_id}@{HOST}", *words]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as client:
            try:
                yield client
            finally:
                client.kill()


@pytest.fixture(scope="module", params=[SANDBOX, CONTAINER, FAR, pytest.param(SLURM, marks=pytest.mark.slow)])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def service(kind, request, tmp_path_factory):
    settings = {
        "GRADIENT_SSH__PORT": str(free_port()),
        "GRADIENT_LIMITS__EXEC_SESSIONS": "250",
        "GRADIENT_WORKER__SLOTS": "9",
        # Two hundred that come at once wait for each other.
        "service.exec.bridge._START_SECONDS": TIMEOUT_SECONDS,
        "service.ssh.connection._SECONDS": TIMEOUT_SECONDS,
        "worker.runner.commands._START_SECONDS": TIMEOUT_SECONDS,
    }
    folder = tmp_path_factory.mktemp("service")
    with contextlib.ExitStack() as stack:
        if kind == SANDBOX:
            request.getfixturevalue("bubblewrap")
            settings["GRADIENT_PROCESS__SANDBOX"] = "require"
        elif kind == CONTAINER:
            settings |= request.getfixturevalue("docker_server").service_settings
        elif kind == SLURM:
            cluster = stack.enter_context(running_cluster())
            file = folder / "machines.toml"
            file.write_text(CLUSTER_TYPE.replace("[cluster]", "[CPU]"))
            settings |= cluster.environment | {"GRADIENT_SLURM__ENABLED": "1", "GRADIENT_MACHINES__FILE": str(file)}
        deployment = Deployment(folder / "home", **settings)
        stack.callback(deployment.stop)
        deployment.start_api()
        if kind == FAR:
            FarWorker(deployment, folder / "far", deployment.cli_json["url"], GRADIENT_WORKER__SLOTS="9").start()
        else:
            deployment.start_worker()
        yield deployment


def start_job(service, kind, **spec):
    if kind == CONTAINER:
        spec["container"] = SHELL_IMAGE
    job_id = service.submit("echo up; while :; do sleep 0.1; done", **spec)
    wait_until(lambda: service.raw_log(job_id), "its first line")
    wait_until(lambda: service.job(job_id)["sshUrl"], "the job to be entered")
    return job_id


@pytest.fixture(scope="module")
def job_id(service, kind):
    return start_job(service, kind, envVars={"GREETING": "it's"})


@pytest.fixture(scope="module")
def person(service, tmp_path_factory):
    return Person(service, tmp_path_factory.mktemp("people") / "alice")


@pytest.fixture
def sandbox_only(kind):
    if kind != SANDBOX:
        pytest.skip("the endpoint is the same for every backend")


def is_stderr(output, expected, kind):
    """Return whether a command wrote this; on Slurm, srun adds words of its own."""
    return output == expected if kind != SLURM else expected in output


def test_a_command_has_the_jobs_environment_its_own_streams_and_its_exit_code(person, job_id, kind):
    command = 'echo "$GREETING $GRADIENT_JOB_ID"; cat; echo bad >&2; exit 7'
    done = person.run(job_id, command, input=b"typed\n", code=7)
    assert done.stdout == f"it's {job_id}\ntyped\n".encode()
    assert is_stderr(done.stderr, b"bad\n", kind)
    assert person.run(job_id, "no-such-program", code=127).stdout == b""
    assert person.run(job_id, input=b"echo in $GRADIENT_JOB_ID\nexit 3\n", code=3).stdout == f"in {job_id}\n".encode()


def test_ten_megabytes_go_each_way_unchanged(person, job_id):
    data = os.urandom(10_000_000)
    assert person.run(job_id, "sha256sum", input=data).stdout[:64].decode() == hashlib.sha256(data).hexdigest()
    assert person.run(job_id, "cat", input=data).stdout == data


def test_a_terminal_has_a_size_and_passes_keys_on(person, job_id, tmp_path):
    program = "stty size; trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    connect = " ".join(["exec ssh -tt", *(f"'{option}'" for option in person.options), f"{job_id}@{HOST}"])
    (tmp_path / "connect").write_text(f'stty rows 41 cols 123; {connect} "$PROGRAM"')
    with subprocess.Popen(
        ["script", "-qec", f"sh {tmp_path}/connect", "/dev/null"],
        env=os.environ | {"PROGRAM": program, "SHELL": "/bin/sh"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        shown = b""
        while b"ready" not in shown:
            shown += client.stdout.read1()
        assert b"41 123" in shown
        client.stdin.write(b"\x03")
        client.stdin.flush()
        assert b"caught" in client.stdout.read()
    assert client.returncode == 9


def test_sftp_and_scp_copy_files_if_the_job_finds_a_server(person, kind, job_id, tmp_path):
    (tmp_path / "sent").write_bytes(data := os.urandom(3_000_000))
    target = f"{job_id}@{HOST}"
    if kind == CONTAINER:
        done = person.call("scp", str(tmp_path / "sent"), f"{target}:one", code=255)
        assert b"no sftp-server, which sftp and scp need" in done.stderr
        return
    batch = f"put {tmp_path}/sent one\nmkdir sub\nrename one sub/two\nget sub/two {tmp_path}/back\nls -l sub\n"
    assert b"3000000" in person.call("sftp", "-b", "-", target, input=batch.encode()).stdout
    assert (tmp_path / "back").read_bytes() == data
    person.call("scp", f"{target}:sub/two", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == data
    person.run(job_id, "rm -r sub")


def is_echoed(connection, data=b"hello\n"):
    with contextlib.suppress(OSError), connection, connection.makefile("rwb") as lines:
        lines.write(data)
        lines.flush()
        return lines.readline() == data
    return False


def connected(port):
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), 30)


def test_a_port_of_the_job_is_forwarded_and_no_other_one(person, kind, job_id):
    if kind == CONTAINER:
        pytest.skip("its image has no program that connects")
    local, other = free_port(), free_port()
    with person.started(job_id, f'exec python3 -c "{ECHO}"') as server:
        port = server.stdout.readline().strip().decode()
        forwards = ["-N", "-L", f"{local}:localhost:{port}", "-L", f"{other}:example.com:80"]
        with person.started(job_id, options=forwards) as client:
            assert is_echoed(wait_until(lambda: connected(local), "ssh to listen"), b"x" * 1_000_000 + b"\n")
            with wait_until(lambda: connected(other), "ssh to listen") as refused:
                assert refused.recv(1) == b""
            assert b"Only ports of the job itself are reached" in client.stderr.readline()
            server.kill()
            server.wait()

            def is_refused():  # a server that is about to end may still take a connection
                return not is_echoed(connected(local)) and select.select([client.stderr], [], [], 0)[0]

            wait_until(is_refused, "the server to end")
            refusal = client.stderr.readline()
            assert b"open failed: connect failed: Nothing in the job listens on port " in refusal


def test_an_editor_starts_its_server_by_a_script_and_reaches_it(person, service, kind):
    """VS Code does this: a long script on the input of sh, then connections by -D to a server that stays."""
    if kind == CONTAINER:
        pytest.skip("its image has no program that connects")
    job_id, local = start_job(service, kind), free_port()
    with person.started(job_id, "sh", options=["-T", "-D", str(local)]) as client:
        client.stdin.write(BOOTSTRAP.format(program=ECHO).encode() + b"# more\n" * 30_000)
        client.stdin.flush()
        port = int(client.stdout.readline().split(b"==")[1])
        connection = connected(local)
        connection.sendall(b"\5\1\0" + b"\5\1\0\1" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
        greeting = b""
        while len(greeting) < 12:
            greeting += connection.recv(12 - len(greeting))
        assert greeting[:4] == b"\5\0\5\0"
        assert is_echoed(connection)


def test_a_session_is_recorded_with_its_key_its_command_and_its_end(person, service, job_id):
    person.run(job_id, "exit 5", code=5)

    def both_events():
        found = [event["message"] for event in service.events(job_id) if event["kind"] in {audit.OPENED, audit.CLOSED}]
        found = [message for message in found if "exit 5" in message]
        return found if len(found) == 2 else None

    opened, closed = wait_until(both_events, "both events")
    assert service.cli_json["apiKey"].split("_")[1] in opened
    assert "exit code 5, after" in closed


def test_a_session_ends_with_its_job(person, service, kind):
    job_id = start_job(service, kind)
    with person.started(job_id, "echo ready; sleep 600") as client:
        assert client.stdout.readline() == b"ready\n"
        service.request("POST", f"/jobs/{job_id}/stop")
        assert client.wait(TIMEOUT_SECONDS) == 255
        assert is_stderr(client.stderr.read(), b"The job is being stopped.\r\n", kind)
    service.wait_ended(job_id)
    assert b"Only a running job can be entered" in person.run(job_id, "true", code=255).stderr


@pytest.mark.usefixtures("sandbox_only")
def test_a_forward_from_the_job_is_refused(person, job_id):
    forward = ["-o", "ExitOnForwardFailure=yes", "-R", "9999:localhost:9"]
    done = person.call("ssh", *forward, f"{job_id}@{HOST}", "true", code=255)
    assert done.stderr == b"Error: remote port forwarding failed for listen port 9999\r\n"


@pytest.mark.usefixtures("sandbox_only")
def test_nobody_else_enters_or_learns_which_jobs_there_are(person, service, job_id, tmp_path):
    stranger = Person(service, tmp_path / "stranger", name="bob")
    unknown = Person(service, tmp_path / "unknown")
    (unknown.folder / "id_ed25519").unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", unknown.folder / "id_ed25519"], check=True)
    for home in (stranger, unknown):
        for name in (job_id, "j" + "0" * 13, f"{job_id}.1", "root"):
            denied = f"{name}@127.0.0.1: Permission denied (publickey).\r\n".encode()
            assert home.run(name, "true", code=255).stderr == denied
    for method in ("password", "keyboard-interactive", "none"):
        options = ["-o", f"PreferredAuthentications={method}"]
        assert (
            b"Permission denied (publickey)"
            in person.call("ssh", *options, f"{job_id}@{HOST}", "true", code=255).stderr
        )
    reader = {"GRADIENT_URL": service.cli_json["url"], "HOME": str(tmp_path)}
    reader["GRADIENT_API_KEY"] = service.request("POST", "/keys", json={"name": "r", "scope": "read"}).json()["apiKey"]
    assert "may only read" in service.cli("ssh-config", code=None, **reader).stderr
    (person.folder / "known_hosts").rename(tmp_path / "known_hosts")
    assert b"Host key verification failed" in person.run(job_id, "true", code=255).stderr
    (tmp_path / "known_hosts").rename(person.folder / "known_hosts")
    assert stat.S_IMODE((service.home / "ssh_host_key").stat().st_mode) == 0o600


@pytest.mark.usefixtures("sandbox_only")
def test_a_key_enters_its_own_jobs_in_projects_that_it_sees(service, tmp_path):
    dora = Person(service, tmp_path / "dora", name="dora")
    headers = {"x-api-key": dora.variables["GRADIENT_API_KEY"]}
    project = service.request("POST", "/projects", json={"name": "closed later"}).json()["id"]
    body = {"machineType": "CPU", "command": "sleep 600", "projectId": project}
    job_id = service.request("POST", "/jobs", headers=headers, json=body).json()["id"]
    wait_until(lambda: dora.enters(job_id), "her job to be entered")
    with dora.started(job_id, "echo ready; sleep 600") as client:
        assert client.stdout.readline() == b"ready\n"
        service.request("PATCH", f"/projects/{project}", json={"closed": True})
        assert client.wait(TIMEOUT_SECONDS) == 255
    for role, entered in ((None, False), ("viewer", False), ("submitter", True)):
        if role is not None:
            service.request("PUT", f"/projects/{project}/members/{dora.key_id}", json={"role": role})
        assert dora.enters(job_id) is entered


@pytest.mark.usefixtures("sandbox_only")
@pytest.mark.parametrize("how", ["revoked", "replaced"])
def test_connections_end_with_their_key(service, job_id, how, tmp_path):
    admin = Person(service, tmp_path / "admin", name="carol", scope="admin")
    with (
        admin.started(job_id, "echo ready; sleep 600") as command,
        admin.started(job_id, options=["-N", "-L", f"{free_port()}:localhost:9"]) as forward,
    ):
        assert command.stdout.readline() == b"ready\n"
        if how == "revoked":
            service.request("DELETE", f"/keys/{admin.key_id}")
        else:
            (tmp_path / "new").mkdir()
            service.cli("ssh-config", "--replace", **admin.variables | {"HOME": str(tmp_path / "new")})
        assert {command.wait(TIMEOUT_SECONDS), forward.wait(TIMEOUT_SECONDS)} == {255}
        assert (b"was revoked" if how == "revoked" else b"belongs to no API key") in forward.stderr.read()
    assert b"Permission denied" in admin.run(job_id, "true", code=255).stderr


@pytest.mark.usefixtures("sandbox_only")
def test_a_node_is_entered_by_its_rank(person, service):
    array_id = service.job(service.submit("sleep 600", nodes=2))["arrayId"]
    wait_until(lambda: person.enters(f"{array_id}.1"), "its second node")
    ranks = [person.run(name, "echo $RANK").stdout for name in (array_id, f"{array_id}.0", f"{array_id}.1")]
    assert ranks == [b"0\n", b"0\n", b"1\n"]


@pytest.mark.usefixtures("sandbox_only")
def test_one_process_has_the_port_and_the_next_server_takes_it_over(tmp_path):
    port = free_port()
    first, second = (Deployment(tmp_path / name, GRADIENT_SSH__PORT=str(port)) for name in ("first", "second"))

    def host_key():
        scanned = subprocess.run(["ssh-keyscan", "-p", str(port), "127.0.0.1"], capture_output=True, check=False)
        return scanned.stdout.decode().strip().partition(" ")[2]

    try:
        first.start_api(GRADIENT_API__PROCESSES="2")
        before = wait_until(host_key, "the first server to have the port")
        second.start_api(GRADIENT_API__PROCESSES="2")
        wait_until(lambda: "ssh_not_available" in second.processes[0].read_log(), "the second server to say so")
        first.stop()
        wait_until(lambda: host_key() not in {before, ""}, "the second server to have the port")
    finally:
        first.stop()
        second.stop()


@pytest.mark.usefixtures("sandbox_only")
def test_two_hundred_are_connected_at_once(person, job_id):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(person.started(job_id, "echo here; read end; exit 6")) for _ in range(200)]
        lines = [client.stdout.readline() or client.stderr.read() for client in clients]
        assert set(lines) == {b"here\n"}
        for client in clients:
            client.stdin.write(b"\n")
            client.stdin.flush()
        assert {client.wait(TIMEOUT_SECONDS) for client in clients} == {6}
