"""Takes the pictures of the docs: `make screenshots` starts a server with jobs, and a browser that visits its pages."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.browser import Browser, Chromium, find_chromium  # noqa: E402
from support.sample_dashboard import SampleDashboard  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
SHOWN = (
    *("now", "jobs", "job", "log", "diff", "failed-job", "new-job", "metrics", "artifacts", "report", "comparison"),
    *("project", "machines", "keys"),
)
SIZE = (1280, 800)


def main() -> int:
    """Replace the pictures; return the exit code."""
    if find_chromium() is None:
        print("error: no Chromium is installed. Install it with: sudo apt-get install chromium", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        dashboard = SampleDashboard(Path(temporary))
        chromium = Chromium(Path(temporary) / "profile")
        try:
            browser = Browser(chromium, size=SIZE)
            browser(
                "Emulation.setDeviceMetricsOverride", width=SIZE[0], height=SIZE[1], deviceScaleFactor=1, mobile=False
            )
            dashboard.sign_in(browser)
            for page in SHOWN:
                dashboard.open(browser, page)
                browser.screenshot(FOLDER / f"{page}.png")
                print(f"docs/screenshots/{page}.png")
        finally:
            chromium.close()
            dashboard.deployment.stop()
    return 0


sys.exit(main())
