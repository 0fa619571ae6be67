"""Documents: JSON as a tree, lines of JSON as trees, Markdown as HTML without any HTML of its own."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markupsafe import Markup

from service.dashboard.rendering import artifact_url, job_url, show_reordering

_MAX_JSON = 1024**2  # most characters parsed at once, during which no other thread runs
_NODES = 4000
_DEPTH = 20
_VALUE = 2000
_LINES = 200
_MARKDOWN_BYTES = 128 * 1024
_MARKDOWN_STEPS = 50_000
_MARKDOWN_TOKENS = 20_000
_LINK_CHARACTERS = 512 * 1024
"""Most characters of all links together: a reference repeats a long address in a few characters."""
_ALLOWED_LINKS = ("http://", "https://", "mailto:", "#", "attachment:")
_TASK = re.compile(r"\[([ xX])\] ")
_MATH = re.compile(r"\$\$[^$]{1,500}\$\$|\$(?![\s$])[^$\n]{1,500}(?<![\s\\])\$(?!\d)")
_RELATIVE = re.compile(r"(?![a-z][a-z0-9+.-]*:|[/\\#])[^\x00-\x20]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Node:
    label: str  # its key or index; empty at the top
    value: str  # a scalar as JSON, or the size of an object or array in words
    children: list["Node"] = field(default_factory=list)
    open: bool = False


def read_json(text: str) -> Node | None:
    """Parse a JSON document; None: it is not one, or longer than 1 MiB."""
    try:
        return _node("", _parse_json(text), 0, count())
    except (ValueError, RecursionError):
        return None


def read_json_lines(text: str) -> list[Node] | None:
    """Parse the first lines of JSON; None: a line is not JSON, or longer than 1 MiB."""
    lines = [line for line in islice(text.splitlines(), _LINES) if line.strip()]
    numbers = count()
    try:
        return [_node(str(number), _parse_json(line), 1, numbers) for number, line in enumerate(lines, 1)] or None
    except (ValueError, RecursionError):
        return None


def _parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    if len(text) > _MAX_JSON:
        raise ValueError(len(text))
    return json.loads(text)


def _node(label: str, value: Any, depth: int, numbers: Iterator[int]) -> Node:  # noqa: ANN401 - any JSON
    if not isinstance(value, dict | list) or not value:
        return Node(label, json.dumps(value, ensure_ascii=False)[:_VALUE])
    if depth == _DEPTH:
        return Node(label, "nested too deeply to show: download the file")
    pairs = value.items() if isinstance(value, dict) else ((str(at), child) for at, child in enumerate(value))
    children = []
    for key, child in pairs:
        if next(numbers) >= _NODES:
            children.append(Node("…", "more values: download the file"))
            break
        children.append(_node(key, child, depth + 1, numbers))
    kind = "key" if isinstance(value, dict) else "value"
    size = f"{len(value):,} {kind}{'s' if len(value) != 1 else ''}"
    return Node(label, size, children, open=depth == 0)


class _TooMuchMarkdown(Exception):
    """A document takes too long to render."""


@dataclass(frozen=True, slots=True)
class FileLinks:
    """The addresses of files that one of the same job's artifacts names relative to itself."""

    job_id: str
    path: str
    attempt: int | None

    def target(self, address: str) -> str | None:
        """Return the path of the artifact that a relative address is of; None: of none."""
        path = normpath(join(dirname(self.path), unquote(re.split(r"[?#]", address)[0])))
        return None if not _RELATIVE.match(address) or path.startswith(("..", "/")) else path

    def page(self, address: str) -> str | None:
        path = self.target(address)
        return path and job_url(self.job_id, "/artifacts/view", path=path, attempt=self.attempt)

    def picture(self, address: str) -> str | None:
        path = self.target(address)
        return path if path is None else artifact_url(self.job_id, path, inline=True, attempt=self.attempt)


@dataclass(slots=True)
class MarkdownBudget:
    """The bytes, steps and characters of links that are spent on one file, which may have several texts."""

    size: int = 0
    steps: int = 0
    link: int = 0
    html: int = 0  # characters read of tables


def read_markdown(text: str, links: FileLinks | None = None, spent: MarkdownBudget | None = None) -> Markup | None:
    """Render Markdown. HTML in it is shown as text, and so are images of other sites.

    Returns none if the text is longer than 128 KiB, nested too deep, or takes too many steps, together with what was
    spent before.
    """
    spent = spent or MarkdownBudget()
    spent.size += len(text.encode(errors="replace"))
    if spent.size > _MARKDOWN_BYTES:
        return None
    renderer, counts = _create_renderer(), {"spent": spent, "links": links}
    try:
        tokens = renderer.parse(str(show_reordering(text)), counts)
        # What is nested deeper than this is left out by the library.
        if any(token.level + token.nesting >= renderer.options.maxNesting for token in tokens):
            return None
        return Markup(renderer.renderer.render(tokens, renderer.options, counts))  # noqa: S704 - the renderer escapes, with HTML off
    except _TooMuchMarkdown:
        return None


def _count_step(state: Any, *_args: Any) -> bool:  # noqa: ANN401 - the library's
    """Count one use of the rules: the library's time grows with the square of what a line is nested in."""
    state.env["spent"].steps += 1
    if state.env["spent"].steps > _MARKDOWN_STEPS or len(state.tokens) > _MARKDOWN_TOKENS:
        raise _TooMuchMarkdown
    return False


@cache
def _create_renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.validateLink = lambda url: url.lower().startswith(_ALLOWED_LINKS) or bool(_RELATIVE.match(url))  # type: ignore[method-assign]  # the library's way to set it
    # First of the rules that begin a block, of those that end one, and of those in a line.
    ending: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    renderer.block.ruler.before("table", "count", _count_step, ending)
    renderer.inline.ruler.before("text", "count", _count_step)
    renderer.add_render_rule("link_open", _open_link)
    renderer.add_render_rule("image", _show_image)
    renderer.inline.ruler.before("emphasis", "math", _read_math)
    renderer.add_render_rule("math", _show_math)
    renderer.add_render_rule("list_item_open", _open_item)
    for cell in ("th_open", "td_open"):
        renderer.add_render_rule(cell, _align_cell)
    return renderer


def _read_math(state: Any, silent: bool) -> bool:  # noqa: ANN401, FBT001 - the library's
    """Take a formula between dollar signs as it is: its underscores and asterisks are no emphasis."""
    match = _MATH.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("math", "code", 0).content = match[0]
    state.pos = match.end()
    return True


def _show_math(_self: Any, tokens: Any, at: int, _options: Any, _env: Any) -> str:  # noqa: ANN401 - the library's
    return str(Markup('<code class="math">{}</code>').format(tokens[at].content))


def _open_item(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:  # noqa: ANN401 - the library's
    children = tokens[at + 2].children if tokens[at + 2 :] and tokens[at + 2].type == "inline" else None
    task = _TASK.match(children[0].content) if children else None
    if not children or task is None:
        return str(self.renderToken(tokens, at, options, env))
    children[0].content = children[0].content[task.end() :]
    state = ' aria-label="to do"' if task[1] == " " else ' aria-label="done" checked'
    return f'<li class="task"><input type="checkbox" disabled{state}> '


def _count_link(token: Any, env: Any) -> None:  # noqa: ANN401 - the library's
    env["spent"].link += sum(len(str(value)) for value in token.attrs.values())
    if env["spent"].link > _LINK_CHARACTERS:
        raise _TooMuchMarkdown


def _open_link(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:  # noqa: ANN401 - the library's
    _count_link(tokens[at], env)
    address = str(tokens[at].attrs["href"])
    if _RELATIVE.match(address):
        tokens[at].attrSet("href", (env["links"] and env["links"].page(address)) or "#")
    tokens[at].attrSet("rel", "noreferrer nofollow")
    return str(self.renderToken(tokens, at, options, env))


def _show_image(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:  # noqa: ANN401 - the library's
    _count_link(tokens[at], env)
    address, text = str(tokens[at].attrs["src"]), self.renderInlineAsText(tokens[at].children or [], options, env)
    shown = env["links"] and env["links"].picture(address)
    if shown is None:
        return str(Markup("{} ({})").format(text, address))
    return str(Markup('<img src="{}" alt="{}" loading="lazy">').format(shown, text))


def _align_cell(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:  # noqa: ANN401 - the library's
    style = tokens[at].attrs.pop("style", "")  # which the page's policy does not allow
    if style == "text-align:right":
        tokens[at].attrSet("class", "number")
    return str(self.renderToken(tokens, at, options, env))
