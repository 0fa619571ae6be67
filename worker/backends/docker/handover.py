"""How this engine hands cards to a container: by CDI names where it offers them, else through NVIDIA's runtime."""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from worker.backends.base import BackendError

KIND = "nvidia.com/gpu"
REFUSAL = "could not select device driver"
"""What an engine says that has nothing to hand cards over with."""

_HOOK = "nvidia-container-runtime-hook"
# A specification is YAML or JSON that `nvidia-ctk cdi generate` writes; only these two of its keys matter here.
_OF_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:,|$)""", re.MULTILINE)
_NAME = re.compile(r"""(?:^|[\s{,-])["']?name["']?\s*:\s*["']?([A-Za-z0-9][A-Za-z0-9_.:-]*)""", re.MULTILINE)


def cdi_names(cards: Sequence[str], info: dict[str, Any]) -> tuple[str, ...]:
    """The cards' CDI names; none if the engine does not offer all of them by name.

    Args:
        cards: Indices or UUIDs.
        info: What the engine tells of itself.
    """
    names = tuple(f"{KIND}={card}" for card in cards)
    return names if set(names) <= set(_offered(info)) else ()


def require(cards: Sequence[str], info: dict[str, Any]) -> None:
    """Make sure that the engine can hand these cards over, before anything is made.

    Raises:
        BackendError: It cannot.
    """
    if not can_hand_over(cards, info):
        runtimes = ", ".join(sorted(info.get("Runtimes") or {})) or "none"
        raise BackendError("no_gpu_runtime", f"its runtimes are {runtimes}")


def can_hand_over(cards: Sequence[str], info: dict[str, Any]) -> bool:
    """Whether the engine can hand these cards over, as far as it tells."""
    # An engine that finds the toolkit's hook when it starts needs no runtime of that name, and does not say so.
    return "nvidia" in (info.get("Runtimes") or {}) or bool(cdi_names(cards, info)) or shutil.which(_HOOK) is not None


def _offered(info: dict[str, Any]) -> Iterator[str]:
    if "DiscoveredDevices" in info:  # Docker 28.3 and later
        yield from (one["ID"] for one in info["DiscoveredDevices"] or () if one.get("Source") == "cdi")
        return
    for folder in info.get("CDISpecDirs") or ():  # 25 and later, where CDI is on
        for file in sorted(Path(folder).glob("*")):
            if file.suffix in {".yaml", ".json"}:
                yield from _specified(file)


def _specified(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(errors="replace")
    except OSError:  # the engine says soon enough what it cannot read either
        return
    if _OF_KIND.search(text):
        yield from (f"{KIND}={name}" for name in _NAME.findall(text))
