"""Every page of the dashboard in a real browser: no fault that axe-core finds, no message, nothing wider than it."""

from urllib.parse import urlsplit

import pytest
from support.browser import Browser
from support.sample_dashboard import SampleDashboard

from service.dashboard import PAGE_MODULES

SIZES = {"wide": (1440, 900), "laptop": (1024, 768), "tablet": (768, 1024), "narrow": (390, 844)}
FAULTS = """axe.run({resultTypes: ["violations"]}).then(({violations}) =>
    violations.map(({id, help, nodes}) => [id, help, nodes.slice(0, 3).map((node) => node.html)]))"""
TOO_WIDE = """[document.documentElement, ...document.querySelectorAll("main section")]
    .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => `too wide: ${box.outerHTML.slice(0, 200)}`)"""
TOO_LOW = """[...document.querySelectorAll("main.job-page .tabs + *")]
    .map((content) => content.getBoundingClientRect().top)
    .filter((top) => top > 140).map((top) => `content begins at ${top} px`)"""
NO_PAGES = {
    *("/", "/ui/runs", "/ui/compare", "/ui/settings"),  # redirects
    *("/ui/static/{version}/{name:path}", "/ui/jobs/complete", "/ui/runs/series"),  # what pages load
    *("/ui/jobs/{job_id}/artifacts/frame", "/ui/jobs/{job_id}/artifacts/selected"),  # content of jobs
    *("/ui/login/provider", "/ui/login/callback", "/ui/login/cli"),  # with an identity provider, in test_provider.py
}
OTHER_ORIGINS = """performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:"))"""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    sample = SampleDashboard(tmp_path_factory.mktemp("pages"))
    yield sample
    sample.deployment.stop()


@pytest.fixture
def browser(request, chromium, dashboard):
    browser = Browser(chromium, size=SIZES[request.param])
    dashboard.sign_in(browser)
    yield browser
    browser.close()


def show_in(browser, theme):
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])


def faults(browser):
    """Everything that is wrong with the page that is open, which has axe-core."""
    messages = [message for message in browser.messages if "responded with a status of 40" not in message]
    found = [*browser.evaluate(FAULTS), *browser.evaluate(OTHER_ORIGINS), *messages]
    browser.messages.clear()
    return found + browser.evaluate(TOO_WIDE) + browser.evaluate(TOO_LOW)


@pytest.mark.parametrize(
    ("browser", "theme"),
    [
        pytest.param(size, theme, marks=() if (size, theme) == ("wide", "light") else pytest.mark.slow)
        for size in SIZES
        for theme in ("light", "dark")
    ],
    indirect=["browser"],
)
@pytest.mark.timeout(600)  # dozens of pages
def test_every_page_serves_everybody(dashboard, browser, axe_core, theme):
    found = {}
    for page in sorted(dashboard.addresses):
        show_in(browser, theme)
        dashboard.open(browser, page)
        browser.evaluate(axe_core)
        assert browser.evaluate(f"matchMedia('(prefers-color-scheme: {theme})').matches")
        found[page] = faults(browser)
    assert {page: of_page for page, of_page in found.items() if of_page} == {}


@pytest.mark.parametrize("browser", ["wide"], indirect=True)
def test_a_running_jobs_content_begins_high_at_every_width(dashboard, browser):
    dashboard.open(browser, "running-job")
    found = {}
    for width in (390, 600, 761, 900, 1100, 1101, 1280):
        browser("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        browser.wait_for(f"innerWidth === {width}")
        found[width] = browser.evaluate(TOO_LOW) + browser.evaluate(TOO_WIDE)
    assert {width: faults for width, faults in found.items() if faults} == {}


def test_the_pages_are_those_of_all_routes(dashboard):
    routes = [route for module in PAGE_MODULES for route in module.router.routes if "GET" in route.methods]
    paths = [urlsplit(address).path for address in dashboard.addresses.values()]
    shown = {next(route.path for route in routes if route.path_regex.match(path)) for path in paths}
    assert {route.path for route in routes} - shown == NO_PAGES


@pytest.mark.parametrize("browser", ["narrow"], indirect=True)
def test_charts_out_of_sight_are_drawn_before_they_are_printed(dashboard, browser):
    browser("Emulation.setDeviceMetricsOverride", width=390, height=320, deviceScaleFactor=1, mobile=True)
    dashboard.open(browser, "metrics")
    empty = "[...document.querySelectorAll('.chart')].filter(chart => !chart.chart.plot).length"
    browser.wait_for(f"{empty} > 0")
    browser("Page.printToPDF")
    assert browser.evaluate(empty) == 0


@pytest.mark.parametrize("browser", ["narrow"], indirect=True)
def test_no_page_is_wider_than_the_screen(dashboard, browser):
    found = {}
    for page in sorted(dashboard.addresses):
        dashboard.open(browser, page)
        found[page] = browser.evaluate(TOO_WIDE)
    assert {page: of_page for page, of_page in found.items() if of_page} == {}


@pytest.mark.parametrize("browser", ["tablet"], indirect=True)
@pytest.mark.parametrize("page", ["now", "machines", "schedules"])
def test_all_columns_are_seen_on_a_tablet(dashboard, browser, page):
    dashboard.open(browser, page)
    hidden = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    assert browser.evaluate(hidden) == 0


@pytest.mark.parametrize("browser", ["wide"], indirect=True)
def test_zooming_is_explained_only_beside_charts(dashboard, browser):
    for page, explained in (("project", True), ("sweep", False)):
        dashboard.open(browser, page)
        assert ("to zoom" in browser.text(".run-curves")) == explained


@pytest.mark.parametrize("browser", ["wide"], indirect=True)
def test_charts_of_different_groups_stand_side_by_side(dashboard, browser):
    dashboard.open(browser, "metrics")
    browser.wait_for("document.querySelectorAll('.job-charts .chart').length > 1")
    tops = "[...document.querySelectorAll('.job-charts .chart')].map((chart) => chart.getBoundingClientRect().top)"
    first, second, *_ = browser.evaluate(tops)
    assert first == second


@pytest.mark.parametrize("browser", ["wide"], indirect=True)
@pytest.mark.parametrize("page", ["jobs", "project"])
def test_a_printed_table_has_all_its_columns(dashboard, browser, page):
    dashboard.open(browser, page)
    browser("Emulation.setEmulatedMedia", media="print")
    browser(
        "Emulation.setDeviceMetricsOverride", width=960, height=720, deviceScaleFactor=1, mobile=False
    )  # of a letter
    ends = "[...document.querySelectorAll('.runs th')].map((cell) => cell.getBoundingClientRect().right)"
    assert max(browser.evaluate(ends)) <= 960
