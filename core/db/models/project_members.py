from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base


class ProjectMember(Base):
    """A user or an API key that has a role in a project."""

    __tablename__ = "project_members"

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    member: Mapped[str] = mapped_column(String(16), primary_key=True, index=True)
    """Id of a user, with all keys of the user, or of a key that is no user's."""
    role: Mapped[str] = mapped_column(String(16))  # viewer, submitter or maintainer
