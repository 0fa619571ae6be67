"""Rendering of templates: all output of jobs is escaped, and only the service's own files may run or load."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from core.db.models.metrics import to_json
from core.formatting import (
    MIB,
    format_bytes,
    format_cost,
    format_dollars,
    format_duration,
    format_memory,
    format_moment,
    format_price,
    iso_time,
)
from core.jobs.costs.report import format_spent
from core.jobs.reasons import CANNOT_START
from core.search.query_text import quote as quote_term
from service.dashboard.assets import ICONS, MODULES, asset_url
from service.presenters.jobs import STATE_WORDS
from service.schemas.jobs import JobView

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "private, no-store",
}

NO_VALUE = "\N{EN DASH}"  # shown in place of a missing value

_REORDERING = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONSTANTS = {"modules": MODULES, "CANNOT_START": CANNOT_START, "asset_url": asset_url, "query_term": quote_term}
_WHOLE, _LONG = 999.5, 1e15  # from here on values have no decimals of worth, or are written with exponents
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def render_page(template: str, status: int = 200, **values: Any) -> HTMLResponse:  # noqa: ANN401 - what the template shows
    """Render a page. `template`: name of a file in `templates/`."""
    html = _environment.get_template(template).render(**values)
    # JSON that a job wrote may have halves of surrogate pairs.
    return HTMLResponse(html.encode(errors="backslashreplace"), status, PAGE_HEADERS)


def format_time(at: datetime) -> Markup:
    """Format a time as a `<time>` element: exact in UTC, unless a script turns it into "5 minutes ago"."""
    return _time_element(at, "")


def format_future_time(at: datetime) -> Markup:
    """Format an estimated time, shown by scripts as "soon" once it has passed, not as "just now"."""
    return _time_element(at, Markup(" data-coming"))


def _time_element(at: datetime, mark: str) -> Markup:
    return Markup('<time datetime="{}"{} title="{}">{:%Y-%m-%d %H:%M} UTC</time>').format(
        iso_time(at), mark, format_moment(at), at.astimezone(UTC)
    )


def format_optional_duration(seconds: float | None) -> str:
    return NO_VALUE if seconds is None else format_duration(seconds)


def format_sentence(text: str) -> Markup:
    """Format a sentence of the service, with text between backticks as code."""
    shown = str(show_reordering(text))
    pieces = [
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(shown.split("`"))
    ]
    return Markup("").join(pieces) if len(pieces) % 2 else escape(shown)


def format_number(value: float | None) -> str:
    """Format a measured value with three significant digits, a whole number with all of its digits."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return str(to_json(value))
    size = abs(value)
    whole = size >= _WHOLE or value == int(value)
    return f"{value:,.0f}" if whole and size < _LONG else f"{value:.3g}"


def format_metric(value: float | None, name: str) -> str:
    """Format a value of a metric: a size if its name ends in `_bytes`."""
    if value is None or not math.isfinite(value) or not name.endswith("_bytes"):
        return format_number(value)
    return format_memory(value) if "memory" in name else format_bytes(int(value))


def format_param(value: object) -> str:
    """Format the value of a parameter; None: the job has none of this name."""
    if value is None:
        return NO_VALUE
    return format_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def format_percent(percent: float) -> str:
    """Format a share of one CPU or GPU in whole percent; it may exceed 100."""
    return f"{percent:.0f} %"


def show_reordering(value: object) -> object:
    """Replace characters that reorder the text around them with visible escapes, such as `<U+202E>`.

    With them the file `U+202E gnp.exe` would be shown as `exe.png`.
    """
    if not isinstance(value, str) or value.isascii() or isinstance(value, Markup):
        return value
    return _REORDERING.sub(lambda match: f"<U+{ord(match[0]):04X}>", value)


def exact(text: str) -> Markup:
    """Escape a value that is sent back by a form, without making its reordering characters visible."""
    return escape(text)


def state_word(state: str, reason: str | None = None) -> str:
    """Return the word that pages show for a state of the API."""
    return "Cannot start" if state == "Pending" and reason in CANNOT_START else STATE_WORDS.get(state, state)


def job_word(job: JobView) -> str:
    """Return the word for the state of a job, also of one that was asked to stop."""
    stopping = job.stop_requested and job.state in {"Pending", "Running"}
    return "Stopping" if stopping else state_word(job.state, job.reason)


def strip_colours(text: str) -> str:
    return _COLOURS.sub("", text)


def icon(name: str) -> Markup:
    """Return the drawing of an icon, which says nothing to screen readers."""
    return Markup('<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{}</svg>').format(ICONS[name])


def job_url(job_id: str, rest: str = "", **query: str | int | None) -> str:
    """Return the address of a job's page, or of one below it, leaving out parameters that are None or empty."""
    return _with_query(f"/ui/jobs/{quote(job_id, safe='')}{rest}", query)


def jobs_url(**query: str | None) -> str:
    """Return the address of the list of jobs with these filters."""
    return _with_query("/ui/jobs", query)


def runs_url(**query: str | None) -> str:
    """Return the address of these jobs with their charts."""
    return jobs_url(**query, charts="1")


def settings_url(page: str, **query: str | None) -> str:
    return _with_query(f"/ui/settings/{page}", query)


def new_job_url(**options: str | None) -> str:
    """Return the address of the form of a new job with these options filled in."""
    return _with_query("/ui/jobs/new", options)


def project_url(name: str) -> str:
    return f"/ui/projects/{quote(name, safe='')}"


def costs_url(path: str = "/ui/costs", **query: str | int | None) -> str:
    return _with_query(path, query)


def artifact_url(job_id: str, path: str, *, inline: bool = False, attempt: int | None = None) -> str:
    address = f"/jobs/{quote(job_id, safe='')}/artifacts/file/{quote(path, safe='/')}"
    return _with_query(address, {"inline": "1" if inline else None, "attempt": attempt})


def lines_url(job_id: str, path: str, attempt: int | None = None) -> str:
    """Return the address of the lines of a text artifact."""
    return _with_query(f"/jobs/{quote(job_id, safe='')}/artifacts/lines", {"path": path, "attempt": attempt})


def zip_url(job_id: str, *, prefix: str = "", attempt: int | None = None) -> str:
    """Return the address of the zip of a job's artifacts, or of those of one folder."""
    return _with_query(f"/jobs/{quote(job_id, safe='')}/artifacts.zip", {"prefix": prefix, "attempt": attempt})


def _with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    given = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{given}" if given else path


_FUNCTIONS = (
    artifact_url,
    costs_url,
    icon,
    job_url,
    jobs_url,
    lines_url,
    new_job_url,
    project_url,
    runs_url,
    settings_url,
    zip_url,
)


def _create_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.dashboard"),
        autoescape=True,
        finalize=show_reordering,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = [
        exact,
        format_bytes,
        format_cost,
        format_dollars,
        format_future_time,
        format_memory,
        format_metric,
        format_number,
        format_optional_duration,
        format_param,
        format_percent,
        format_price,
        format_sentence,
        format_spent,
        format_time,
        job_word,
        state_word,
        strip_colours,
    ]
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals |= _CONSTANTS | {
        "MIB": MIB,
        "server_time": lambda: iso_time(datetime.now(UTC)),
        **{function.__name__: function for function in _FUNCTIONS},
    }
    return environment


_environment = _create_environment()
