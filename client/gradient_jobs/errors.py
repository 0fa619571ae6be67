"""Errors of the SDK beside those of the client."""

from __future__ import annotations

from gradient_cli.errors import ClientError


class LibraryMissing(ClientError, ImportError):
    """An optional library is not installed.

    Args:
        part: The part that needs it.
        library: Its name, as pip knows it.
    """

    def __init__(self, part: str, library: str) -> None:
        super().__init__(f"{part} needs {library}, which is not installed", hint=f"Run `pip install {library}`.")
