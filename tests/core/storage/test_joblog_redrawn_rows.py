"""Rows that a program goes back to with the cursor: one line of the log, shown as it is in the end."""

import pytest

from core.storage.joblogs.render import RedrawnRows
from core.storage.joblogs.store import JobLogs

JOB = "j" + "0" * 12 + "1"


def nested_bars():
    """Return what tqdm prints for two nested loops: the inner bar is drawn a row below, then the cursor goes up."""
    drawn = b"\repoch 0/20"
    for epoch in range(20):
        drawn += b"\n" + b"\x1b[A\n".join(b"\r\x1b[32mstep %d/50\x1b[0m" % step for step in range(50)) + b"\x1b[A"
        drawn += b"\n\r          \r\x1b[A\repoch %d/20" % (epoch + 1)
    return drawn + b"\n"


def live_table():
    """Return what rich prints for a table: each row is erased, from the last to the first, and all are drawn again."""
    erase = b"\r\x1b[2K" + b"\x1b[1A\x1b[2K" * 2
    return erase.join(b"name\nloss %d\nend" % step for step in range(100)) + b"\n"


def pulled_layers():
    """Return what `docker pull` prints: the cursor goes up to one row, and down again."""
    first = b"".join(b"layer %d: waiting\n" % layer for layer in range(3))
    steps = b"".join(
        b"\x1b[%dA\x1b[2K\rlayer %d: %d%%\r\x1b[%dB" % (3 - layer, layer, done, 3 - layer)
        for done in range(0, 101, 10)
        for layer in range(3)
    )
    return first + steps + b"Status: complete\n"


CASES = {
    "bars": (nested_bars(), ["epoch 0/20", "epoch 20/20"]),
    "table": (live_table(), ["name", "loss 0", "name\nloss 99\nend"]),
    "layers": (
        pulled_layers(),
        [f"layer {layer}: waiting" for layer in range(3)]
        + ["layer 0: 100%\nlayer 1: 100%\nlayer 2: 100%\nStatus: complete"],
    ),
    "plain": (b"one\n\x1b[31mtwo\x1b[0m\n 5%\r10%\nend", ["one", "\x1b[31mtwo\x1b[0m", "10%", "end"]),
    "too far": (b"\x1b[99999999A\x1b[999A\x1b[999B\nafter\n", ["", "after"]),
    "erased": (b"a\nb\nc\x1b[2A\r\x1b[Jnew\nend\n", ["a", "b", "new\nend"]),
}


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_what_is_drawn_again_and_again_is_shown_once(tmp_path, name, size):
    raw, expected = CASES[name]
    rows = RedrawnRows()
    store = JobLogs(tmp_path)
    with store.open_writer(JOB, 1) as log:
        for at in range(0, len(raw), size):
            piece = raw[at : at + size]
            log.append(rows.join(piece), 1, source_bytes=len(piece))
            assert log.position == at + len(piece)
    shown = store.reader(JOB).lines(0, 1_000, final=True)
    assert [line.message for line in shown] == expected
    assert [line.line for line in shown] == list(range(1, len(expected) + 1))
    assert store.reader(JOB).raw(0, 1 << 20).replace(b"\x1bE", b"\n") == raw


def test_a_line_of_rows_shows_its_end_however_long_it_is(tmp_path):
    rows, store = RedrawnRows(), JobLogs(tmp_path)
    with store.open_writer(JOB, 1) as log:
        log.append(rows.join(b"a\nb" + b"".join(b"\x1b[1A\ra %d\nb %d" % (n, n) for n in range(100_000))), 1)
        assert store.reader(JOB).partial() == "a 99999\nb 99999"
