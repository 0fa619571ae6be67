"""`make demo-docker`: the training of `make demo` in a container, on this machine's Docker engine.

It starts no engine, changes no firewall and needs no extra rights: it uses the engine at GRADIENT_DOCKER__URL (default:
/var/run/docker.sock), and the container has no network. The trainer's image is built if it is missing: with a registry
if one can be reached, else only from Debian's and Python's packages.
"""

import os
import shutil
import subprocess
import sys
from typing import Any

import demo
from demo import ROOT, DemoError, Programs, say

IMAGE = "gradient/trainer:0.1.0"
MACHINE_TYPE = "CPU"
ENGINE = os.environ.get("GRADIENT_DOCKER__URL") or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
SETTINGS = {
    "GRADIENT_MACHINES__SIMULATE": "false",
    "GRADIENT_DOCKER__URL": ENGINE,
    "GRADIENT_DOCKER__PULL": "never",
    "GRADIENT_DOCKER__NETWORK": "none",  # so that no firewall has to be set up for it
}


def main() -> int:
    """Run the demo; return its exit code."""
    programs = Programs(Programs.for_home(demo.HOME).env | SETTINGS)

    def in_container() -> None:
        require_engine()
        have_image()
        demo.show(programs, MACHINE_TYPE, summarise)

    return demo.told(in_container)


def require_engine() -> None:
    """Check that an engine answers.

    Raises:
        DemoError: No engine answers; the message says what to do.
    """
    if shutil.which("docker") is None:
        raise DemoError("no docker command is here. Install Docker (Debian: apt-get install docker.io).")
    asked = docker("version", "--format", "{{.Server.Version}}", capture_output=True, text=True)
    if asked.returncode:
        raise DemoError(
            f"no Docker engine answers at {ENGINE}. This demo starts none, because that takes root: start it "
            "(sudo systemctl start docker), have the right to use it (the group docker), or name another one with "
            "GRADIENT_DOCKER__URL."
        )
    say(f"Engine: Docker {asked.stdout.strip()} at {ENGINE}")


def have_image() -> None:
    """Build the trainer's image, if it is missing.

    Raises:
        DemoError: The image cannot be built here.
    """
    if docker("image", "inspect", IMAGE, capture_output=True).returncode == 0:
        say(f"Image: {IMAGE} is there already")
        return
    trainer = ROOT / "images" / "trainer"
    say(f"Image: {IMAGE} is not there; building it with the registry (make images)")
    if docker("build", "--tag", IMAGE, str(trainer)).returncode == 0:
        return
    say("That did not work, most likely because no registry can be reached; building it without (make images-offline)")
    env = os.environ | {"DOCKER_HOST": ENGINE}
    if subprocess.run([str(trainer / "offline")], env=env, check=False).returncode:  # noqa: S603 - our own
        raise DemoError("the image could not be built; what is above says why")


def docker(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":  # noqa: ANN401 - subprocess's own
    """Run Docker's command on the demo's engine."""
    command = ["docker", "--host", ENGINE, *arguments]
    env = os.environ | {"DOCKER_BUILDKIT": "0"}  # the builder that every engine has
    return subprocess.run(command, env=env, check=False, **options)  # noqa: S603 - Docker, as the user has it


def summarise(job: dict[str, Any], result: dict[str, Any], data: str) -> None:
    """Print the results."""
    say(
        f"""
Test accuracy  {result["test_accuracy"]:.2%} of {result["test_examples"]:,} test images, {result["epochs"]} epochs
Data           {data}
Pace           {result["steps_per_second"]:.1f} steps/s, {result["examples_per_second"]:,.0f} images/s
Duration       {job["durationSeconds"]:.1f} s, from the start of the command in its container to its end
Image          {job["image"]}, {job["imageDigest"]}
Kept in        {demo.HOME}"""
    )


if __name__ == "__main__":
    sys.exit(main())
