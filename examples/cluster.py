"""`make cluster-up` and `make demo-cluster`: a service and three hosts that share nothing with it but a network.

A host is a network, a mount and a process namespace of this machine, with an empty file system where the service has
its files, which takes root. Each joins as a machine would: over HTTPS, with an invitation. Nothing is left at the end,
also if this program is killed: all runs in a process namespace, and the next start removes files and network.
"""

import asyncio
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import psutil
from demo import EXAMPLE, HOME, PROGRAMS, DemoError, Programs, prepare_data, ready, say, server, told

from gradient_cli.formatting import state_word

HOSTS = ("ada", "bob", "cyd")
NETWORK = "10.213.57"
PREFIX = "gradient-cluster-"
INSIDE = "GRADIENT_CLUSTER_FOLDER"
"""Variable that a cluster's own process has: the folder of its files."""
TLS_PORT = 8443
WAIT_SECONDS = 120
JOBS = 30
KILL_AFTER = 6  # jobs that have ended
SETTINGS = {
    "GRADIENT_PROCESS__CGROUPS": "off",  # these groups are the machine's, and would be left
    "GRADIENT_WORKER__SLOTS": "3",
    "GRADIENT_WORKER__POLL_SECONDS": "0.5",
    "GRADIENT_WORKER__LEASE_SECONDS": "5",
    "GRADIENT_WORKER__SWEEP_SECONDS": "2",
    "GRADIENT_WORKER__LOST_AFTER_SECONDS": "15",
}
COMMAND = """echo "begins on $(uname -n)"; sleep 3; echo "$GRADIENT_ATTEMPT" >"$GRADIENT_ARTIFACTS_DIR/attempt"
echo "ends on $(uname -n)" """
HOST = """
set -eu
name=$1 number=$2 folder=$3
exec 2>&1
echo waiting for its network
read -r invitation
certificate=$(cat "$SSL_CERT_FILE")
mount -t tmpfs cluster "$folder"
echo "$certificate" >"$SSL_CERT_FILE"
if [ -n "$PACKAGES" ]; then
    cd "$folder"
    mkdir -p new work home/environments
    mount -t overlay -o "lowerdir=$PACKAGES,upperdir=new,workdir=work" cluster home/environments
fi
hostname "$name"
ip link set lo up
ip address add "$NETWORK.$number/24" dev eth0
ip link set eth0 up
gradient-server join "$URL" --token "$invitation" --name "$name" --env-file "$folder/env"
set -a
. "$folder/env"
while :; do
    gradient-server worker --name "$name" || sleep 1
done
"""


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        folder: Its files, those of the service among them.
        packages: Folder of Python environments that the hosts have from the start, each a copy of its own.
    """

    folder: Path
    stack: ExitStack
    hosts: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    packages: Path | None = None

    @property
    def programs(self) -> Programs:
        packages = {} if self.packages else {"GRADIENT_ENVIRONMENTS__DEFAULT": "[]"}  # the hosts reach no index
        return Programs(Programs.for_home(self.folder / "home").env | SETTINGS | packages)

    def request(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - as sent
        return json.loads(self.read(path, body, headers))

    def read(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
        address = json.loads((self.folder / "home" / "cli.json").read_text())
        sent = {"x-api-key": address["apiKey"], "content-type": "application/json", **(headers or {})}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(address["url"] + path, data, sent)  # noqa: S310 - our own server
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS) as answer:  # noqa: S310
            return cast("bytes", answer.read())

    def start(self) -> None:
        """Start PostgreSQL, the service, its HTTPS port, and the hosts."""
        worker_url = self._start_postgres()
        env = self.programs.env | {
            "GRADIENT_DATABASE__URL": f"postgresql://postgres@/postgres?host={self.folder}/postgres",
            "GRADIENT_DATABASE__WORKER_URL": worker_url,
            "GRADIENT_API__PORT": "0",
        }
        server = str(PROGRAMS / "gradient-server")
        run([server, "migrate"], env=env)
        self._spawn([server, "api"], env)
        url = wait_until(lambda: ready(self.folder / "home" / "cli.json", 0), "the service")
        certificate, key = self.folder / "certificate.pem", self.folder / "key.pem"
        subject = ("-subj", "/CN=cluster", "-addext", f"subjectAltName=IP:{NETWORK}.1", "-days", "30")
        request = ("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *subject)
        run([*request, "-keyout", str(key), "-out", str(certificate)])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        serve_tls(context, int(url.rpartition(":")[2]))
        for number, name in enumerate(HOSTS, 11):
            invitation = run([server, "workers", "invite"], env=env).split()[-1]
            self._start_host(name, number, invitation, certificate)
        wait_until(lambda: len(self.request("/workers")["workers"]) == len(HOSTS), "its hosts")

    def _start_postgres(self) -> str:
        """Start a database server for this network; return its URL for the role of workers."""
        binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
        data = self.folder / "postgres"
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        as_user = ("runuser", "-u", "postgres", "--", "env", "-C", str(data))
        run([*as_user, str(binaries / "initdb"), "-D", str(data / "data"), "-A", "trust", "--no-sync"])
        with (data / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
        options = ("-k", str(data), "-c", f"listen_addresses={NETWORK}.1", "-c", "fsync=off")
        options += ("-c", "dynamic_shared_memory_type=mmap")  # a file of the folder, which goes with it
        self._spawn([*as_user, str(binaries / "postgres"), "-D", str(data / "data"), *options])
        wait_until((data / ".s.PGSQL.5432").exists, "PostgreSQL")
        return f"postgresql://gradient_worker:{secrets.token_hex()}@{NETWORK}.1/postgres"

    def _start_host(self, name: str, number: int, invitation: str, trusted: Path) -> None:
        namespaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
        env = self.programs.env | {
            "SSL_CERT_FILE": str(trusted),
            "PACKAGES": str(self.packages or ""),
            "NETWORK": NETWORK,
            "URL": f"https://{NETWORK}.1:{TLS_PORT}",
            "PATH": f"{PROGRAMS}:/usr/sbin:{os.environ['PATH']}",
        }
        command = ["unshare", *namespaces, "sh", "-c", HOST, "host", name, str(number), str(self.folder)]
        self.hosts[name] = host = self._spawn(command, env, name)
        log = self.folder / f"{name}.log"
        wait_until(lambda: "network" in log.read_text(), f"host {name}")
        run(["ip", "link", "add", f"gj-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)])
        run(["ip", "link", "set", f"gj-{name}", "master", "gj-cluster", "up"])
        with cast("IO[bytes]", host.stdin) as given:
            given.write(f"{invitation}\n".encode())

    def _spawn(
        self, command: list[str], env: dict[str, str] | None = None, name: str = "service"
    ) -> "subprocess.Popen[bytes]":
        """Start a program that ends with the cluster."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own
                command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

        def end() -> None:
            process.terminate() if name == "service" else process.kill()
            process.wait(WAIT_SECONDS)

        self.stack.callback(end)
        return process


C = TypeVar("C", bound=Cluster)


def contain(command: list[str]) -> int | None:
    """Run this program again, in a namespace of processes, with a bridge to the hosts' network and a folder.

    The kernel ends all processes of the namespace with this one. The first is a shell, which waits for every orphan:
    what is left of a killed server would keep its process id, and so its lock.

    Args:
        words: The command that starts it again.

    Returns:
        Its exit code; None inside.
    """
    if INSIDE in os.environ:
        return None
    require_machine()
    with ExitStack() as stack:
        only = stack.enter_context(socket.socket(socket.AF_UNIX))
        try:
            only.bind(f"\0{PREFIX}")  # a name of this network, which ends with its process
        except OSError:
            raise DemoError("a cluster runs already on this machine: end it, or wait for its end.") from None
        remove_killed()
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        lock = stack.enter_context(open_folder(Path(folder)))
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(["ip", "link", "add", "gj-cluster", "type", "bridge"])
        stack.callback(run, ["ip", "link", "delete", "gj-cluster"])
        run(["ip", "address", "add", f"{NETWORK}.1/24", "dev", "gj-cluster"])
        run(["ip", "link", "set", "gj-cluster", "up"])
        ended_with_this = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child")
        inside = subprocess.Popen(  # noqa: S603 - our own
            [*ended_with_this, "--pid", "--mount-proc", "--ipc", "sh", "-c", '"$@"; exit $?', "sh", *command],
            env=os.environ | {INSIDE: folder},
            pass_fds=(only.fileno(), lock),
            process_group=0,  # signals reach it from here alone: `unshare` keeps none of them from it
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.killpg(inside.pid, number))
        return inside.wait() % 256


def remove_killed() -> None:
    """Remove what clusters left that were killed: their bridge and their folders."""
    with suppress(DemoError):  # there is none
        run(["ip", "link", "delete", "gj-cluster"])
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), open_folder(left) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another network's cluster holds its own
            shutil.rmtree(left)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def serve_tls(context: ssl.SSLContext, port: int) -> None:
    """Take HTTPS from the hosts' network to the service, as a proxy in front of it does."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one side is gone
        finally:
            writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the service is being restarted
            writer.close()
            return
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(pass_on, f"{NETWORK}.1", TLS_PORT, ssl=context)
        await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()


@contextmanager
def running(kind: type[C], packages: Path | None = None) -> Iterator[C]:
    """Run a cluster during the block, inside of `contain`."""
    with ExitStack() as stack:
        folder = Path(os.environ[INSIDE])
        folder.chmod(0o755)  # PostgreSQL is another user
        cluster = kind(folder, stack, packages=packages)
        say(f"Starting PostgreSQL, the service and the hosts {', '.join(HOSTS)}; their files and logs: {folder}")
        try:
            cluster.start()
            yield cluster
        except DemoError:
            for log in sorted(folder.glob("*.log")):
                say(f"\n{log.name} ends with:\n{log.read_text(errors='replace')[-2000:]}")
            raise


def require_machine() -> None:
    missing = [
        program for program in ("ip", "openssl", "runuser", "setpriv", "unshare") if shutil.which(program) is None
    ]
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        missing.append("PostgreSQL's server")
    if os.geteuid() != 0:
        raise DemoError("it makes namespaces and a network, for which it needs root.")
    if missing:
        raise DemoError(
            f"missing: {', '.join(missing)} (Debian: apt-get install iproute2 openssl postgresql util-linux)."
        )


def prepare() -> Path | None:
    """Fetch what a training needs, as the hosts reach no package index: MNIST, and the trainer's packages.

    Returns:
        The folder with the packages; None: they cannot be installed.
    """
    prepare_data()
    programs = Programs.for_home(HOME)
    with server(programs):
        command = ("--machineType", "CPU", "--command", "python -c 'import gradient_trainer'")
        if programs.run("jobs", "create", *command):
            say("So the hosts have Python's own library only, and the training below will not run.")
            return None
    return HOME / "environments"


def up() -> None:
    with running(Cluster, prepare()) as cluster:
        programs, data = cluster.programs, HOME / "storage" / "datasets" / "mnist.npz"
        if data.exists() and programs.run("storage", "put", str(data)):
            raise DemoError("the data set could not be stored.")
        address = json.loads((cluster.folder / "home" / "cli.json").read_text())
        say(f"""
Ready: {address["url"]}/ui (it asks for a key once: the one in {cluster.folder}/home/cli.json)
In other terminals, as root, for example:

  on() {{ {sys.executable} {Path(__file__).resolve()} on "$@"; }}; cd {EXAMPLE}
  on {HOSTS[0]} gradient-cli jobs create --detach       # a training, on one of the hosts
  on {HOSTS[0]} gradient-cli jobs show JOB              # on which
  on {HOSTS[1]} gradient-cli jobs logs JOB --follow     # its log, live, from another host
  on {HOSTS[2]} gradient-cli jobs exec JOB -- uname -n  # a command in it
  on {HOSTS[1]} gradient-cli jobs artifacts get JOB     # its outputs, checked by sha256
  on {HOSTS[2]}                                         # a shell on a host

Ctrl-C ends all of it.""")
        threading.Event().wait()


def on(name: str, *command: str) -> None:
    """Run a command on a host of the cluster that runs, where `gradient-cli` knows the service."""
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if (
            arguments[:2] == ["sh", "-c"]
            and arguments[3:5] == ["host", name]
            and in_this_network(process.parents()[1].pid)
        ):
            folder = Path(arguments[6])
            env = Programs.for_home(folder / "home").env | {
                "GRADIENT_URL": f"https://{NETWORK}.1:{TLS_PORT}",
                "GRADIENT_API_KEY": json.loads((folder / "home" / "cli.json").read_text())["apiKey"],
                "SSL_CERT_FILE": str(folder / "certificate.pem"),
                "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            }
            entered = ["nsenter", "--all", f"--wd={Path.cwd()}", "--target", str(process.pid), "--"]
            os.execvpe(entered[0], [*entered, *(command or ["bash"])], env)  # noqa: S606 - what its user says
    raise DemoError(f"no host {name} of a cluster runs: make cluster-up; its hosts are {', '.join(HOSTS)}.")


def in_this_network(process: int) -> bool:
    return Path(f"/proc/{process}/ns/net").samefile("/proc/self/ns/net")


def demo() -> None:
    """Run jobs, kill a host with all its processes in the middle, and show who ran what."""
    began = time.monotonic()
    with running(Cluster) as cluster:
        say(f"{JOBS} jobs are submitted, after {time.monotonic() - began:.0f} s")
        for _ in range(JOBS):
            cluster.request("/jobs", {"machineType": "CPU", "command": COMMAND, "maxAttempts": 3})

        def jobs() -> list[dict[str, Any]]:
            return cast("list[dict[str, Any]]", cluster.request(f"/jobs?limit={JOBS}")["jobs"])

        def ended() -> list[dict[str, Any]]:
            return [job for job in jobs() if job["state"] not in {"Pending", "Running"}]

        def runs_on(host: str) -> bool:
            here = [job["id"] for job in jobs() if job["state"] == "Running" and job["host"] == host]
            return any(cluster.read(f"/jobs/{job}/logs/raw").count(b"\n") == 1 for job in here)

        wait_until(lambda: len(ended()) >= KILL_AFTER and runs_on(HOSTS[1]), "some jobs")
        cluster.hosts[HOSTS[1]].kill()
        say(f"{HOSTS[1]} is killed with all its processes, after {time.monotonic() - began:.0f} s")
        wait_until(lambda: len(ended()) == JOBS, "all jobs")
        show_runs(cluster, ended())
    say(f"Done in {time.monotonic() - began:.0f} s.")


def show_runs(cluster: Cluster, jobs: list[dict[str, Any]]) -> None:
    """Print who ran what, and how often.

    Raises:
        DemoError: A job has not ended well, has no result, or ran more often than it was started.
    """
    ran: Counter[str] = Counter()
    wrong = 0
    say(f"\n{'JOB':16} {'STATE':9} RUNS")
    for job in jobs:
        lines = cluster.read(f"/jobs/{job['id']}/logs/raw").decode().splitlines()
        begun, done = ([line.split()[-1] for line in lines if line.startswith(word)] for word in ("begins", "ends"))
        ran.update(done)
        say(f"{job['id']:16} {state_word(job['state']):9} {len(begun)}: {', '.join(begun)}")
        kept = cluster.read(f"/jobs/{job['id']}/artifacts/file/attempt")
        wrong += job["state"] != "Stopped" or not done or len(begun) > job["attempt"] or int(kept) != job["attempt"]
    say("\n" + ", ".join(f"{name} completed {ran[name]}" for name in HOSTS))
    if wrong:
        raise DemoError(f"{wrong} of {len(jobs)} jobs did not end well")


def wait_until(condition: Callable[[], Any], what: str) -> Any:  # noqa: ANN401 - what it returns
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise DemoError(f"waited {WAIT_SECONDS} s for {what}")
        time.sleep(0.1)
    return value


def run(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise DemoError(f"{shlex.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def main(what: str, *arguments: str) -> None:
    if what == "on":
        on(*arguments)
    elif code := contain([sys.executable, __file__, what]):
        sys.exit(code)
    elif code is None:
        {"up": up, "demo": demo}[what]()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left
    sys.exit(told(lambda: main(*sys.argv[1:])))
