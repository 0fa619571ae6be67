"""Names and tags: one line each, of any alphabet; and notes, of several lines."""

import unicodedata
from collections.abc import Sequence

from core.errors import SpecInvalid

MAX_TAGS = 50
MAX_TAG = 100
MAX_NOTE = 2000


def check_encodable(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecInvalid("Contains half of a surrogate pair, which is not valid Unicode.", field=where) from error


def check_label(text: str, where: str, longest: int) -> None:
    """Refuse a name that cannot be shown on one line."""
    if not text.strip():
        raise SpecInvalid("Empty; leave it out or give it at least one visible character.", field=where)
    if len(text) > longest:
        raise SpecInvalid(f"{len(text)} characters; at most {longest} are allowed.", field=where)
    check_encodable(text, where)
    # Emoji are allowed; a line break or an escape could forge lines in lists and logs.
    bad = next((c for c in text if unicodedata.category(c) in {"Cc", "Zl", "Zp"}), None)
    if bad is not None:
        raise SpecInvalid(
            f"Contains the control character {bad!r} (such as a line break). Write it on one line.", field=where
        )


def check_tags(tags: Sequence[str]) -> None:
    if len(tags) > MAX_TAGS:
        raise SpecInvalid(f"{len(tags)} tags; at most {MAX_TAGS} are allowed.", field="tags")
    for tag in tags:
        check_label(tag, "tags", MAX_TAG)


def check_note(note: str) -> None:
    """Refuse a note that is too long, or that has control characters: an escape could forge lines of a terminal."""
    if len(note) > MAX_NOTE:
        raise SpecInvalid(f"{len(note):,} characters; at most {MAX_NOTE:,} are allowed.", field="note")
    for line in note.replace("\t", " ").split("\n"):
        if line.strip():
            check_label(line, "note", MAX_NOTE)
