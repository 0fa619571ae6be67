"""A job's server is asked by a signed-in browser: what of the session it gets to see."""

import json

import pytest
from support.browser import Browser
from support.deployment import wait_until

# Listens on every address, as servers in containers do, and answers with the headers that it received.
SERVES = """
exec python3 - <<'END'
import http.server, json, os
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(self.headers)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print("asked:", json.dumps(dict(self.headers)), flush=True)
server = http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ["GRADIENT_PORT_8000"])), Echo)
print("listening", flush=True)
server.serve_forever()
END
"""


@pytest.fixture
def browser(chromium):
    browser = Browser(chromium)
    yield browser
    browser.close()


def headers_received(browser):
    browser.wait_for("document.body && document.body.innerText.includes('User-Agent')")
    return {name.lower(): value for name, value in json.loads(browser.text()).items()}


def test_a_link_to_a_jobs_port_hands_no_session_to_the_job(deployment, browser):
    deployment.start_up(GRADIENT_WORKER__SLOTS="1")
    job_id = deployment.submit(SERVES, ports=["8000"], stopGrace=0)
    browser.sign_in(deployment.cli_json["url"], deployment.cli_json["apiKey"])
    browser.open(f"{deployment.cli_json['url']}/ui/jobs/{job_id}")
    browser.wait_for("document.querySelector('a.port')")
    wait_until(lambda: b"listening" in deployment.raw_log(job_id), "the job to listen")
    browser.click("a.port")
    assert "cookie" not in headers_received(browser)
    browser.open(f"{deployment.cli_json['url']}/ui/jobs/{job_id}")
    assert browser.text(".state .badge") == "Running", "still signed in"
    assert b"gradient_session" not in deployment.raw_log(job_id)
