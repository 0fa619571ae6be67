"""Pages of a job that writes markup, control characters and very much into everything, in a real browser."""

import json

import pytest
from support.browser import Browser

EVIL = "\u202e</title></script><img src=x onerror=alert(1)><script>alert(1)</script>{{7*7}}&amp;'\"`\\\u2066"
HOSTILE = """
exec python3 - <<'END'
import json, os
EVIL = json.loads(r'''@EVIL@''')
files = os.environ["GRADIENT_ARTIFACTS_DIR"]
def leave(name, content):
    path = os.path.join(files, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
EVIL_NAME = EVIL.replace("/", "|")
LOADED = "<image href='//x.example/i'/>"
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script>{LOADED}</svg>"
leave("a.svg", SVG)
REFRESH = "<base target=_top><meta http-equiv=refresh content='0;url=/ui/login'>"
leave("a.html", f"{REFRESH}{EVIL}<img src=//x.example/i>{SVG}")
LINKS = "![x](//x.example/i) ![y](/ui/login) [z](javascript:alert(1)) <iframe src=/ui></iframe>"
leave("a.md", f"# {EVIL}\\n\\n{EVIL} {LINKS}")
leave("a.csv", f'"{EVIL_NAME}",=1+1\\n"<b>",2\\n')
leave("a.json", json.dumps({EVIL: [EVIL, {"__proto__": EVIL}]}))
leave("a.jsonl", json.dumps({EVIL: EVIL}) + "\\n")
leave("a.txt", EVIL + "\\x1b[31m\\x07\\b" + "x" * 300000)
leave("a.pdf", "%PDF-1.4 <script>alert(1)</script>")
leave("a.zip", b"PK\\x05\\x06" + b"<script>alert(1)</script>")
leave("events.out.tfevents.1", b"\\x00" * 500 + EVIL.encode())
leave(EVIL_NAME + ".png", EVIL)
leave(EVIL_NAME + "/" + EVIL_NAME, EVIL)
for number in range(600):
    leave(f"many/{number}.png", b"\\x89PNG")
with open(os.environ["GRADIENT_METRICS_FILE"], "w") as metrics:
    for step in range(3000):
        names = {EVIL: step, "train/" + EVIL: 1.0, "__proto__": 2.0, "constructor": step}
        print(json.dumps({"step": step, **names}), file=metrics)
    for step in range(3):
        print(json.dumps({"step": step} | {f"layer/{number}": float(step) for number in range(110)}), file=metrics)
print(EVIL)
print("x" * 1_000_000 + EVIL)
for number in range(3000):
    print(f"\\x1b[38;5;{number % 300}m{number} {EVIL}\\x1b]8;;javascript:alert(1)\\x07link\\x1b]8;;\\x07")
END
""".replace("@EVIL@", json.dumps(EVIL))
MOST_ELEMENTS = 9000
FILES = ["a.svg", "a.html", "a.md", "a.csv", "a.json", "a.jsonl", "a.txt", "a.pdf", "a.zip", "events.out.tfevents.1"]


@pytest.fixture(scope="module")
def job_id(service):
    job_id = service.submit(HOSTILE, name=EVIL, project=EVIL, tags=[EVIL], envVars={"TEXT": EVIL})
    job = service.wait_ended(job_id)
    assert job["state"] == "Stopped", job
    return job_id


@pytest.fixture(
    scope="module",
    params=[((1440, 900), "light"), pytest.param(((390, 844), "dark"), marks=pytest.mark.slow)],
    ids=["wide-light", "narrow-dark"],
)
def browser(request, chromium, service):
    size, scheme = request.param
    browser = Browser(chromium, size=size)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.messages.clear()  # the hint about fields for user names
    yield browser
    browser.close()


# A dialog would stop the page; a violation of the policy and a failed script are among the messages of the browser.


def test_the_pages_of_a_hostile_job_and_its_metrics_are_safe(service, job_id, browser):
    visit(service, browser, "", "document.querySelector('[data-runs-table]')")
    visit(service, browser, f"/{job_id}", "document.querySelector('.tiles') && document.querySelector('.log.last')")
    visit(service, browser, f"/{job_id}/log", "document.querySelector('#log .row')")
    assert browser.evaluate("document.querySelectorAll('#log a[href^=javascript]').length") == 0
    visit(service, browser, f"/{job_id}/metrics?smooth=0.5", "document.querySelector('canvas')")
    names = set(browser.evaluate("[...document.querySelectorAll('.chart-name')].map(one => one.textContent)"))
    assert {"constructor", "__proto__"} <= names
    assert all("\u202e" not in name for name in names)
    # A chart that is not seen is not drawn.
    assert len(names) > 100
    assert browser.evaluate("document.querySelectorAll('canvas').length < 40")


def test_the_artifacts_of_a_hostile_job_are_safe(service, job_id, browser):
    visit(service, browser, f"/{job_id}/artifacts", "document.querySelector('table.files')")
    assert "\u202e" not in browser.text("main")
    visit(service, browser, f"/{job_id}/artifacts?folder=many/", "document.querySelector('[rel=next]')")


@pytest.mark.parametrize("name", FILES)
def test_previews_of_hostile_artifacts_are_safe(service, job_id, browser, name):
    visit(service, browser, f"/{job_id}/artifacts/view?path={name}", "document.querySelector('h1')")


def visit(service, browser, path, ready):
    """Open a page and check that it is whole, that it fits, and that the browser reports nothing about it."""
    browser.open(f"{service.cli_json['url']}/ui/jobs{path}")
    browser.wait_for(ready)
    assert browser.messages == [], path
    assert browser.evaluate("location.pathname") == f"/ui/jobs{path}".partition("?")[0]
    assert browser.evaluate("[...document.scripts].every(one => one.src.startsWith(location.origin + '/ui/static/'))")
    assert browser.evaluate("document.querySelectorAll('[onerror], [onload], main script, title script').length") == 0
    assert browser.evaluate(f"document.querySelectorAll('*').length < {MOST_ELEMENTS}"), path
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
    return browser
