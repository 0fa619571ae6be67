"""Reading of stored workspaces without unpacking them to disk: their files with digests, and the texts of some."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from core.storage.workspaces.manifest import Manifest
from core.storage.workspaces.pack_reader import read_pack


class FileContent(NamedTuple):
    """The content of a file: its sha256 and bytes; of a symbolic link, its target in place of the digest."""

    digest: str
    size: int


def list_manifest(manifest: Manifest) -> dict[str, FileContent]:
    """Return the files and links of a manifest, by path, which reads none of them."""
    files = {path: FileContent(sha256, size) for path, _, size, sha256 in manifest.files}
    return files | {path: FileContent(f"link to {target}", 0) for path, target in manifest.links}


def read_contents(packs: Iterable[Path], wanted: Collection[str]) -> dict[str, bytes]:
    """Return some contents by digest; the caller knows that they are small."""
    contents: dict[str, bytes] = {}
    for pack in packs:
        with pack.open("rb") as file:
            for content in read_pack(file):
                data = b"".join(content.chunks if content.sha256 in wanted else ())
                if content.sha256 in wanted:
                    contents[content.sha256] = data
    return contents
