from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base


class SavedView(Base):
    """An address of the list of jobs, or of compared runs, that a user keeps under a name."""

    __tablename__ = "saved_views"

    owner: Mapped[str] = mapped_column(String(16), primary_key=True)  # id of a user, or of a key that is no user's
    name: Mapped[str] = mapped_column(String(100), primary_key=True)  # empty: the columns that the list has for them
    address: Mapped[str] = mapped_column(Text)
