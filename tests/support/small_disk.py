"""Small disks for tests, where the machine lets them be mounted: as root, or with a sudo that asks nothing."""

import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def _run_as_root(*command: str) -> bool:
    words = [*([] if os.getuid() == 0 else ["sudo", "-n"]), *command]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@functools.cache
def find_mount() -> str | None:
    """Find the program that mounts; None if mounting is not allowed here."""
    found = shutil.which("mount")
    if found is None or (os.getuid() != 0 and shutil.which("sudo") is None):
        return None
    with tempfile.TemporaryDirectory() as folder:
        disk = SmallDisk(Path(folder))
        if not disk.mount(1024**2):
            return None
        disk.unmount()
    return found


class SmallDisk:
    """A file system of a size of its own, over a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, size: int) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size},mode=0700,uid={os.getuid()},gid={os.getgid()}"
        return _run_as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder))

    def bind(self, name: str, target: Path) -> None:
        """Have a folder elsewhere be on this disk; unmounting the disk leaves it there."""
        (self.folder / name).mkdir()
        shutil.copystat(target, self.folder / name)
        owner = target.stat()
        os.chown(self.folder / name, owner.st_uid, owner.st_gid)
        assert _run_as_root("mount", "--bind", str(self.folder / name), str(target))

    def resize(self, size: int) -> None:
        assert _run_as_root("mount", "-o", f"remount,size={size}", str(self.folder))

    def used_bytes(self) -> int:
        """Bytes that are taken."""
        state = os.statvfs(self.folder)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def fill(self) -> None:
        """Take all that is left."""
        with (self.folder / "filler").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                return

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def exhaust_inodes(self) -> None:
        """Take every name that is left: no file can be made, though there are bytes."""
        assert _run_as_root("mount", "-o", "remount,nr_inodes=64", str(self.folder))
        (self.folder / "names").mkdir()
        try:
            for number in itertools.count():
                (self.folder / "names" / str(number)).touch()
        except OSError:
            return

    def free_inodes(self) -> None:
        """Give the names back."""
        shutil.rmtree(self.folder / "names")

    def unmount(self) -> None:
        unmount(self.folder)


def unmount(folder: Path) -> None:
    _run_as_root("umount", "--lazy", str(folder))
