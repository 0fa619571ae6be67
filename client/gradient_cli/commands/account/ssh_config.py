from __future__ import annotations

import argparse
import glob
import os
import subprocess

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK, ClientError
from gradient_cli.formatting import print_json
from gradient_cli.options import add_common

_INCLUDE = "Include gradient_jobs/*\n"
_ACCEPTED = ("ssh-ed25519 ", "ssh-rsa ", "ecdsa-sha2-nistp", "sk-ssh-ed25519@", "sk-ecdsa-sha2-nistp256@")


def add_ssh_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replace", action="store_true", help="remove other ssh keys of your API key from the server")
    add_common(parser, ssh_config)


def ssh_config(args: argparse.Namespace) -> int:
    folder = os.path.expanduser("~/.ssh")
    os.makedirs(f"{folder}/gradient_jobs", mode=0o700, exist_ok=True)
    files = [file for file in sorted(glob.glob(f"{glob.escape(folder)}/*.pub")) if _read(file).startswith(_ACCEPTED)]
    files = files or [_make_key(f"{folder}/id_ed25519")]
    access = connect(args).add_ssh_keys({"publicKeys": [_read(file) for file in files], "replace": args.replace})
    host, port, key = access["host"], access["port"], access["hostKey"]
    lines = [f"Host {host}.gradient", f"HostName {host}", f"Port {port}", "StrictHostKeyChecking yes"]
    lines += [
        "IdentitiesOnly yes",
        *(f'IdentityFile "{file[:-4] if os.path.exists(file[:-4]) else file}"' for file in files),
    ]
    _write(f"{folder}/gradient_jobs/{host}_{port}", lines)
    others = [line for line in _read(f"{folder}/known_hosts").splitlines() if not line.startswith(f"[{host}]:{port} ")]
    _write(f"{folder}/known_hosts", [*others, f"[{host}]:{port} {key}"])
    if _INCLUDE not in (config := _read(f"{folder}/config")):
        _write(f"{folder}/config", [_INCLUDE, *config.splitlines()])
    if args.json:
        print_json(access)
    else:
        print(terminal.sanitize(f"Your API key has these ssh keys: {', '.join(files)}"))
        print(terminal.sanitize(f"Enter a running job: ssh JOB@{host}.gradient"))
    return OK


def _make_key(file: str) -> str:
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)  # noqa: S603, S607  OpenSSH's
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClientError(f"ssh-keygen made no key: {error}", hint="Install OpenSSH's client.") from None
    return f"{file}.pub"


def _read(file: str) -> str:
    if not os.path.exists(file):
        return ""
    with open(file, encoding="utf-8", errors="surrogateescape") as opened:
        return opened.read()


def _write(file: str, lines: list[str]) -> None:
    file = os.path.realpath(file)  # people link it to a collection of such files
    with open(f"{file}.part", "w", encoding="utf-8", errors="surrogateescape") as opened:
        opened.writelines(f"{line}\n" for line in lines)
    os.chmod(opened.name, 0o600)
    os.replace(opened.name, file)
