"""`gradient-server join`: make this machine a host of a service, with nothing shared but the network."""

import argparse
import os
import socket
from pathlib import Path

from core.errors import SettingsInvalid, SpecInvalid, StoreUnavailable
from core.settings import Settings
from core.system.filesystem import write_atomically
from gradient_server.commands import doctor
from worker.service_link.link import ServiceLink

_URL = "GRADIENT_WORKER__SERVICE_URL"
_SECONDS = 60.0  # the service may be starting, and a lost answer costs the invitation


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Redeem an invitation, write this host's settings, and check what it has; return 1 if something is missing."""
    name = parsed.name or socket.gethostname()
    try:
        os.environ[_URL] = url = str(Settings(worker={"service_url": parsed.url}).worker.service_url)
    except SettingsInvalid as error:
        message = error.message.removeprefix(f"{_URL}: ").partition(" See .env.example")[0]
        shown = "" if "@" in parsed.url else f" {parsed.url!r}"
        raise SpecInvalid(f"The service's URL{shown} cannot be used. {message}") from error
    settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    token_file = settings.root / "worker-token"
    invitation = settings.root / "invitation"  # a token that is there is that of a worker, and may be in use
    write_atomically(invitation, parsed.token.encode())
    try:
        link = ServiceLink(url, invitation)
        given = link.read_json("POST", "join", query={"name": name}, seconds=_SECONDS)
    except StoreUnavailable as error:
        raise SpecInvalid(error.message) from error
    finally:
        invitation.unlink()
    write_atomically(token_file, given.pop("token").encode())
    warning = given.pop("warning", "")
    given |= {"GRADIENT_SLURM__ENABLED": "true"} if parsed.slurm else {}
    file = parsed.env_file or settings.root / "env"
    _write_settings(file, {"GRADIENT_HOME": str(settings.root), _URL: url, **given})
    print(f"This host is worker {name} of {url}. Its settings are in {file}.\n{warning}")
    os.environ |= given
    code = doctor.run(Settings(), as_json=False)
    print(f"\n{'Fix the problems above, then start it' if code else 'Start it'}:")
    print(f"  set -a; . {file}; set +a; gradient-server worker --name {name}\nor, with the units of deploy/systemd:")
    print("  systemctl enable --now gradient-jobs-worker")
    return code


def _write_settings(file: Path, settings: dict[str, str]) -> None:
    """Set variables in a file that a shell and systemd read, and leave its other lines as they are."""
    lines = file.read_text().splitlines() if file.exists() else []
    kept = [line for line in lines if line.partition("=")[0] not in settings]
    text = "\n".join([*kept, *(f"{name}='{value}'" for name, value in settings.items())])
    write_atomically(file, f"{text}\n".encode(), mode=0o640)
