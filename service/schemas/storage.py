from pydantic import Field

from service.schemas.base import Time, View


class StoredEntryView(View):
    """A file or folder in a project's storage."""

    path: str
    kind: str = Field(description="file, folder, or other: a link or device, which cannot be read")
    size: int | None = Field(description="bytes; null if it is not a file")
    modified: Time
    sha256: str | None = Field(
        None, description="digest of a file that was stored by this API and not changed since; null: not known"
    )
    etag: str | None = Field(description="changes with the content; null if it is not a file")


class StoredEntries(View):
    """One page of a project's storage, by path."""

    entries: list[StoredEntryView]
    next: str | None = Field(description="cursor of the next page, for `after`")


class WorkspaceView(View):
    """A stored workspace."""

    sha256: str
    size: int = Field(description="bytes of the archive, or of the files of a manifest")


class MissingContents(View):
    """The contents to send along with a manifest."""

    missing: list[str] = Field(description="their sha256")
