"""The tables of what only jobs may read: secrets, sign-ins for registries. Values are sealed (`core.vault`)."""

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, UtcDateTime


class Secret(Base):
    """A value that jobs name and that nobody is shown again."""

    __tablename__ = "secrets"

    project_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Whose jobs may use it; empty: every project's."""
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Registry(Base):
    """How every project's jobs sign in to a registry of container images."""

    __tablename__ = "registries"

    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    """With its port, if it has one of its own."""
    username: Mapped[str] = mapped_column(String(255))
    sealed: Mapped[str] = mapped_column(Text)
    """The password."""
    push: Mapped[bool] = mapped_column(server_default=false())
    """Whether jobs may also push images with it."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProjectRegistry(Base):
    """How one project's jobs sign in to a registry of container images; it goes before that of every project."""

    __tablename__ = "project_registries"

    project_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    username: Mapped[str] = mapped_column(String(255))
    sealed: Mapped[str] = mapped_column(Text)
    push: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class GitLogin(Base):
    """The user and password for the git server of a job's workspace; gone with the job, so that it can be cloned."""

    __tablename__ = "git_logins"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)


class JobLogin(Base):
    """A password for a registry that came with a job; gone when the job has ended."""

    __tablename__ = "job_logins"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)
