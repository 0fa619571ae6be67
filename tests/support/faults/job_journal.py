"""Records that jobs write about their own runs, to be compared with what the service says of them.

`recorded_command(body)` keeps its files in `$GRADIENT_STORAGE_DIR/truth/<job id>/`, named `<attempt>.<what>`:

- `starts`: a line for each start, the pid of the shell;
- `overlaps`: a line for each other run of the job that lived when this one began;
- `unsaid`: a line for each `say` whose output was refused: its disk was full;
- `out`: every byte it printed by `say`, or `digest`: sha256 and size, of a program too loud to keep a copy;
- `artifacts`: a line for each file it left by `leave`, sha256 and name;
- `term`: a line for each SIGTERM it heard;
- `exit`: its exit code, the last thing it writes.
"""

from dataclasses import dataclass, field
from pathlib import Path

_PROLOGUE = r"""
mkdir -p "$GRADIENT_STORAGE_DIR/truth/$GRADIENT_JOB_ID"
truth="$GRADIENT_STORAGE_DIR/truth/$GRADIENT_JOB_ID/$GRADIENT_ATTEMPT"
say() { if printf '%s\n' "$1"; then printf '%s\n' "$1" >>"$truth.out"; else echo "$1" >>"$truth.unsaid"; fi; }
leave() {
  printf '%s' "$2" >"$GRADIENT_ARTIFACTS_DIR/$1" || return 0
  printf '%s' "$2" | sha256sum | { read -r sum _; printf '%s %s\n' "$sum" "$1" >>"$truth.artifacts"; }
}
finish() { echo "$1" >"$truth.exit"; exit "$1"; }
"""
_DETECT_OVERLAP = """
for other in "$GRADIENT_STORAGE_DIR/truth/$GRADIENT_JOB_ID"/*.starts; do
  [ -e "$other" ] && while read -r pid; do
    [ -e "/proc/$pid/stat" ] && read -r _ _ mode _ <"/proc/$pid/stat" && [ "$mode" != Z ] &&
      echo "$pid" >>"$truth.overlaps"
  done <"$other"
done
"""


def gate_command(name: str = "go") -> str:
    """Waits until a file of this name is in the storage."""
    return f'until [ -e "$GRADIENT_STORAGE_DIR/{name}" ]; do sleep 0.2; done'


def recorded_command(body: str = "say done", code: int = 0, *, alone: str = _DETECT_OVERLAP) -> str:
    """A command that keeps its own record; `body` may use say, leave and finish.

    Args:
        body: What it does.
        code: Its exit code.
        alone: How it finds out whether another run of the job lives.
    """
    return f'{_PROLOGUE}{alone}echo $$ >>"$truth.starts"\n{body}\nfinish {code}\n'


@dataclass
class JobJournal:
    """The record that one attempt wrote of itself."""

    starts: list[int] = field(default_factory=list)
    overlaps: list[int] = field(default_factory=list)
    unsaid: bool = False
    out: bytes | None = None
    digest: tuple[str, int] | None = None
    artifacts: dict[str, str] = field(default_factory=dict)
    exit: int | None = None
    ended_at: float | None = None
    """Unix time at which the exit code was written."""


def read_journals(storage: Path) -> dict[tuple[str, int], JobJournal]:
    """Read the records of all attempts, by job id and attempt."""
    found: dict[tuple[str, int], JobJournal] = {}
    for file in sorted(storage.glob("projects/*/truth/*/*")):
        attempt, _, what = file.name.partition(".")
        journal = found.setdefault((file.parent.name, int(attempt)), JobJournal())
        data = file.read_bytes()
        if what in {"starts", "overlaps"}:
            setattr(journal, what, [int(pid) for pid in data.split()])
        elif what == "unsaid":
            journal.unsaid = True
        elif what == "out":
            journal.out = data
        elif what == "digest":
            sha256, size = data.decode().split()
            journal.digest = sha256, int(size)
        elif what == "artifacts":
            journal.artifacts = {
                name: sha256 for sha256, name in (line.split(" ", 1) for line in data.decode().splitlines())
            }
        elif what == "exit" and data.strip():
            journal.exit, journal.ended_at = int(data), file.stat().st_mtime
    return found
