from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from gradient_cli import terminal
from gradient_cli.arguments import connect, is_array_id, resolve_id, resolve_job_id
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json
from gradient_cli.options import add_common, add_for_job, add_job_ids


def add_tensorboard(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    add_common(parser, open_tensorboard, "print the link and the runs as one JSON object, without opening a browser")


def open_tensorboard(args: argparse.Namespace) -> int:
    """Print a link to TensorBoard that works once; on a desktop, open it, too."""
    api = connect(args)
    opened = api.open_tensorboard([resolve_job_id(job_id, api) for job_id in args.ids or [None]])
    link = terminal.sanitize(opened["url"])
    if args.json:
        return print_json({"url": link, "runs": opened["runs"]})
    show_link(link)
    return OK


def open_page(args: argparse.Namespace) -> int:
    api = connect(args)
    job_id = resolve_id(args.id, api)
    url = str((api.array if is_array_id(job_id) else api.job)(job_id).get("url") or "")
    # The page of an array is the list of its members.
    link = terminal.sanitize(url.rpartition("/")[0] + f"/{job_id}" if is_array_id(job_id) else url)
    if args.json:
        return print_json({"id": job_id, "url": link})
    show_link(link)
    return OK


def show_link(link: str) -> None:
    """Print a link; on a desktop, open it in a browser, too."""
    print(link)
    if _has_browser() and link.startswith(("http://", "https://")):
        import webbrowser

        webbrowser.open(link)


def _has_browser() -> bool:
    """Return whether to open a browser: never one that would take over the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


add_open = partial(add_for_job, run=open_page, json="print the link as one JSON object, without opening a browser")
