from sqlalchemy import Double, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base


class Budget(Base):
    """The most that all jobs of a project, a user or an API key may cost in a period."""

    __tablename__ = "budgets"

    subject: Mapped[str] = mapped_column(String(16), primary_key=True)  # id of the project, the user or the key
    unit: Mapped[str] = mapped_column(String(16), primary_key=True)  # usd or gpu_hours
    period: Mapped[str] = mapped_column(String(16), primary_key=True)  # day, month (both of UTC) or total
    kind: Mapped[str] = mapped_column(String(16))  # project, user or key
    name: Mapped[str] = mapped_column(String(254))  # of the project or the key, or the user's address, for display
    amount: Mapped[float] = mapped_column(Double)
