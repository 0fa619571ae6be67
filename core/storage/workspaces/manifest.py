"""Manifests of workspaces: paths with modes, and the digest and size of each file."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from core.errors import WorkspaceInvalid
from core.storage.workspaces.limits import WorkspaceLimits
from core.storage.workspaces.tree import Entry, EntryKind, EntryTree
from core.system.json_fields import find_unknown_field

MAX_MANIFEST_BYTES = 32 * 1024**2  # bytes of the largest manifest: 100,000 files with paths of 230 bytes

_1980_MS = 315_532_800_000  # without times: the earliest time of a zip
_MS = 10**6

_Mode = Annotated[int, Field(ge=0, le=0o777)]
_Time = Annotated[int, Field(ge=-(2**53), le=2**53)]
_Size = Annotated[int, Field(ge=0, le=2**53)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    files: Annotated[list[tuple[str, _Mode, _Size, _Sha256]], FailFast()] = Field(
        max_length=WorkspaceLimits.max_files, description="path, permission bits, bytes and sha256 of each file"
    )
    folders: Annotated[list[tuple[str, _Mode]], FailFast()] = Field(
        default=[], max_length=WorkspaceLimits.max_files, description="path and permission bits of each folder"
    )
    links: Annotated[list[tuple[str, str]], FailFast()] = Field(
        default=[], max_length=WorkspaceLimits.max_files, description="path and target of each symbolic link"
    )

    times: Annotated[list[_Time], FailFast()] = Field(
        default=[],
        max_length=2 * WorkspaceLimits.max_files,
        description="last change of each file, then of each folder, as Unix times in milliseconds; default: 1980",
    )

    def entries(self) -> Iterator[tuple[Entry, str]]:
        """Yield the entries, each with the digest of a file."""
        times = self.times or [_1980_MS] * (len(self.files) + len(self.folders))
        for (path, mode), time in zip(self.folders, times[len(self.files) :], strict=True):
            yield Entry(path, EntryKind.FOLDER, mode, time * _MS), ""
        for (path, mode, _, sha256), time in zip(self.files, times, strict=False):
            yield Entry(path, EntryKind.FILE, mode, time * _MS), sha256
        for path, target in self.links:
            yield Entry(path, EntryKind.SYMLINK, target=target), ""

    def contents_sha256(self) -> str:
        """Return the digest of all but the times: that of the same manifest without them, as clients write it."""
        text = json.dumps(self.model_dump(exclude={"times"}), ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def contents(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for path, _, size, sha256 in self.files:
            if sizes.setdefault(sha256, size) != size:
                raise _invalid(f"{path[:80]!r} has the sha256 of a file with another size; compute the digests again")
        return sizes

    def inspect(self, limits: WorkspaceLimits) -> tuple[int, int]:
        """Check all but the contents; return the number of files and links, and the bytes of the files."""
        if self.times and len(self.times) != len(self.files) + len(self.folders):
            raise _invalid(f"times: {len(self.times)} instead of one for each file and each folder")
        tree, size = EntryTree(limits), sum(size for _, _, size, _ in self.files)
        limits.check_size(size)
        for entry, _ in self.entries():
            tree.add(entry)
        tree.symlinks()
        return tree.files, size


def parse_manifest(data: bytes) -> Manifest:
    """Parse the JSON text of a manifest; its paths are not checked."""
    unknown = find_unknown_field(data, tuple(Manifest.model_fields))
    if unknown is not None:
        raise _invalid(f"{unknown[:80]}: Extra inputs are not permitted")
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the JSON text"
        raise _invalid(f"{where}: {problem['msg']}") from None


def _invalid(message: str) -> WorkspaceInvalid:
    return WorkspaceInvalid(f"manifest: {message}", field="manifest")
