"""Lines of text artifacts: the same as those of the text as a whole, whatever the lengths of lines and blocks."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SpecInvalid, StoreUnavailable
from core.storage.artifacts import text_lines
from core.storage.artifacts.store import OpenArtifact
from core.storage.artifacts.text_lines import LineIndexCache


def opened(content):
    return OpenArtifact(io.BytesIO(content), len(content), None, 1)


def open_lines(content):
    return LineIndexCache().open(opened(content), "j1", 1, "a.txt")


@given(
    lines=st.lists(st.text("ab", max_size=30), max_size=40),
    end=st.booleans(),
    after=st.integers(0, 45),
    limit=st.integers(1, 45),
)
def test_every_page_has_the_lines_of_the_text(lines, end, after, limit):
    content = "\n".join(lines).encode() + (b"\n" if end and lines else b"")
    expected = content.decode().removesuffix("\n").split("\n") if content else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "_BLOCK", 16)
        text = open_lines(content)
        assert text.total == len(expected)
        page = list(text.read(after, limit))
    assert page == list(enumerate(expected, 1))[after : after + limit]


def test_a_text_is_searched_from_any_line_with_colours_left_out():
    text = open_lines(b"".join(b"line \x1b[1m%d\x1b[0m\n" % number for number in range(1, 5001)) + b"Line 4321 again")
    every = {"limit": 100, "seconds": 9.0}
    assert text.search("LINE 4321", after=0, match_case=False, **every) == ([4321, 5001], 5001, True)
    assert text.search("line 4321", after=4321, match_case=True, **every) == ([], 5001, True)
    assert text.search("x", after=5001, match_case=True, **every) == ([], 5001, True)


def test_a_line_of_any_length_is_cut_with_a_note():
    text = open_lines(b"a\n" + b"x" * 3_000_000 + b"\nlast")
    (_, first), (_, cut), (_, last) = text.read(0, 10)
    assert (first, last) == ("a", "last")
    assert cut.endswith("[3,000,000 bytes in all; the download has them]")
    assert len(cut) < 17_000


def test_what_is_not_text_or_too_large_is_refused(monkeypatch):
    with pytest.raises(SpecInvalid, match="not text"):
        open_lines(b"\x00\x01")
    monkeypatch.setattr(text_lines, "MAX_TEXT_BYTES", 2)
    with pytest.raises(SpecInvalid, match="lines are counted up to 2 B"):
        open_lines(b"abc")


def test_a_text_is_counted_once_until_it_changes():
    cache, content = LineIndexCache(), b"a\nb\n"
    reads = []

    class Counted(io.BytesIO):
        def read(self, size=-1):
            reads.append(size)
            return super().read(size)

    for _ in range(3):
        cache.open(OpenArtifact(Counted(content), 4, None, 1), "j1", 1, "a.txt")
    before = len(reads)
    assert cache.open(OpenArtifact(Counted(b"a\nb\nc\n"), 6, None, 2), "j1", 1, "a.txt").total == 3
    assert (before, len(reads)) == (3, 6)


def test_a_text_that_a_running_job_cuts_or_rewrites_meanwhile_is_not_read_for_ever():
    content = io.BytesIO(b"a line\n" * 100)
    text = LineIndexCache().open(OpenArtifact(content, 700, None, 1), "j1", 1, "a.txt")
    content.truncate(33)
    assert text.search(None, after=0, limit=10, match_case=False, seconds=9.0).lines == []
    with pytest.raises(StoreUnavailable, match="changed while it was read"):
        list(text.read(50, 10))
