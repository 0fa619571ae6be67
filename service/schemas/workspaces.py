from pydantic import Field

from service.schemas.base import View


class WorkspaceView(View):
    """A stored workspace."""

    sha256: str
    size: int = Field(description="bytes of the archive, or of the files of a manifest")


class MissingContents(View):
    """The contents to send along with a manifest."""

    missing: list[str] = Field(description="their sha256")
