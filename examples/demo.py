"""`make demo`: a real training as a job, from submission to its outputs, with its own server.

It uses only programs that users have: `gradient-server up` and `gradient-cli`. Its data is kept in `.demo/`. It fails
(exit code 1) if the job fails, if the network recognizes too few test images, or if a downloaded output differs from
the stored one.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_data

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("GRADIENT_DEMO_HOME", ROOT / ".demo")).resolve()
PROGRAMS = Path(sys.executable).parent
EXAMPLE = ROOT / "examples" / "mnist"
MACHINE_TYPE = "TPU"
MNIST_PLACES = (ROOT.parent / "shared" / "data" / "mnist.npz", Path("~/.keras/datasets/mnist.npz").expanduser())
ENOUGH = {"mnist": 0.985, "digits": 0.97}
"""Share of the test images that must be recognized, by data set."""
START_SECONDS = 60
STOP_SECONDS = 30


class DemoError(Exception):
    """The demo did not work as it should."""


Summary = Callable[[dict[str, Any], dict[str, Any], str], None]
"""Prints the results, from the job, its training's result, and a description of its data."""


@dataclass(frozen=True)
class Programs:
    """The two programs, in the demo's own environment: no server, key or setting of the user takes part."""

    env: dict[str, str]
    folder: Path = EXAMPLE

    @classmethod
    def for_home(cls, home: Path) -> "Programs":
        """Create an environment that keeps all data under `home`."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
        ours = {"GRADIENT_HOME": str(home), "GRADIENT_LOG_LEVEL": "warning", "XDG_CONFIG_HOME": str(home / "config")}
        return cls(env | ours)

    def run(self, *arguments: str) -> int:
        """Run `gradient-cli` in the folder and print the command as typed; return its exit code."""
        say(f"\n$ gradient-cli {shlex.join(arguments)}")
        command = [str(PROGRAMS / "gradient-cli"), *arguments]
        return subprocess.run(command, cwd=self.folder, env=self.env, check=False).returncode  # noqa: S603 - our own

    def ask(self, *arguments: str) -> Any:  # noqa: ANN401 - whatever JSON the command prints
        """Run `gradient-cli … --json` and return its output."""
        command = [str(PROGRAMS / "gradient-cli"), *arguments, "--json"]
        done = subprocess.run(  # noqa: S603 - our own
            command, cwd=self.folder, env=self.env, check=True, stdout=subprocess.PIPE
        )
        return json.loads(done.stdout)


def main() -> int:
    """Run the demo; return the exit code."""
    programs = Programs.for_home(HOME)
    return told(lambda: show(programs, MACHINE_TYPE, lambda *shown: summarise(programs, *shown)))


def told(demo: Callable[[], None]) -> int:
    """Run a demo and report a failure; return the exit code."""
    try:
        demo()
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def show(programs: Programs, machine_type: str, summary: Summary) -> None:
    """Run a training from its submission to its outputs.

    Raises:
        DemoError: The training failed, or its outputs are wrong.
    """
    began = time.monotonic()
    data = prepare_data()
    with server(programs) as url:
        job = train(programs, machine_type)
        result = fetch(programs, job)
        summary(job, result, data)
    say(f"\nDone in {time.monotonic() - began:.0f} s. The server of the demo has stopped ({url}).")
    check_accuracy(result)
    say("`make up` keeps one running; with this job in it: make up GRADIENT_HOME=.demo")
    say(f"Then look at http://127.0.0.1:8780/ui/jobs/{job['id']} (it asks for a key once: the one in .demo/cli.json)")


def prepare_data() -> str:
    """Put MNIST into the data sets of jobs: a copy of this machine, or downloaded where the network lets us.

    Returns:
        A description of the data to train on.

    Raises:
        DemoError: GRADIENT_DEMO_DATA names a file that is not there.
    """
    chosen = os.environ.get("GRADIENT_DEMO_DATA")
    places = [Path(chosen)] if chosen else MNIST_PLACES
    source = next((path for path in places if path.is_file()), None)
    target = HOME / "storage" / "datasets" / "mnist.npz"
    if source is None and chosen:
        raise DemoError(f"GRADIENT_DEMO_DATA={chosen}: there is no such file. Name an mnist.npz as Keras keeps it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source is None:
        try:
            demo_data.download(target)
        except demo_data.DownloadFailed as error:
            target.unlink(missing_ok=True)
            say(f"Data: the digits that come with scikit-learn (1,797 images): {error}")
            say("      For the real MNIST (70,000 images) name an mnist.npz as Keras keeps it:")
            say("      make demo GRADIENT_DEMO_DATA=/path/to/mnist.npz")
            return "the digits that come with scikit-learn"
        source = target
    else:
        new = target.with_suffix(".new")
        shutil.copyfile(source, new)
        new.replace(target)
    say(f"Data: the real MNIST, 60,000 training and 10,000 test images, from {source}")
    return f"the real MNIST ({source})"


@contextlib.contextmanager
def server(programs: Programs, *options: str) -> Iterator[str]:
    """Run `gradient-server up` on a free port while the block runs; yields its address."""
    log = HOME / "server.log"
    HOME.mkdir(exist_ok=True)
    address = HOME / "cli.json"
    before = address.stat().st_mtime_ns if address.exists() else 0
    command = ["up", "--port", "0", *options]
    say(f"\n$ gradient-server {shlex.join(command)}     # GRADIENT_HOME={HOME}")
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own
            [str(PROGRAMS / "gradient-server"), *command],
            env=programs.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C must reach this process only: it stops jobs before the server
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (url := ready(address, before)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the server did not start; it said:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        say(f"Ready: {url}")
        yield url
    except KeyboardInterrupt:
        stop_jobs(programs)
        raise
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def ready(address: Path, before: int) -> str | None:
    """Return the address of the new server once it is ready; None before."""
    try:
        if address.stat().st_mtime_ns == before:
            return None
        url = str(json.loads(address.read_text(encoding="utf-8"))["url"])
        with urllib.request.urlopen(f"{url}/readiness", timeout=5):  # noqa: S310 - the address our server wrote
            return url
    except (OSError, ValueError, urllib.error.URLError):
        return None


def stop_jobs(programs: Programs) -> None:
    """Stop an interrupted training: jobs outlive the server, but this one should not outlive the demo."""
    with contextlib.suppress(subprocess.CalledProcessError, KeyError, ValueError):
        for job in programs.ask("jobs", "list", "--state", "Pending,Running")["jobs"]:
            programs.run("jobs", "stop", job["id"])
            programs.run("jobs", "wait", job["id"], "--timeout", str(STOP_SECONDS))


def train(programs: Programs, machine_type: str) -> dict[str, Any]:
    """Submit examples/mnist and follow it to its end; return the job.

    Raises:
        DemoError: The job failed.
    """
    code = programs.run("jobs", "create", "--machineType", machine_type)
    job: dict[str, Any] = programs.ask("jobs", "list", "--limit", "1")["jobs"][0]
    if code or job["state"] != "Stopped":
        raise DemoError(f"job {job['id']} ended with exit code {code}: {job['state']}: {job['message']}")
    return job


def fetch(programs: Programs, job: dict[str, Any]) -> dict[str, Any]:
    """List the job's outputs, download some and compare them with the stored ones; return the training's result.

    Raises:
        DemoError: A downloaded file differs from the stored one.
    """
    programs.run("jobs", "artifacts", "list", job["id"])
    target = HOME / "downloads" / job["id"]
    wanted = ("model.keras", "result.json")
    if programs.run("jobs", "artifacts", "get", job["id"], *wanted, "--to", str(target)):
        raise DemoError("the outputs could not be downloaded")
    listed = {file["path"]: file for file in programs.ask("jobs", "artifacts", "list", job["id"])["files"]}
    stored = HOME / "artifacts" / job["id"][:3] / job["id"] / str(job["attempt"]) / "files"
    for name in wanted:
        content = (target / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != listed[name]["sha256"] or content != (stored / name).read_bytes():
            raise DemoError(f"{name} came back changed: sha256 {digest}, listed {listed[name]['sha256']}")
        say(f"{name}: {len(content):,} bytes, the same as stored byte for byte, sha256 {digest}")
    result: dict[str, Any] = json.loads((target / "result.json").read_bytes())
    return result


def summarise(programs: Programs, job: dict[str, Any], result: dict[str, Any], data: str) -> None:
    """Print the results."""
    types = programs.ask("machine-types")["machineTypes"]
    machine = next(machine_type for machine_type in types if machine_type["name"] == job["machineType"])
    seconds, price = job["durationSeconds"], job["pricePerHour"]
    say(
        f"""
Test accuracy  {result["test_accuracy"]:.2%} of {result["test_examples"]:,} test images, {result["epochs"]} epochs
Data           {data}
Pace           {result["steps_per_second"]:.1f} steps/s, {result["examples_per_second"]:,.0f} images/s
Duration       {seconds:.1f} s, from the start of the command to its end
Machine        {machine["accelerator"]} ({machine["name"]}), simulated: this computer's CPU did the work, so pace and
               duration are the CPU's; a real one would take another time
Cost           ${job["cost"]:.4f} is what {seconds:.1f} s would have cost there at ${price:.2f} an hour
               ({machine["priceSource"]})
Kept in        {HOME}"""
    )


def check_accuracy(result: dict[str, Any]) -> None:
    """Check that the model has learned.

    Raises:
        DemoError: Too few test images were recognized.
    """
    accuracy, enough = result["test_accuracy"], ENOUGH[result["data"]]
    if accuracy < enough:
        raise DemoError(f"{accuracy:.2%} of the test images were recognized; at least {enough:.1%} should be")


def say(text: str) -> None:
    """Print and flush, to keep the order with the output of other programs."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
