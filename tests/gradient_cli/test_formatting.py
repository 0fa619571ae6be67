import pytest

from gradient_cli import formatting, terminal


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45", 45),
        (45, 45),
        ("1d", 86400),
        ("1h 30m", 5400),
    ],
)
def test_lengths_of_time(value, seconds):
    assert formatting.parse_duration("timeLimit", value) == seconds


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain é 🎉\ttab", "plain é 🎉\ttab"),
        ("\x1b[1;38:5:9mred\x1b[m", "\x1b[1;38:5:9mred\x1b[m\x1b[0m"),
        ("\x1b[2J\x1b[H\x1b[?1049h\x1b[6nx", "x"),
        ("\x1b]8;;http://evil\x07link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;aGk=", ""),
        ("\x1bPq#0\x1b\\a\x1b_x\x1b\\b\x1b^y\x07c\x1bXz\x1b\\d", "abcd"),
        ("\x1bcreset\x1b(B\x1b", "reset"),
        ("a\x00b\x07c\x7fd\x85e\x9b2Jf\x9dtitle\x9cg", "abcdefg"),
        ("\x1b[31", "31"),
    ],
)
def test_only_colours_get_through_to_a_terminal(text, kept):
    assert terminal.sanitize_line(text, colours=True) == kept
    assert "\x1b" not in terminal.sanitize_line(text, colours=False)
