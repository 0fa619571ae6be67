"""A job's server is asked by a signed-in browser: what of the session it gets to see."""

import json
import subprocess

import pytest
from support.browser import Browser
from support.deployment import CLI_PROGRAM, ORDINARY, Deployment, wait_until

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


# Listens as the servers of notebooks do, prints its address as they do, and leads who comes to it to other names of it.
NOTEBOOK = """
exec python3 - <<'END'
import http.server, os
class Notebook(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked:", self.headers.get("Host"), self.headers.get("Cookie"), flush=True)
        port = os.environ["GRADIENT_PORT_8000"] if self.path == "/inside" else self.headers["Host"].rpartition(":")[2]
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f"<a id=on href='http://{DASHBOARD}:{port}/on'>{self.path}</a>".encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["GRADIENT_PORT_8000"])), Notebook)
print(f"Jupyter Server is running at: http://{DASHBOARD}:{server.server_port}/lab", flush=True)
server.serve_forever()
END
""".replace("DASHBOARD", "'127.0.0.1'")


@pytest.fixture(scope="module", params=["linked", pytest.param("relayed", marks=pytest.mark.slow)])
def service(request, tmp_path_factory):
    """A service with a worker that is root, or one that is not."""
    deployment = Deployment(tmp_path_factory.mktemp("ports") / "home")
    deployment.start_api()
    inside = ORDINARY if request.param == "relayed" else ()
    deployment.start_worker("w1", inside=inside, GRADIENT_PROCESS__SANDBOX="require")
    yield deployment
    deployment.stop()


@pytest.fixture
def notebook(service, browser):
    """A job that serves, and a browser that has signed in."""
    job_id = service.submit(NOTEBOOK, ports=["8000"], stopGrace=0)
    wait_until(lambda: b"running at" in service.raw_log(job_id), "the job to listen")
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    yield job_id
    service.request("POST", f"/jobs/{job_id}/stop?now=true")


@pytest.mark.usefixtures("bubblewrap")
def test_the_address_in_a_log_leads_nowhere(service, browser, notebook):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{notebook}/log")
    browser.wait_for("document.querySelector('#log a[href*=\"/lab\"]')")
    tabs = set(browser.addresses_by_tab())
    browser.click('#log a[href*="/lab"]')
    wait_until(lambda: set(browser.addresses_by_tab()) - tabs, "another tab")
    browser.show_tab((set(browser.addresses_by_tab()) - tabs).pop())
    browser.wait_for("location.protocol === 'chrome-error:'")
    assert b"asked" not in service.raw_log(notebook)


@pytest.mark.usefixtures("bubblewrap")
def test_the_page_of_a_link_leads_to_no_other_name_of_it(service, browser, notebook):
    (port,) = service.job(notebook)["ports"]
    check_job_sees_no_cookie(service, browser, notebook, port["url"])


@pytest.mark.usefixtures("bubblewrap")
def test_a_forwarded_port_is_not_at_the_dashboards_address(service, browser, notebook):
    words = [str(CLI_PROGRAM), "jobs", "port-forward", notebook, "8000:0"]
    with subprocess.Popen(words, env=service.client_environment(), stdout=subprocess.PIPE) as client:
        try:
            check_job_sees_no_cookie(service, browser, notebook, client.stdout.readline().split()[0].decode())
        finally:
            client.kill()


def check_job_sees_no_cookie(service, browser, job_id, url):
    """Open the page of a job, and follow its links to the dashboard's name with the same port, and with its own."""
    for path in ("/", "/inside"):
        browser.open(f"{url}{path}")
        browser.wait_for(f"document.querySelector('#on')?.innerText === '{path}'")
        browser.click("#on")
        browser.wait_for("location.protocol === 'chrome-error:'")
    asked = [line.split()[2] for line in service.raw_log(job_id).decode().splitlines() if line.startswith("asked")]
    assert (len(asked) >= 2, set(asked)) == (True, {"None"})
