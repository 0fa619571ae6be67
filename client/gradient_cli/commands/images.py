from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json, print_table


def list_images(args: argparse.Namespace) -> int:
    answer = connect(args).images()
    if args.json:
        return print_json(answer)
    names = answer["images"]
    if not names:
        terminal.print_message("this server has no short names; --container takes image references")
        return OK
    rows = [_row(name) for name in names]
    print_table(("NAME", "IMAGE", "ON GPU TYPES", "WITHOUT DOCKER", "CONTENTS", "ALIASES"), rows, whole=("NAME",))
    terminal.print_message(
        "any other --container is an image reference, such as host/name:tag; a server without Docker accepts only "
        "the names marked here, with any tag"
    )
    return OK


def _row(name: dict[str, Any]) -> list[str]:
    return [
        str(name["name"]),
        str(name.get("image") or ""),
        str(name.get("gpuImage") or ""),
        "yes" if name.get("standIn") else "",
        str(name.get("summary") or ""),
        ", ".join(name.get("aliases") or []),
    ]
