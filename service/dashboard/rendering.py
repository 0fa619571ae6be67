"""Rendering of templates: all output of jobs is escaped, and only the service's own files may run or load."""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from core.formatting import format_bytes, format_duration, iso_time
from service.dashboard.assets import asset_url

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "private, no-store",
}

NO_VALUE = "\N{EN DASH}"
"""Shown in place of a missing value."""

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_EXACT_DOLLARS = 1
_LEAST_DOLLARS = 0.0001


def render_page(template: str, status: int = 200, **values: Any) -> HTMLResponse:  # noqa: ANN401 - what the template shows
    """Render a page.

    Args:
        template: Name of a file in `templates/`.
        status: HTTP status.
        values: The template's variables.
    """
    return HTMLResponse(_environment.get_template(template).render(**values), status, PAGE_HEADERS)


def format_time(at: datetime) -> Markup:
    """Format a time as a `<time>` element: exact in UTC, unless a script turns it into "5 minutes ago"."""
    return _time_element(at, "")


def format_future_time(at: datetime) -> Markup:
    """Format an estimated time, shown by scripts as "soon" once it has passed, not as "just now"."""
    return _time_element(at, Markup(" data-coming"))


def _time_element(at: datetime, mark: str) -> Markup:
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}"{} title="{:%Y-%m-%d %H:%M:%S} UTC">{:%Y-%m-%d %H:%M} UTC</time>').format(
        iso_time(at), mark, at, at
    )


def format_optional_duration(seconds: float | None) -> str:
    """Format a duration; a missing one as a dash."""
    return NO_VALUE if seconds is None else format_duration(seconds)


def format_dollars(amount: float) -> str:
    """Format an amount of US dollars; small ones with four decimals, so that a short job does not seem free."""
    if 0 < amount < _LEAST_DOLLARS:
        return f"<${_LEAST_DOLLARS}"
    return f"${amount:,.2f}" if amount >= _EXACT_DOLLARS or amount == 0 else f"${amount:.4f}"


def format_price(amount: float) -> str:
    """Format a price in US dollars with two decimals, or up to four if needed."""
    whole, _, rest = f"{amount:,.4f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def format_sentence(text: str) -> Markup:
    """Format a sentence of the service, with text between backticks as code."""
    pieces = [
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(text.split("`"))
    ]
    return Markup("").join(pieces) if len(pieces) % 2 else escape(text)


def format_number(value: float | None) -> str:
    """Format a measured value with at most six significant digits."""
    return NO_VALUE if value is None else f"{value:.6g}"


def format_percent(percent: float) -> str:
    """Format a share of one CPU or GPU in whole percent; it may exceed 100."""
    return f"{percent:.0f} %"


def strip_colours(text: str) -> str:
    """Strip the colours from a line of a log."""
    return _COLOURS.sub("", text)


def job_url(job_id: str, rest: str = "", **query: str | None) -> str:
    """Return the address of a job's page, or of one below it, leaving out parameters that are None or empty."""
    return _with_query(f"/ui/jobs/{quote(job_id, safe='')}{rest}", query)


def jobs_url(**query: str | None) -> str:
    """Return the address of the list of jobs with these filters."""
    return _with_query("/ui/jobs", query)


def artifact_url(job_id: str, path: str, *, inline: bool = False) -> str:
    """Return the address of one artifact's content."""
    shown = "?inline=1" if inline else ""
    return f"/jobs/{quote(job_id, safe='')}/artifacts/file/{quote(path, safe='/')}{shown}"


def _with_query(path: str, query: dict[str, str | None]) -> str:
    given = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{given}" if given else path


def _create_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = [
        format_bytes,
        format_dollars,
        format_future_time,
        format_number,
        format_optional_duration,
        format_percent,
        format_price,
        format_sentence,
        format_time,
        strip_colours,
    ]
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals |= {
        "asset_url": asset_url,
        "artifact_url": artifact_url,
        "job_url": job_url,
        "jobs_url": jobs_url,
    }
    return environment


_environment = _create_environment()
