import pytest

from core.storage.joblogs.render import FOLD_BYTES, FOLD_STATES, render

LIMIT = 16 * 1024


def shown(raw, limit=LIMIT, before=b""):
    """Renders `raw` where it lies in a file after other bytes."""
    data = before + raw

    def read(offset, length):
        assert length <= max(FOLD_BYTES, limit)
        return data[offset : offset + length]

    return render(read, len(before), len(data), limit)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"windows\r", "windows"),
        (b" 10%\r 50%\r100%\r", "100%"),
        (b"done\r\x1b[K", "done"),
        (b"nul\x00 and bell\x07", "nul and bell"),
        (b"a\tb", "a\tb"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (b"\x1b[2J\x1b[3;4Hmoved\x1b[?25l", "moved"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        (b"\x1bPdevice string\x1b\\shown", "shown"),
        (b"\x1b]never ended", "never ended"),
        (b"\x1b(Bcharset\x1b7", "charset"),
        (b"\xc2\x9b31mc1\xc2\x85", "c1"),
        (b"bad \xff\xfe utf", "bad \ufffd\ufffd utf"),
        ("emoji 🎉 ok".encode(), "emoji 🎉 ok"),
        (b"5 \x08\x08\x08\r6", "6"),
        (b"x" + b"\r" * 500, "x"),
        (b"", ""),
    ],
)
def test_what_a_line_shows(raw, text):
    assert shown(raw) == text
    assert shown(raw, before=b"line before\n") == text


def test_a_progress_bar_of_any_length_shows_its_last_state():
    assert shown(b"".join(b"\r%d of many" % n for n in range(50_000))) == "49999 of many"


def test_states_that_show_nothing_are_searched_only_so_far():
    assert shown(b"old" + b"\r\x00" * (FOLD_STATES - 1)) == "old"
    assert shown(b"old" + b"\r\x00" * FOLD_STATES) == ""
