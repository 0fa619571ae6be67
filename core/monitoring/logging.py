"""Log configuration: JSON or console lines, with job_id and attempt bound to every line of an attempt."""

import logging
import sys

import structlog

_SHARED: list[structlog.types.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(log_format: str, level: str) -> None:
    """Set up logging, once, at the start of the process.

    Args:
        log_format: `console` for people, `json` for machines (in which no field can forge a line).
        level: debug, info, warning or error.
    """
    renderer: structlog.types.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
        last: list[structlog.types.Processor] = [structlog.processors.format_exc_info, renderer]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=0,
            # With `rich` installed, the default prints the local variables of every frame: keys and passwords leak,
            # and each error takes seconds while the database is down.
            exception_formatter=structlog.dev.plain_traceback,
        )
        last = [renderer]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("alembic", "uvicorn.access", "uvicorn.error", "multipart", "python_multipart"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def bind(**context: object) -> None:
    """Add fields to every line that this thread logs from now on."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
