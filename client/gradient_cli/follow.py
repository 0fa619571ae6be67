from __future__ import annotations

import io
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import Reconnection, retry_until_connected
from gradient_cli.api.transport import RESPONSE_SECONDS
from gradient_cli.errors import FAILED, INTERRUPTED, OK, ClientError, TimedOut
from gradient_cli.formatting import (
    describe_members,
    describe_port,
    describe_removed,
    format_cost,
    format_count,
    format_duration,
    format_price,
    format_size,
    format_start,
    job_word,
)
from gradient_cli.next_steps import COLLECTING, KEPT, kept_steps

SUCCEEDED = "Stopped"  # state of a job whose command ran and exited with 0: the original service's word
PENDING = "Pending"
_RUNNING = "Running"
_ENDED_PHASES = (COLLECTING, "kept")
_MAX_EXIT_CODE = 255
_MIN_POLL_SECONDS = 0.2
_MAX_POLL_SECONDS = 2.0
_LAST_POLL_SECONDS = 5.0  # time that the last poll before a deadline has for an answer
_SAME_REASON_SECONDS = 10.0
_NEAR = 3
_PARTIAL_SECONDS = 10.0
_COMPARED = 200  # first characters by which a text is the one before, continued: the server cuts long ones
_CUT = "\N{REPLACEMENT CHARACTER}"  # at the end of a text whose last character is not complete yet
_LAST_LINES = 100  # they include what a launcher such as torchrun prints after the exception


class LogPrinter:
    """Prints a job's lines to stdout, and everything about the job to stderr.

    Args:
        search: Print only lines that contain this text, in any case.
        rank: Print only the lines of the node of this rank of a TPU slice, without the `[rank] ` before each.
        member: Index in its array, printed before each line.
    """

    def __init__(
        self,
        *,
        raw: bool = False,
        timestamps: bool = False,
        search: str = "",
        rank: int | None = None,
        member: int | None = None,
    ) -> None:
        self.printed = False
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._prefix = "" if rank is None else f"[{rank}] "
        self._member = member
        self._label = "" if member is None else f"[{member}] "
        self._search = search.casefold()
        self._raw = raw
        self._timestamps = timestamps
        self._tty = terminal.is_tty(sys.stdout)
        self._colours = terminal.supports_colour(sys.stdout)
        self._drawn = False
        self._partial_at = -_PARTIAL_SECONDS
        self._partial = ""
        self._phase = ""
        self._reason: tuple[object, object] = (None, None)
        self._last_status = 0.0
        self._ended = ""

    def line(self, row: dict[str, Any]) -> None:
        """Print a finished line, unless it lacks the text that is searched, or is another host's."""
        self.clear()
        self._partial = ""
        message = str(row["message"])
        self.last_lines.append(message)
        if message.startswith(self._prefix) and self._search in message.casefold():
            print(self._text({**row, "message": message[len(self._prefix) :]}))
            self.printed = True

    def partial(self, row: dict[str, Any]) -> None:
        """Show a line that is still being written, such as a progress bar.

        On a terminal it is redrawn in place; elsewhere a text that has been overwritten is printed now and then. One
        that is continued is not: it comes with the finished line.
        """
        if self._search or self._prefix:
            return
        if not self._tty:
            before, self._partial = self._partial, row.get("message") or ""
            due = time.monotonic() - self._partial_at >= _PARTIAL_SECONDS
            if due and not self._partial.startswith(before[:_COMPARED].rstrip(_CUT)):
                self._partial_at = time.monotonic()
                self._print_overwritten(before)
            return
        # Without colours: their codes would count as width, and a cut line would stay coloured.
        text = _in_one_row(row.get("message") or "")
        sys.stdout.write(f"\r\x1b[K{terminal.truncate(text, terminal.width() - 1)}")
        sys.stdout.flush()
        self._drawn = True

    def _print_overwritten(self, message: str) -> None:
        # To stderr: stdout gets each line once, as the job finished it.
        terminal.print_message(terminal.style(f"… {_in_one_row(message)}", "dim", sys.stderr))

    def phase(self, row: dict[str, Any]) -> None:
        """Print the job's phase if it has changed; the server repeats it after each reconnection.

        A job without a phase has ended; the summary describes the end.
        """
        phase = terminal.sanitize(row.get("phase") or "")
        if not phase:
            return
        message = terminal.sanitize(row.get("message") or "")
        if phase in _ENDED_PHASES:  # the message tells how the command ended: printed before the phase that follows
            self._ended, message = message, ""
        text = f"{phase}: {message}" if message else phase
        if text != self._phase and not self._is_only_queue_progress(row):
            self._phase = text
            self.clear()
            if self._ended and phase not in _ENDED_PHASES:
                terminal.print_message(self._ended)
                self._ended = ""
            starts = format_start(row.get("estimatedStartAt"))
            terminal.print_message(terminal.style(f"{text} Starts {starts}." if starts else text, "dim", sys.stderr))

    def _is_only_queue_progress(self, row: dict[str, Any]) -> bool:
        """Return whether only the position far back in the queue has changed: printed only now and then."""
        reason, now = (row.get("phase"), row.get("reason")), time.monotonic()
        far = (row.get("queuePosition") or 0) > _NEAR
        if far and reason == self._reason and now - self._last_status < _SAME_REASON_SECONDS:
            return True
        self._reason, self._last_status = reason, now
        return False

    def unfinished(self, message: str) -> None:
        """Print the text of the unfinished last line, at the end of a log that is not followed."""
        shown = message if self._raw else terminal.sanitize_line(message, colours=self._colours)
        print(f"{self._label}{shown}")
        self.printed = True

    def removed(self, row: dict[str, Any]) -> None:
        self.clear()
        terminal.print_message(describe_removed(row))

    def clear(self) -> None:
        """Erase an unfinished line from the terminal."""
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
            self._drawn = False

    def _text(self, row: dict[str, Any]) -> str:
        message = str(row["message"])
        shown = message if self._raw else terminal.sanitize_line(message, colours=self._colours)
        return self._label + (f"{row.get('timestamp', '')} {shown}" if self._timestamps else shown)


def _in_one_row(message: str) -> str:
    return "  ".join(terminal.sanitize_line(message, colours=False).split("\n"))


class JsonPrinter(LogPrinter):
    def _text(self, row: dict[str, Any]) -> str:
        return json.dumps(row if self._member is None else {**row, "member": self._member}, ensure_ascii=False)

    def _print_overwritten(self, message: str) -> None:
        self.unfinished(message)

    def unfinished(self, message: str) -> None:
        print(self._text({"line": None, "timestamp": None, "message": message, "partial": True}))


def print_notes(job: Mapping[str, Any], shown: Sequence[str] = ()) -> None:
    for text in job.get("notes") or []:
        if text not in shown:
            terminal.print_message(terminal.sanitize(f"note: {text}"))


def attach(
    api: Api,
    job: Mapping[str, Any],
    printer: LogPrinter,
    *,
    line: int = 0,
    shown_notes: Sequence[str] = (),
    explain: Callable[[Iterable[str]], Iterable[str]] = lambda _lines: (),
) -> int:
    """Follow a job from after `line` to its end, print its summary, and return the exit code.

    The links to its ports are printed as soon as it runs. Ctrl-C leaves the job running and prints how to follow it
    again. `explain` returns what this computer knows of a failure, from the last lines of the log.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in a pipe, too, each line must appear at once
    job_id, unlinked = str(job["id"]), bool(job.get("ports"))
    shows = {"line": printer.line, "partial": printer.partial, "phase": printer.phase, "removed": printer.removed}
    try:
        for name, data in api.follow(job_id, line):
            show = shows.get(name)
            if show:
                show(data)
            if data.get("state") == KEPT:
                break
            if unlinked and data.get("state") == _RUNNING and data.get("phase"):
                printer.clear()
                _print_links(retry_until_connected(lambda: api.job(job_id)))
                unlinked = False
        printer.clear()
        ended = retry_until_connected(lambda: api.job(job_id))
        print_summary(api, ended, shown_notes)
        if exit_code(ended) != OK:
            print_notes({"notes": list(explain(printer.last_lines))})
    except KeyboardInterrupt:
        printer.clear()
        return detach(job_id)
    return exit_code(ended)


def _print_links(job: Mapping[str, Any]) -> None:
    for port in job["ports"]:
        terminal.print_message(f"port: {terminal.sanitize(describe_port(port))}")


def detach(*job_ids: str) -> int:
    """Print how to follow or stop jobs that keep running, and return the exit code of Ctrl-C."""
    terminal.print_message("\ndetached; " + ("the job keeps running" if len(job_ids) == 1 else "the jobs keep running"))
    for job_id in job_ids:
        terminal.print_message(
            f"  follow it  gradient-cli jobs logs {job_id} --follow\n  stop it    gradient-cli jobs stop {job_id}"
        )
    return INTERRUPTED


def wait_for_array(api: Api, array_id: str, timeout: float | None = None) -> dict[str, Any]:
    """Print how many members of an array have ended, until all have; return its first one, with their states."""
    until = None if timeout is None else time.monotonic() + timeout
    shown, delay = "", _MIN_POLL_SECONDS
    while True:
        array = retry_until_connected(lambda: api.array(array_id))
        states = array["arrayMembers"]
        text = f"array {array_id}: {describe_members(states)}"
        if text != shown:
            terminal.print_message(terminal.sanitize(text))
            shown, delay = text, _MIN_POLL_SECONDS
        if not states.keys() & {PENDING, _RUNNING, KEPT}:
            return array
        if until is not None and time.monotonic() >= until:
            raise TimedOut(
                f"{text}, after {format_duration(timeout)}",
                hint=f"The array was not stopped: `gradient-cli jobs wait {array_id}` waits again.",
            )
        time.sleep(delay if until is None else min(delay, max(0.0, until - time.monotonic())))
        delay = min(delay * 1.5, _MAX_POLL_SECONDS)


def print_array_summary(array: Mapping[str, Any]) -> None:
    """Print what the members of an array took and cost together, and the commands for what they left."""
    array_id = array["arrayId"]
    facts = [f"ran {format_duration(array['durationSeconds'] or 0.0)} in all", _describe_cost(array)]
    terminal.print_message(terminal.sanitize(", ".join(fact for fact in facts if fact)))
    if array_exit_code(array) != OK:
        terminal.print_message(f"results of each member: gradient-cli jobs show {array_id}")
    terminal.print_message(f"artifacts: gradient-cli jobs artifacts get {array_id}")


def array_exit_code(array: Mapping[str, Any]) -> int:
    return OK if array["arrayMembers"].keys() == {SUCCEEDED} else FAILED


def wait(api: Api, job_ids: Sequence[str], timeout: float | None) -> Iterator[dict[str, Any]]:
    until = None if timeout is None else time.monotonic() + timeout
    jobs = [api.job(job_id) for job_id in job_ids]  # all before the first wait: one may not exist
    for job in jobs:
        yield _wait_for(api, job, until, timeout)


def _wait_for(api: Api, job: dict[str, Any], until: float | None, timeout: float | None) -> dict[str, Any]:
    delay, job_id, reconnection = _MIN_POLL_SECONDS, str(job["id"]), Reconnection()
    while not job.get("finishedAt"):
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimedOut(
                f"job {job_id} has not ended within {format_duration(timeout)}: {describe_state(job)}",
                hint=f"The job was not stopped: `gradient-cli jobs logs {job_id} --follow` follows it.",
            )
        pause = delay if left is None else min(delay, left)
        time.sleep(pause)
        seconds = RESPONSE_SECONDS if left is None else max(_LAST_POLL_SECONDS, left - pause)
        try:
            job = api.poll_job(job_id, min(RESPONSE_SECONDS, seconds))
            delay = min(delay * 1.5, _MAX_POLL_SECONDS)
            reconnection.succeed()
        except ClientError as error:
            delay = reconnection.delay_after(error)
    return job


def exit_code(job: dict[str, Any]) -> int:
    """Return the client's exit code: 0 for success, else the job's own, or 1 if it has none between 1 and 255."""
    code = job.get("exitCode")
    if job.get("state") == SUCCEEDED:
        return OK
    return code if isinstance(code, int) and 0 < code <= _MAX_EXIT_CODE else FAILED


def describe_state(job: dict[str, Any]) -> str:
    state = terminal.sanitize(job_word(job))
    if job.get("phase") == COLLECTING:  # the message is how the command ended
        state += " (collecting outputs)"
    why = terminal.sanitize(job.get("message") or job.get("reason") or "")
    return f"{state}: {why}" if why else state


def _describe_exit_code(job: dict[str, Any]) -> str:
    """Return the exit code as text, or nothing if the job's message names it already."""
    if job.get("exitCode") is None:
        return ""
    fact = f"exit code {job['exitCode']}"
    return "" if fact in str(job.get("message") or "").casefold() else fact


def _describe_cost(job: Mapping[str, Any]) -> str:
    # A simulated machine costs nothing; the cost shown is that of the real one for the same time.
    would = "would cost" if job.get("simulated") else "cost"
    cost = format_cost(job, str(job.get("machineType") or ""))
    return f"{would} {cost}" if job.get("cost") or job.get("gpuHours") else ""


def print_summary(api: Api, job: dict[str, Any], shown_notes: Sequence[str] = ()) -> None:
    """Print a job's result to stderr, with the command that downloads its artifacts."""
    job_id = job["id"]
    tone = "green" if exit_code(job) == OK else "red"
    terminal.print_message(terminal.style(describe_state(job), tone, sys.stderr))
    machine = f"{job.get('machineType')} (simulated)" if job.get("simulated") else job.get("machineType")
    cost = _describe_cost(job)
    facts = [
        _describe_exit_code(job),
        f"ran {format_duration(job['durationSeconds'])} on {machine}" if job.get("durationSeconds") else "",
        f"{cost} at {format_price(job)}" if job.get("cost") else cost,
    ]
    if any(facts):
        terminal.print_message(terminal.sanitize(", ".join(fact for fact in facts if fact)))
    print_notes(job, shown_notes)
    if job.get("state") == KEPT:
        terminal.print_message(
            "\n".join([f"kept {job.get('phaseDetail')}", *(f"  {step}" for step in kept_steps(job_id))])
        )
    try:
        left = api.artifacts(job_id, limit=1)
    except ClientError as error:  # the exit code is the job's all the same
        terminal.print_message(terminal.sanitize(f"its artifacts cannot be listed right now: {error}"))
        return
    if left.get("totalFiles"):
        terminal.print_message(
            f"{format_count(left['totalFiles'], 'artifact')}, {format_size(left.get('totalBytes') or 0)}: "
            f"gradient-cli jobs artifacts get {job_id}"
        )
