import io

import pytest

from gradient_cli import formatting, terminal
from gradient_cli.workspace import job_spec
from gradient_cli.workspace.transfer.progress import Progress


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
    assert job_spec.parse_duration("timeLimit", value) == seconds


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_300_000, "12.3 MB"), (5 * 10**12, "5.0 TB")]
)
def test_sizes(count, text):
    assert formatting.format_size(count) == text


@pytest.mark.parametrize(("dollars", "text"), [(None, ""), (0, "$0.00"), (0.00123, "$0.0012"), (3.061, "$3.06")])
def test_money(dollars, text):
    assert formatting.format_money(dollars) == text


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


def test_tables_fit_a_terminal_and_are_whole_in_a_pipe(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["jabcdefgh12345", "n" * 50, "Running"]]
    for stream, longest in ((Terminal(), 40), (io.StringIO(), 14 + 2 + 50 + 2 + 7)):
        monkeypatch.setattr("sys.stdout", stream)
        formatting.print_table(("ID", "NAME", "STATE"), rows)
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) == longest
        assert lines[1].startswith("jabcdefgh12345")
        assert lines[1].endswith("Running")


def test_progress_in_a_pipe_is_lines_now_and_then(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    progress = Progress("uploading", 1000)
    progress.update(10)
    clock[0] = 11.0
    progress.update(500)
    progress.update(600)
    progress.close()
    assert capsys.readouterr().err == "uploading 500 B of 1.0 kB 50% 45 B/s\n"
