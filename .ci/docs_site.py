"""Pages of the documentation site that are not in docs/, and the links to them.

Links are written for people who read the files in the repository; here each gets the address of its page.
"""

import os
import re
from pathlib import Path

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/README.md": "tests.md",
    "CHANGELOG.md": "changelog.md",
    "images/trainer/README.md": "trainer.md",
    "examples/README.md": "examples.md",
    "examples/mnist/README.md": "example.md",
    "examples/tpu-test/README.md": "example-tpu.md",
    "examples/tpu-jax/README.md": "example-tpu-jax.md",
    "examples/tpu-torch/README.md": "example-tpu-torch.md",
    ".env.example": "settings.md",
    "LICENSE": "license.md",
    "examples/github-actions/train.yml": "workflow.md",
    "deploy/nginx.conf": "nginx.md",
    "deploy/prometheus-rules.yml": "alerts.md",
    "tests/support/toy_backend.py": "toy.md",
}
"""Pages of the site by the files outside of docs/ that they show."""
_texts: dict[str, tuple[str, str]] = {}  # title and Markdown of the pages that were built
_LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add the files outside of docs/."""
    for source, page in OUTSIDE.items():
        if (path := ROOT / source).exists():
            text = path.read_text(encoding="utf-8")
            if path.suffix != ".md":
                text = f"# {Path(page).stem.capitalize()}\n\n```\n{text}```\n"
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:  # noqa: ARG001 - named by the generator
    """Replace links between files of the repository with links between pages of the site."""
    sources = {page: source for source, page in OUTSIDE.items()}
    uri = page.file.src_uri
    folder = Path(sources.get(uri, f"docs/{uri}")).parent

    def to_page(link: re.Match[str]) -> str:
        target = os.path.normpath(folder / link[2])
        there = OUTSIDE.get(target) or target.removeprefix("docs/")
        return f"{link[1]}{os.path.relpath(there, Path(uri).parent)}{link[3]}"

    _texts[uri] = page.title or uri, _LINK.sub(to_page, markdown)
    return _texts[uri][1]


def on_post_build(config: ProperDocsConfig) -> None:
    """Write each page's Markdown beside it, and llms.txt, which lists them, as https://llmstxt.org says it."""
    site = Path(config.site_dir)
    for uri, (_, text) in _texts.items():
        (site / uri).write_text(text, encoding="utf-8")
    pages = "\n".join(f"- [{title}]({uri})" for uri, (title, _) in _texts.items())
    summary = (
        "Job submission for machine-learning training: from a folder to a machine, with log, metrics and artifacts."
    )
    (site / "llms.txt").write_text(f"# {config.site_name}\n\n> {summary}\n\n## Pages\n\n{pages}\n", encoding="utf-8")
