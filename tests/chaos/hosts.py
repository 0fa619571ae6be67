"""`make chaos-hosts`: break hosts that share only a network, and what they need; then check every job.

The cluster is that of `make demo-cluster`, in a network of its own, but a host keeps its disk when its power is cut.
"""

import argparse
import hashlib
import os
import random
import re
import secrets
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import cluster
from cluster import HOSTS, NETWORK, Cluster, contain, run, running, wait_until
from demo import PROGRAMS, Programs

BUCKET_PORT = 5000
SERVICE = {
    "GRADIENT_API__PORT": "8780",
    "GRADIENT_STORE__URL": "s3://artifacts/prefix",
    "AWS_ENDPOINT_URL": f"http://{NETWORK}.1:{BUCKET_PORT}",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
"""Settings of the service alone: hosts have no keys of the bucket."""
PASSWORD = secrets.token_hex()
LINES = 25
DRAIN_SECONDS = 900
ENDED = frozenset({"Stopped", "Failed", "Error", "Cancelled"})
COMMAND = f"""echo "begins $GRADIENT_ATTEMPT on $(uname -n)"
for i in $(seq {LINES}); do echo "line $i of $GRADIENT_ATTEMPT"; sleep 0.2; done
head -c 300000 /dev/urandom >"$GRADIENT_ARTIFACTS_DIR/data"
sum=$(sha256sum <"$GRADIENT_ARTIFACTS_DIR/data"); echo "ends $GRADIENT_ATTEMPT with ${{sum%% *}}" """
_DISK = 'mkdir -p "$folder/disks/$name"; mount --bind "$folder/disks/$name" "$folder"'
HOST = cluster.HOST.replace('mount -t tmpfs cluster "$folder"', _DISK).replace(
    "gradient-server join", '[ -e "$folder/env" ] || gradient-server join'
)
"""The script of a host, with a disk that outlives it."""
REPEATED = ("sh", "-c", 'while :; do "$@" </dev/null; sleep 1; done', "sh")
"""Words before a program that starts again after its end, as systemd does it."""


@dataclass
class Lab(Cluster):
    """A cluster whose parts come back after their ends."""

    power_cut: set[str] = field(default_factory=set)
    allowed: dict[str, str] = field(default_factory=dict)
    beginning: dict[str, tuple[str, int, str, Path]] = field(default_factory=dict)

    @property
    def programs(self) -> Programs:
        return Programs(super().programs.env | {"GRADIENT_QUEUE__BROKER_URL": f"redis://:{PASSWORD}@{NETWORK}.1/0"})

    def start(self) -> None:
        options = ("--requirepass", PASSWORD, "--dir", str(self.folder), "--appendonly", "yes", "--save", "")
        self._spawn(["redis-server", *options])
        self._spawn([str(PROGRAMS / "moto_server"), "-H", "0.0.0.0", "-p", str(BUCKET_PORT)])  # noqa: S104 - its own network
        wait_until(self._made_bucket, "the bucket")
        super().start()

    def _made_bucket(self) -> bool:
        signed = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        address = f"http://127.0.0.1:{BUCKET_PORT}/artifacts"
        made = urllib.request.Request(address, method="PUT", headers={"Authorization": signed})
        with suppress(OSError), urllib.request.urlopen(made, timeout=10):  # noqa: S310
            return True
        return False

    def _spawn(self, command: list[str], env: dict[str, str] | None = None, name: str = "service"):
        if name in HOSTS:
            return super()._spawn(command, env, name)
        fixed = None if env is None else env | SERVICE
        process = super()._spawn([*REPEATED, *command], fixed, name)
        self.stack.callback(os.killpg, process.pid, signal.SIGKILL)
        return process

    def _start_host(self, name: str, number: int, invitation: str, trusted: Path) -> None:
        self.beginning[name] = (name, number, invitation, trusted)
        super()._start_host(name, number, invitation, trusted)

    def processes(self, name: str) -> list[int]:
        """Return the processes of a host, of the service (`api`), of PostgreSQL, Redis or the bucket, oldest first."""
        if name in HOSTS:
            host = self.hosts[name].pid
            inside = read_link(host, "ns/pid_for_children")
            return [one for one in all_processes() if read_link(one, "ns/pid") == inside]
        word = {"api": b"\0api\0", "postgres": b"postgres", "redis": b"redis-server", "bucket": b"moto_server"}[name]
        ours = [one for one in all_processes() if read_link(one, "ns/net") == read_link(os.getpid(), "ns/net")]
        found = [one for one in ours if word in command_line(one)[:200] and b"while :" not in command_line(one)]
        return [one for one in found if one != os.getpid()]

    def cut_power(self, name: str) -> None:
        self.hosts[name].kill()
        self.hosts[name].wait()

    def boot(self, name: str) -> None:
        (self.folder / f"{name}.log").write_text("")
        self._start_host(*self.beginning[name])

    def link(self, name: str, state: str) -> None:
        run(["ip", "link", "set", f"gj-{name}", state])


def all_processes() -> list[int]:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def read_link(process: int, name: str) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{process}/{name}").readlink())
    return ""


def command_line(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def send(processes: list[int], number: signal.Signals) -> None:
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, number)


def kill(lab: Lab, name: str, _: float) -> None:
    send(lab.processes(name), signal.SIGKILL)


def kill_worker(lab: Lab, name: str, _: float) -> None:
    send([one for one in lab.processes(name) if b"\0worker\0" in command_line(one)], signal.SIGKILL)


def freeze(lab: Lab, name: str, seconds: float) -> None:
    stopped = lab.processes(name)
    send(stopped, signal.SIGSTOP)
    time.sleep(seconds)
    send(stopped, signal.SIGCONT)


def partition(lab: Lab, name: str, seconds: float) -> None:
    lab.link(name, "down")
    time.sleep(seconds)
    lab.link(name, "up")


def cut_power(lab: Lab, name: str, seconds: float) -> None:
    lab.cut_power(name)
    time.sleep(seconds)
    lab.boot(name)


Fault = Callable[[Any, str, float], None]
FaultTable = dict[str, list[tuple[Fault, tuple[float, ...], int]]]
FAULTS: FaultTable = {
    # part: what is done to it, seconds, weight
    **{
        name: [
            (kill_worker, (0,), 6),
            (cut_power, (1, 10, 40), 4),
            (freeze, (3, 10, 30), 4),
            (partition, (3, 10, 30), 5),
            (freeze, (90,), 1),
            (partition, (90,), 1),
        ]
        for name in HOSTS
    },
    "api": [(kill, (0,), 4), (freeze, (3, 10), 3)],
    "postgres": [(kill, (0,), 3), (freeze, (3, 10), 2)],
    "redis": [(kill, (0,), 3), (freeze, (3, 10), 2)],
    "bucket": [(freeze, (3, 10, 60), 1)],  # it keeps its objects in memory
}


class Faults:
    """Break each part again and again, all parts at the same time."""

    def __init__(self, lab: Any, table: FaultTable, seed: int, count: int, log: Callable[[str], None]) -> None:
        self.done: Counter[str] = Counter()
        self._lab, self._table, self._seed, self._count, self._log = lab, table, seed, count, log
        self._lock = threading.Lock()
        self._begun = 0
        self._failed: list[BaseException] = []

    def run(self, first: dict[str, tuple[Fault, float]]) -> None:
        """`first`: the faults, with their seconds, with which some parts begin."""
        threads = [threading.Thread(target=self._break, args=(part, first.get(part))) for part in self._table]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if self._failed:
            raise self._failed[0]

    def _break(self, part: str, first: tuple[Fault, float] | None) -> None:
        chance = random.Random(f"{self._seed} {part}")  # noqa: S311 - repeatable, not secret
        try:
            if first is not None:
                self._inject(first[0], part, first[1])
            while self._next():
                fault, lengths, _ = chance.choices(self._table[part], [one[2] for one in self._table[part]])[0]
                self._inject(fault, part, chance.choice(lengths))
                time.sleep(chance.uniform(4, 12))
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failed.append(error)

    def _next(self) -> bool:
        with self._lock:
            self._begun += 1
            return self._begun <= self._count

    def _inject(self, fault: Fault, part: str, seconds: float) -> None:
        fault(self._lab, part, seconds)
        self.done[f"{fault.__name__} {part} {seconds:g} s"] += 1
        self._log(f"{sum(self.done.values())} {fault.__name__} {part} {seconds:g} s")


class Submitter(threading.Thread):
    """Submits jobs until it is told to end; a submission is repeated with its key until it is answered."""

    def __init__(self, lab: Any, most_waiting: int) -> None:
        super().__init__(daemon=True)
        self.accepted: list[str] = []
        self.end = threading.Event()
        self._lab, self._most = lab, most_waiting

    def run(self) -> None:
        while not self.end.wait(0.5):
            with suppress(OSError):
                states = Counter(one["state"] for one in self._lab.request("/jobs?limit=100")["jobs"])
                if states["Pending"] < self._most:
                    self._submit(f"chaos-{len(self.accepted)}")

    def _submit(self, key: str) -> None:
        body = {"machineType": "CPU", "command": COMMAND, "maxAttempts": 20}
        while True:
            with suppress(OSError):
                self.accepted.append(self._lab.request("/jobs", body, {"Idempotency-Key": key})["id"])
                return
            time.sleep(0.5)


def violations_of(lab: Any, job: str) -> Iterator[str]:
    """Yield what is wrong with a job that has ended."""
    found = lab.request(f"/jobs/{job}")
    attempts = re.split(r"(?m)^(?=begins )", lab.read(f"/jobs/{job}/logs/raw").decode())[1:]
    numbers = [one.split()[1] for one in attempts]
    if len(set(numbers)) != len(numbers):
        yield f"attempts ran more than once: {numbers}"
    if (found["state"], found["exitCode"]) != ("Stopped", 0):
        if found["reason"] != lab.allowed.get(job):
            yield f"ended as {found['state']}: {found['reason']}"
        return
    for text in attempts:
        number = text.split()[1]
        lines = re.findall(rf"^line (\d+) of {number}$", text, re.MULTILINE)
        if lines != [str(one) for one in range(1, len(lines) + 1)]:
            yield f"attempt {number} has lines {lines}"
    ends = re.findall(r"^ends (\d+) with (\w+)$", attempts[-1], re.MULTILINE)
    if len(lines) != LINES or len(ends) != 1:
        yield f"the last attempt has {len(lines)} lines and {len(ends)} ends"
        return
    kept = hashlib.sha256(lab.read(f"/jobs/{job}/artifacts/file/data")).hexdigest()
    if kept != ends[0][1]:
        yield f"its artifact is {kept}, and the job wrote {ends[0][1]}"


def break_and_check(
    lab: Any,
    table: FaultTable,
    seed: int,
    count: int,
    log: Callable[[str], None],
    first: dict[str, tuple[Fault, float]],
) -> list[str]:
    """Return what was wrong after so many faults."""
    jobs, faults = Submitter(lab, most_waiting=6), Faults(lab, table, seed, count, log)
    jobs.start()
    faults.run(first)
    jobs.end.set()
    jobs.join()
    log(f"the last fault is mended; {len(jobs.accepted)} jobs were accepted")
    wrong = [] if len(set(jobs.accepted)) == len(jobs.accepted) else ["two submissions have one job"]
    if len(jobs.accepted) * 10 < count:
        wrong.append(f"only {len(jobs.accepted)} jobs were accepted meanwhile")
    cluster.WAIT_SECONDS = DRAIN_SECONDS
    for job in jobs.accepted:
        wait_until(lambda job=job: lab.request(f"/jobs/{job}")["state"] in ENDED, f"job {job}")
        wrong += [f"{job} {one}" for one in violations_of(lab, job)]
    for what, times in sorted(faults.done.items()):
        log(f"{times:4} {what}")
    log(f"{sum(faults.done.values())} faults, {len(jobs.accepted)} jobs, {len(wrong)} violations")
    return wrong


def parse_arguments(name: str, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"make {name}", description=description)
    parser.add_argument("--faults", type=int, default=120, help="how many are injected")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of every choice")  # noqa: S311
    parser.add_argument("--no-long-fault", action="store_true", help="no part is away for ten minutes")
    return parser.parse_args()


def timed_log() -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since now."""
    began = time.monotonic()

    def log(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f}  {line}\n")
        sys.stdout.flush()

    return log


def main() -> int:
    """Return 0 if there was no violation."""
    given = parse_arguments("chaos-hosts", __doc__)
    if os.environ.get("GRADIENT_CHAOS_NETWORK") != "own":
        inside = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", sys.executable, "-m")
        os.environ["GRADIENT_CHAOS_NETWORK"] = "own"
        os.execvp(inside[0], [*inside, "chaos.hosts", *sys.argv[1:]])  # noqa: S606 - ours
    if (code := contain([sys.executable, "-m", "chaos.hosts", *sys.argv[1:]])) is not None:
        return code
    log = timed_log()
    log(f"seed {given.seed}, {given.faults} faults")
    cluster.HOST = HOST
    with running(Lab) as lab:
        first = {} if given.no_long_fault else {HOSTS[-1]: (partition, 600.0)}
        wrong = break_and_check(lab, FAULTS, given.seed, given.faults, log, first)
    for one in wrong:
        log(one)
    return int(bool(wrong))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left
    sys.exit(main())
