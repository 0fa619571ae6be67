"""Lines of text artifacts: the same as those of the text as a whole, whatever the lengths of lines and blocks."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import StoreUnavailable
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
        patch.setattr(text_lines, "BLOCK", 16)
        text = open_lines(content)
        assert text.total == len(expected)
        page = list(text.read(after, limit))
    assert page == list(enumerate(expected, 1))[after : after + limit]


def test_a_line_of_any_length_is_cut_with_a_note():
    text = open_lines(b"a\n" + b"x" * 3_000_000 + b"\nlast")
    (_, first), (_, cut), (_, last) = text.read(0, 10)
    assert (first, last) == ("a", "last")
    assert cut.endswith("[3,000,000 bytes in total; download the log to see them]")
    assert len(cut) < 17_000


def test_a_text_that_a_running_job_cuts_or_rewrites_meanwhile_is_not_read_for_ever():
    content = io.BytesIO(b"a line\n" * 100)
    text = LineIndexCache().open(OpenArtifact(content, 700, None, 1), "j1", 1, "a.txt")
    content.truncate(33)
    assert text.search(None, after=0, limit=10, match_case=False, seconds=9.0).lines == []
    with pytest.raises(StoreUnavailable, match="changed while it was being read"):
        list(text.read(50, 10))
