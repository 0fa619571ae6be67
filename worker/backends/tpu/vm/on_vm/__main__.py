"""Runs a job on a TPU VM; run as `python3 runner.pyz on_vm FOLDER`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.runner.control_files import STOPPING_FILE, write_control_file
from worker.runner.job_runner import JobRunner, Launcher
from worker.runner.stores import NETWORK_ERRORS

from .bucket import Bucket
from .chip_metrics import read_chips
from .deletion import delete_vm
from .disks import mount_disks, unmount_disks
from .launchers import Container, Process
from .metadata_server import serve_metadata
from .vm_metadata import read_rank

if TYPE_CHECKING:
    from worker.runner.stores import Store

_SAVE_SECONDS = 600.0


class VmRunner(JobRunner):
    def __init__(self, root: Path) -> None:
        settings = json.loads((root / "vm.json").read_text())
        self.bucket = Bucket(settings["bucket"], settings["prefix"] + "token", settings["token_url"])
        plain = os.environ.get("GRADIENT_VM_RUN", "docker") == "process"
        launcher: Launcher = Process(root) if plain else Container(root)
        store: Store = self.bucket
        super().__init__(root, settings, store, launcher, read_rank() if settings["slice"] else 0)

    def run_until_deleted(self) -> None:
        guard = threading.Thread(target=self.guard, name="guard", daemon=True)
        guard.start()
        self.run()
        while guard.is_alive():  # a worker that is there deletes the VM now
            self.bucket.token()
            guard.join(self.seconds)

    def environment(self) -> dict[str, str]:
        address = serve_metadata(self.place / "metadata-port", self.bucket)
        return {**super().environment(), "GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}

    def prepare(self, job: dict[str, Any]) -> None:
        mount_disks(self.place, job.get("disks") or [])
        super().prepare(job)

    def usage(self) -> dict[str, float]:
        return {**super().usage(), **read_chips()}

    def finish(self) -> None:
        unmount_disks(self.place)

    def guard(self) -> None:
        """End the job and the VM when no worker was heard of for too long: nobody else would, and it costs money."""
        seconds: float = self.settings["abandoned_seconds"]
        while (left := self.bucket.received_at + seconds - time.monotonic()) > 0:
            time.sleep(left)
        sys.stderr.write(f"no worker made contact for {seconds:.0f} s\n")
        self.abandoned = True
        with contextlib.suppress(OSError):
            write_control_file(self.control, STOPPING_FILE, "no worker")
            grace = json.loads((self.place / "job.json").read_text())["stop_grace"]
            self.launcher.signal(signal.SIGTERM)
            if not self.over.wait(grace):
                self.launcher.signal(signal.SIGKILL)
        until = time.monotonic() + _SAVE_SECONDS
        self.over.wait(_SAVE_SECONDS)
        # The node's other hosts save, too; the first deletes all, or the last one that can. Without a job none saves.
        if self.settings["slice"] and (self.place / "job.json").exists():
            self._wait_for_others(until if self.rank == 0 else until + _SAVE_SECONDS)
        delete_vm(self.settings["resources"])

    def _wait_for_others(self, until: float) -> None:
        count = len(json.loads((self.place / "job.json").read_text())["env"]["TPU_WORKER_HOSTNAMES"].split(","))
        names = [f"{self.shared}hosts/{rank}/report" for rank in range(count)]
        while time.monotonic() < until:
            with contextlib.suppress(*NETWORK_ERRORS, ValueError):
                if self.rank == 0 and all(json.loads(self.bucket.get(name) or "{}").get("end") for name in names):
                    return
            time.sleep(self.seconds)


if __name__ == "__main__":
    VmRunner(Path(sys.argv[1])).run_until_deleted()
