"""The documentation site: built from the repository's documents, without dead links or requests to other origins."""

import re
import shutil
from pathlib import Path

import pytest
from properdocs.commands import build as builder
from properdocs.config import load_config
from properdocs.exceptions import Abort

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*\bhref=["']?([^"'\s>]+)"""
)
STYLE_URL = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


def build(site, root=ROOT):
    """Build the site as `properdocs build` does; raises `Abort` after any warning."""
    config = load_config(str(root / "properdocs.yml"), site_dir=str(site))
    config.plugins.on_startup(command="build", dirty=False)
    try:
        builder.build(config)
    finally:
        config.plugins.on_shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


def test_every_document_has_a_page(site):
    expected = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    expected = {path.with_name("index.html") if path.name == "README.html" else path for path in expected}
    pages = {path.relative_to(site) for path in site.rglob("*.html")}
    assert expected | {Path("index.html"), Path("security.html"), Path("settings.html")} <= pages


def test_each_page_is_there_as_markdown_and_listed_for_programs(site):
    listed = re.findall(r"^- \[.+\]\((.+\.md)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert {site / page for page in listed} == set(site.rglob("*.md"))
    assert {path.with_suffix(".html") for path in site.rglob("*.md") if path.name != "README.md"} <= set(
        site.rglob("*.html")
    )
    assert (site / "agents.md").read_text().startswith("# Agents")


def test_pages_load_nothing_from_other_origins(site):
    for page in site.rglob("*.html"):
        loaded = {one or other for one, other in LOADED.findall(page.read_text(encoding="utf-8"))}
        assert not {url for url in loaded if re.match(r"(?:\w+:)?//", url)}, page
    for style in site.rglob("*.css"):
        assert STYLE_URL.findall(style.read_text(encoding="utf-8")) == [], style


@pytest.mark.parametrize("link", ["nothing.md", "jobs.md#nothing", "../core/nothing.py"])
def test_a_dead_link_fails_the_build(tmp_path, caplog, link):
    for name in ("docs", ".ci", "images/trainer/README.md", "examples/mnist/README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    for path in (*ROOT.glob("*.md"), ROOT / "properdocs.yml", ROOT / ".env.example", ROOT / "LICENSE"):
        shutil.copyfile(path, tmp_path / path.name)
    with (tmp_path / "docs" / "cli.md").open("a", encoding="utf-8") as page:
        page.write(f"\n[link]({link})\n")
    with pytest.raises(Abort):
        build(tmp_path / "site", tmp_path)
    assert "cli.md" in caplog.text
