from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

from service.schemas.base import QueryModel, Time, View
from service.schemas.job_list import refuse_number


class StoreFile(QueryModel):
    """The query of an upload to a project's storage."""

    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="digest of the body")
    modified: Annotated[AwareDatetime | None, BeforeValidator(refuse_number)] = Field(
        None, description="time of its last change"
    )
    executable: bool = Field(default=False, description="whether jobs may execute it; not stored in a bucket")


class StoredEntryView(View):
    """A file or folder in a project's storage."""

    path: str
    kind: str = Field(description="file, folder, or other: a link or device, which cannot be read")
    size: int | None = Field(description="bytes; null if it is not a file")
    modified: Time
    executable: bool = Field(description="whether it is a file that jobs may execute; always false in a bucket")
    sha256: str | None = Field(
        None, description="digest of a file that was stored through this API and not changed since; null: not known"
    )
    etag: str | None = Field(description="changes with the content; null if it is not a file")


class StoredEntries(View):
    """One page of a project's storage, by path."""

    entries: list[StoredEntryView]
    next: str | None = Field(description="cursor of the next page, for `after`")


class WorkspaceView(View):
    """A stored workspace."""

    sha256: str
    size: int = Field(description="bytes of its files")


class MissingContents(View):
    """The contents to send along with a manifest."""

    missing: list[str] = Field(description="their sha256")
