"""Log configuration: console or JSON lines, with the fields that a request or an attempt has bound in each of them."""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

from core.errors import StoreUnavailable
from core.system.filesystem import FULL_DISK_ERRNOS

_COLORS = {
    logging.DEBUG: "\033[2m",
    logging.INFO: "\033[32m",
    logging.WARNING: "\033[33m",
    logging.ERROR: "\033[31m",
    logging.CRITICAL: "\033[31m",
}
_RESET = "\033[0m"
_REPEAT_SECONDS = 60.0
_MOST_FAILURES = 1000
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that `logging` itself sets; the others of a record are its `extra`."""

_bound: ContextVar[Mapping[str, object]] = ContextVar("bound_fields")


def configure(log_format: str, level: str) -> None:
    """Set up logging, once, at the start of the process.

    `log_format`: `console` for people, `json` for machines (in which no field can forge a line).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _ConsoleFormatter(colors=sys.stderr.isatty()))
    handler.addFilter(_FailureFilter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    if log_format == "json":
        logging.captureWarnings(capture=True)
        sys.excepthook, threading.excepthook = _log_uncaught, _log_uncaught_in_thread
    # That of websockets logs headers with tokens.
    for noisy in ("alembic", "uvicorn.access", "uvicorn.error", "multipart", "python_multipart", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def announce(text: str, level: int = logging.INFO) -> None:
    """Tell the operator something on stderr: as plain text or, where logs are JSON, as a line of the log."""
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("gradient_server").log(level, text)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("gradient_server").critical("uncaught", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and args.exc_type is not SystemExit:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def bind(**fields: object) -> None:
    """Add these fields, and no others, to every line that this thread or task logs from now on."""
    _bound.set(fields)


class _FailureFilter(logging.Filter):
    """Shows failures of disks and stores, which last and are tried again, in one line, and the same one once a minute.

    Their tracebacks say nothing that their message does not; any other exception keeps its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown_at: dict[tuple[str, str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        full = isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS
        if error is None or not (full or isinstance(error, StoreUnavailable)):
            return True
        lines = str(getattr(error.__cause__, "orig", None) or error).splitlines()
        text = lines[0] if lines else type(error).__name__
        record.exc_info, record.__dict__["error"] = None, text
        key, now = (record.name, str(record.msg), text), time.monotonic()
        if now < self._shown_at.get(key, -_REPEAT_SECONDS) + _REPEAT_SECONDS:
            return False
        if len(self._shown_at) >= _MOST_FAILURES:
            self._shown_at.clear()
        self._shown_at[key] = now
        return True


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


class _ConsoleFormatter(logging.Formatter):
    """A line for people: time, level, event, logger, fields; the traceback of an error under it."""

    def __init__(self, *, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():8}"
        if self._colors:
            level = f"{_COLORS.get(record.levelno, '')}{level}{_RESET}"
        fields = "".join([f" {name}={_shown(value)}" for name, value in _fields(record).items()])
        line = f"{_timestamp(record)} [{level}] {record.getMessage()} [{record.name}]{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra = {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}
    return {**_bound.get({}), **extra}


def _shown(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and not {" ", "=", '"', "'"} & set(value):
        return value
    return repr(value)
