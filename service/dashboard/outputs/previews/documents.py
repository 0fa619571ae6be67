"""Documents: JSON as a tree, lines of JSON as trees, Markdown as HTML without any HTML of its own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from service.dashboard.rendering import show_reordering

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_NODES = 4000
_DEPTH = 20
_VALUE = 2000
_LINES = 200
_ALLOWED_LINKS = ("http://", "https://", "mailto:", "#")


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a JSON document.

    Attributes:
        label: Its key or index; empty at the top.
        value: A scalar as JSON, or the size of an object or array in words.
        children: The values in it.
        open: Whether its children are shown at first.
    """

    label: str
    value: str
    children: list["Node"] = field(default_factory=list)
    open: bool = False


def read_json(text: str) -> Node | None:
    """Parse a JSON document; None: it is not one."""
    try:
        return _node("", json.loads(text), 0, count())
    except (ValueError, RecursionError):
        return None


def read_json_lines(text: str) -> list[Node] | None:
    """Parse the first lines of JSON; None: a line is not JSON."""
    lines = [line for line in islice(text.splitlines(), _LINES) if line.strip()]
    numbers = count()
    try:
        return [_node(str(number), json.loads(line), 1, numbers) for number, line in enumerate(lines, 1)] or None
    except (ValueError, RecursionError):
        return None


def _node(label: str, value: Any, depth: int, numbers: Iterator[int]) -> Node:  # noqa: ANN401 - any JSON
    if not isinstance(value, dict | list) or not value:
        return Node(label, json.dumps(value, ensure_ascii=False)[:_VALUE])
    if depth == _DEPTH:
        return Node(label, "too deep to show: download the file")
    pairs = value.items() if isinstance(value, dict) else ((str(at), one) for at, one in enumerate(value))
    children = []
    for key, one in pairs:
        if next(numbers) >= _NODES:
            children.append(Node("…", "more values: download the file"))
            break
        children.append(_node(key, one, depth + 1, numbers))
    kind = "key" if isinstance(value, dict) else "value"
    size = f"{len(value):,} {kind}{'s' if len(value) != 1 else ''}"
    return Node(label, size, children, open=depth == 0)


def read_markdown(text: str) -> Markup:
    """Render Markdown. HTML in it is shown as text, images are not loaded, and only web links are links."""
    return Markup(_create_renderer().render(str(show_reordering(text))))  # noqa: S704 - the renderer escapes, with HTML off


@cache
def _create_renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415 - 60 modules that no start of the service needs

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    renderer.validateLink = lambda url: url.lower().startswith(_ALLOWED_LINKS)  # type: ignore[method-assign]

    def open_link(self: Any, tokens: Any, at: int, options: Any, _env: Any) -> str:  # noqa: ANN401 - the library's
        tokens[at].attrSet("rel", "noreferrer nofollow")
        return str(self.renderToken(tokens, at, options, _env))

    def align_cell(self: Any, tokens: Any, at: int, options: Any, _env: Any) -> str:  # noqa: ANN401 - the library's
        style = tokens[at].attrs.pop("style", "")  # which the page's policy does not allow
        if style == "text-align:right":
            tokens[at].attrSet("class", "number")
        return str(self.renderToken(tokens, at, options, _env))

    renderer.add_render_rule("link_open", open_link)
    for cell in ("th_open", "td_open"):
        renderer.add_render_rule(cell, align_cell)
    return renderer
