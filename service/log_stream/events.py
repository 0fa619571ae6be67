import json
from collections.abc import Iterable
from typing import Any

from core.errors import GradientError
from core.formatting import iso_time_ms
from core.storage.joblogs.store import LogLine


def format_event(name: str, data: dict[str, Any], number: int | None = None) -> bytes:
    """Format an event; its number is that of the last line that the client has then."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    numbered = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{numbered}data: {text}\n\n".encode(errors="replace")


def format_error(error: GradientError, status: int) -> bytes:
    fields = {"name": type(error).__name__, "status": status, "message": error.message}
    return format_event("error", {"error": fields})


def line_events(lines: Iterable[LogLine]) -> list[bytes]:
    return [format_event("line", log_row(line), line.line) for line in lines]


def log_row(line: LogLine) -> dict[str, Any]:
    return {"line": line.line, "timestamp": iso_time_ms(line.time_ms), "message": line.message}
