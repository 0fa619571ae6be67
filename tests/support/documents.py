"""The snippets of README and docs."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PLACEHOLDER = "PLACEHOLDER"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What a snippet has that a test cannot run, what runs instead, and why.
SUBSTITUTES = [
    ("docs/sdk.md", '.plot(x="step", y="loss")', '[["step", "loss"]]', "matplotlib is not among the tests' packages"),
    ("docs/sdk.md", 'requirements=["torch"], ', "", "takes gigabytes"),
    ("docs/sdk.md", "    ...\n", "    loss = Network(rate)\n", "stands for the reader's program"),
    ("docs/sweeps.md", "trials=64", "trials=2", "takes minutes"),
]
NOT_RUN = {
    "from gradient_server.simulator": "needs TensorFlow",
    "from torch import nn": "needs PyTorch; tests/e2e/training/test_first_pytorch_job.py has it",
    "gradient_jobs.watch(model)": "needs PyTorch; tests/gradient_jobs/test_watch.py has it",
}
"""Python blocks that are only compiled, by a part of them, and why."""


def documents() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def blocks() -> Iterator[tuple[str, str, str]]:
    """Yield the path, the language and the text of each fenced block."""
    for path, text in documents():
        for match in _BLOCK.finditer(text):
            yield path, match[1], match[2]


def inline_codes() -> Iterator[tuple[str, str]]:
    for path, text in documents():
        for code in re.findall(r"`([^`]+)`", _BLOCK.sub("", text)):
            yield path, " ".join(code.split())


def python_blocks() -> list[tuple[str, str]]:
    """Return path and text of each block of Python, with its substitutes."""
    found = []
    for path, language, text in blocks():
        changed = text
        for place, old, new, _ in SUBSTITUTES:
            changed = changed.replace(old, new) if place == path else changed
        if language == "python":
            found.append((path, changed))
    return found
