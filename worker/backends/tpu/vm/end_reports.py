"""The end of a job on its VM, as the VM reports it in the bucket."""

from pathlib import Path

from worker.backends.base import write_control_file
from worker.backends.tpu.vm.slices import END_FILE, ENDED_AT_FILE, MISSING_BYTES, MISSING_FILE

END_REASONS = {
    "no_worker": "the TPU VM heard of no worker for too long, saved the outputs and asked Google to delete it",
    "restarted": "the TPU VM restarted while the job ran, as for Google's maintenance",
    "shut_down": "the TPU VM was shut down while the job ran",
    "silent": "the TPU VM did not report the end of its job",
}
"""Ends without an exit code that a VM reports, all of them `tpu_lost`."""
_NO_REASON = "process_lost"
_MAX_EXIT_CODE = 255  # POSIX exit codes are bytes
_TOO_LATE = 1 << 40


def write_reported_end(control: Path, end: dict[str, object]) -> None:
    """Write a VM's report of the end to its control folder; whatever it says, there is an end.

    `end`: the report. The job can write it, too: only known values are accepted.
    """
    missing, at, code, reason = (end.get(name) for name in ("missing", "at", "code", "reason"))
    if isinstance(missing, str) and (words := _first_line(missing)):
        write_control_file(control, MISSING_FILE, words)
    if isinstance(at, int | float) and 0 <= at < _TOO_LATE:  # NaN is not
        write_control_file(control, ENDED_AT_FILE, str(float(at)))
    if type(code) is int and 0 <= code <= _MAX_EXIT_CODE:
        write_control_file(control, "exit", str(code))
    else:
        known = isinstance(reason, str) and reason in END_REASONS
        write_control_file(control, END_FILE, str(reason) if known else _NO_REASON)


def _first_line(text: str) -> str:
    """Shorten a text of the VM for a control file, which has one line of ASCII."""
    line = " ".join(text.split()).encode("ascii", "replace")[: MISSING_BYTES - 1].decode("ascii")
    return "".join(letter if letter.isprintable() else "?" for letter in line)
