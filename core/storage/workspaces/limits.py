from dataclasses import dataclass

from core.errors import WorkspaceInvalid
from core.formatting import GIB, MIB

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class WorkspaceLimits:
    """Bounds within which a workspace is accepted."""

    max_upload_bytes: int = 10 * GIB
    max_bytes: int = 10 * GIB
    # most files, links and folders together, including folders that are only implied by a path
    max_files: int = 100_000
    max_ratio: int = 100  # most unpacked bytes per packed byte
    ratio_after: int = 10 * MIB  # unpacked bytes up to which the ratio does not matter
    max_depth: int = 32
    max_name_bytes: int = 255  # longest name between two slashes, in UTF-8
    max_path_bytes: int = 2048  # longest path or link target, in UTF-8

    def check_count(self, count: int) -> None:
        if count > self.max_files:
            raise invalid(
                f"it holds more than {self.max_files:,} files and folders; leave some out (.gradientignore), or keep "
                "data sets in storage as a few large files"
            )

    def check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise invalid(
                f"it unpacks to more than {self.max_bytes:,} bytes, the limit here; leave data sets and checkpoints "
                "out (.gradientignore) and keep them in storage instead"
            )

    def check_ratio(self, *, unpacked: int, packed: int) -> None:
        if unpacked > max(self.ratio_after, self.max_ratio * packed):
            raise invalid(
                f"it unpacks to more than {self.max_ratio} times its size, which looks like a decompression bomb; "
                "leave out files that are almost all zeros, or make them when the job starts"
            )


def invalid(message: str) -> WorkspaceInvalid:
    """Build the error for a refused workspace; its field is `workspace`."""
    return WorkspaceInvalid(f"workspace: {message}", field="workspace")


def shortened(name: str) -> str:
    """Quote an entry's name for a message, shortened and with anything unprintable escaped."""
    if len(name) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        name = f"{name[:half]}…{name[-half:]}"
    return repr(name)
