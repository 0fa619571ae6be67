"""The table of jobs on a page, as text."""

import html
import re


def names(page: str) -> list[str]:
    return re.findall(r'<a id="\w+" href="[^"]*" title="[^"]*">([^<]*)</a>', page)


def columns(page: str) -> dict[str, tuple[str, ...]]:
    """Return the texts of each column by its title; of the best cells with a star."""
    table = re.search(r"<table.*?</table>", page, re.DOTALL)[0]
    titles = re.findall(r'<th scope="col"[^>]*aria-sort[^>]*>(?:<a[^>]*>)?([^<]*)', table)
    rows = re.findall(r"<tr data-run.*?</tr>", table, re.DOTALL)
    cells = [re.findall(r'<t[dh] ?(?:scope="row" )?([^>]*)>(.*?)</t[dh]>', row, re.DOTALL)[1:] for row in rows]
    shown = [[_text(text) + "*" * bool(re.match(r'class="[^"]* best', head)) for head, text in row] for row in cells]
    return dict(zip(titles, zip(*shown, strict=True), strict=True))


def _text(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", markup)).strip()
