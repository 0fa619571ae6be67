"""The commands of docs/deploy.md that back a service up and restore it."""

import os
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from support.deployment import SERVER_PROGRAM, TIMEOUT_SECONDS, Deployment
from support.documents import ROOT
from support.servers.postgres import find_binaries

_DOCS = (ROOT / "docs" / "deploy.md").read_text()
_SECTION = _DOCS[_DOCS.index("\n## Backup and restore\n") : _DOCS.index("\n## Upgrades\n")]
BACKUPS = dict(re.findall(r"^\| (.+?) \| `(.+?)`", _SECTION, re.MULTILINE))
"""The command that backs up each thing."""
BACK_UP_SQLITE, RESTORE_POSTGRES, RESTORE_SQLITE = re.findall(r"^```\n(.+?)^```", _SECTION, re.MULTILINE | re.DOTALL)
_HARMLESS = re.compile(
    r"tar: .*(socket ignored|file changed as we read it|File removed before we read it|Permission denied)"
    r"|tar: Exiting with failure status due to previous errors"
)
_MOST_KIB = 64 << 10


def shell_environment(service: Deployment) -> dict[str, str]:
    return service.environment(PATH=f"{SERVER_PROGRAM.parent}:{find_binaries()}:{os.environ['PATH']}")


def run_shell(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euxc", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )


def back_up_while_jobs_run(service: Deployment, folder: Path) -> None:
    """Back up a service over SQLite; what its jobs plant may neither stop the backup nor make it large."""
    folder.mkdir(exist_ok=True)
    live, copy = (
        closing(sqlite3.connect(path)) for path in (service.home / "gradient.db", folder / "gradient-copy.db")
    )
    with live as database, copy as saved:
        database.backup(saved)
    limited = f"ulimit -f {_MOST_KIB}; {BACKUPS['files']}"
    done = run_shell(limited, folder, shell_environment(service))
    said = [line for line in done.stderr.splitlines() if not line.startswith("+")]
    assert [line for line in said if not _HARMLESS.fullmatch(line)] == []
    assert done.returncode == 0 or (said and done.returncode in (1, 2)), done.stderr[-2000:]


def restore(folder: Path, home: Path) -> Deployment:
    """Restore such a backup into a folder that is not there yet."""
    restored = Deployment(home)
    done = run_shell(RESTORE_SQLITE, folder, shell_environment(restored))
    assert done.returncode == 0, done.stderr
    return restored
