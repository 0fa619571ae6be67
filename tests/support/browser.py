"""A headless Chromium, spoken to over a pipe with the DevTools protocol, and separate browsers in it."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.deployment import TIMEOUT_SECONDS

# The first has no windows at all, and takes half the CPU time.
_PROGRAM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--site-per-process",
    "--enable-features=IsolateSandboxedIframes",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--no-startup-window",
    "--remote-debugging-pipe",
)


# A filter of system calls that refuses netlink sockets: where one opens, Chromium learns of every network that a job of
# another test gets, and gives up pages and requests that it is loading (net::ERR_NETWORK_CHANGED).
# The protocol's pipe is on descriptors 3 and 4.
_LAUNCH_SCRIPT = """
import ctypes, errno, fcntl, os, platform, socket, struct, sys
instruction = struct.Struct("HBBI").pack
code = (
    instruction(0x20, 0, 0, 0),  # load the call's number
    instruction(0x15, 0, 3, {"x86_64": 41, "aarch64": 198}[platform.machine()]),  # of socket(); else allow
    instruction(0x20, 0, 0, 16),  # load its first argument
    instruction(0x15, 0, 1, socket.AF_NETLINK),  # else allow
    instruction(0x06, 0, 0, 0x50000 | errno.EAFNOSUPPORT),
    instruction(0x06, 0, 0, 0x7FFF0000),  # allow
)
buffer = ctypes.create_string_buffer(b"".join(code))
program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(buffer)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
for option, *arguments in (38, 1, 0, 0, 0), (22, 2, ctypes.byref(program)):  # no new privileges, then the filter
    if prctl(option, *arguments):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
pipe = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, number in enumerate(pipe, 3):
    os.dup2(number, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


# The middle of an element in the window; else the reason that a person cannot click it.
_PLACE = """selector => {
    const element = document.querySelector(selector);
    if (!element) return 'there is none';
    const seen = () => element.getClientRects()[0];
    if (!seen()) return 'it is not shown';
    const middle = box => [box.left + box.width / 2, box.top + box.height / 2];
    const inWindow = box => box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
    const top = () => document.elementFromPoint(...middle(seen()));
    const isOnTop = node => element.contains(node) || node?.closest('label')?.control === element;
    // A bar may cover it that stays where it is.
    if (!inWindow(seen()) || !isOnTop(top()))
        element.scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'});
    if (isOnTop(top())) return middle(seen());
    return top() ? `it is covered by ${top().outerHTML.slice(0, 200)}` : 'it is out of the window';
}"""


_HURRY = """
for (const name of ["setTimeout", "setInterval"]) {
    const later = window[name];
    window[name] = (action, pause, ...rest) => later(action, pause / 10, ...rest);
}
"""


def find_chromium() -> str | None:
    """The browser's program, if it is installed."""
    return next((found for name in _PROGRAM_NAMES if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser could not do what it was told: the page has no such thing, or is just being left."""


class Chromium:
    """A running Chromium without windows; it ends with the process that started it, however that ends.

    Args:
        profile: An empty folder for what it keeps.

    Attributes:
        cookies: Of the first browser that signed in, by the server's address and the key.
        messages: Console output and errors of pages, by the session of the protocol that they are reported to.
    """

    def __init__(self, profile: Path) -> None:
        program = find_chromium()
        assert program is not None
        # Its end of the pipe closes with this process, and Chromium ends with the pipe.
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        arguments = (*_FLAGS, f"--user-data-dir={profile}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH_SCRIPT, str(to_browser), str(from_browser), program, *arguments],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._message_ids = itertools.count(1)
        self._received = b""
        self.messages: dict[str, list[str]] = {}
        self.cookies: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """One call of the protocol, to the page of a session or to Chromium itself."""
        number = next(self._message_ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(answer["error"]["message"])
                return answer["result"]
            self._record_message(answer)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)

    def _record_message(self, event: dict[str, Any]) -> None:
        messages = self.messages.get(event.get("sessionId", ""))
        if messages is None:
            return
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            messages.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            messages.append(json.dumps(parameters["args"]))
        elif event.get("method") == "Log.entryAdded" and "was preloaded" not in parameters["entry"]["text"]:
            # A file that is used later than Chromium expects is a matter of the machine's pace and the window's size.
            messages.append(parameters["entry"]["text"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            block = os.read(self._in, 65536)
            assert block, "the browser has ended"
            self._received += block
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


class Browser:
    """One person's browser: a window with cookies, storage and a cache of its own, and one page in it.

    Args:
        chromium: Chromium to open it in.
        size: Width and height of the window, CSS pixels.

    Attributes:
        context: Chromium's id of it, for the calls of the protocol that take one.
        messages: Console output and errors of its pages.
    """

    def __init__(self, chromium: Chromium, *, size: tuple[int, int] = (1280, 900)) -> None:
        self._chromium = chromium
        self._sessions: list[str] = []
        self.messages: list[str] = []
        self.context: str = chromium.call("Target.createBrowserContext", {})["browserContextId"]
        self.open_tab(width=size[0], height=size[1])
        if size[0] < 500:  # a window cannot be as narrow as a telephone
            self("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=True)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol, to the page."""
        return self._chromium.call(method, parameters, self._sessions[-1])

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def hurry(self) -> None:
        """Have the timers of pages that are opened in this tab from now on run ten times as fast."""
        self("Page.addScriptToEvaluateOnNewDocument", source=_HURRY)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression on the page."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until an expression is true; what it looks at may not be there yet, or be on the next page."""
        until = time.monotonic() + seconds
        while not self._is_true(expression):
            assert time.monotonic() < until, f"{expression}: {self.evaluate('document.body.innerText')!r}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """The text that is seen of an element, once it is there: a script may still have to make it."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.wait_for(element)
        return self.evaluate(f"{element}.innerText")

    def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click an element with the mouse, once it is shown at rest and nothing covers it."""
        place = f"({_PLACE})({json.dumps(selector)})"
        until, last = time.monotonic() + TIMEOUT_SECONDS, None
        while (found := self.evaluate(place)) != last or isinstance(found, str):
            assert time.monotonic() < until, f"{selector} cannot be clicked: {found}"
            last = found
            time.sleep(0.02)
        mouse = {"x": found[0], "y": found[1], "button": "left", "clickCount": 1}
        self("Input.dispatchMouseEvent", type="mousePressed", **mouse)
        self("Input.dispatchMouseEvent", type="mouseReleased", **mouse)

    def leave(self, selector: str) -> None:
        """Click what leads to another page, and wait until that is there: the old one may already look like it."""
        self.evaluate("window.left = true")
        self.click(selector)
        self.wait_for("!window.left && document.readyState === 'complete'")

    def screenshot(self, path: Path) -> None:
        """Keep what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))

    def sign_in(self, url: str, api_key: str) -> None:
        """Sign in to the dashboard of the server at an address, and wait until the list of jobs is there.

        Only the first browser uses the form; others have the cookie that it got.
        """
        kept, own = self._chromium.cookies, {"browserContextId": self.context}
        if cookies := kept.get((url, api_key)):
            self._chromium.call("Storage.setCookies", own | {"cookies": cookies})
            self.open(f"{url}/ui/jobs")
        else:
            self.open(f"{url}/ui/login")
            self.fill("#key", api_key)
            self.click("form.sign-in button")
        self.wait_for("location.pathname === '/ui/jobs' && document.readyState === 'complete'")
        kept.setdefault((url, api_key), self._chromium.call("Storage.getCookies", own)["cookies"])

    def open_tab(self, **size: int) -> str:
        """Open another tab and go on in it; the others are hidden then. Returns its id."""
        parameters = {"url": "about:blank", "browserContextId": self.context, **size}
        tab: str = self._chromium.call("Target.createTarget", parameters)["targetId"]
        self.show_tab(tab)
        return tab

    def show_tab(self, tab: str) -> None:
        """Go on in this tab."""
        self._chromium.call("Target.activateTarget", {"targetId": tab})
        session = self._chromium.call("Target.attachToTarget", {"targetId": tab, "flatten": True})["sessionId"]
        self._sessions.append(session)
        self._chromium.messages[session] = self.messages
        for domain in ("Page", "Runtime", "Log"):
            self(f"{domain}.enable")

    def addresses_by_tab(self) -> dict[str, str]:
        """The address of each tab, by the tab's id."""
        targets = self._chromium.call("Target.getTargets", {})["targetInfos"]
        return {one["targetId"]: one["url"] for one in targets if one.get("browserContextId") == self.context}

    def close(self) -> None:
        """Close the window, and forget its cookies and storage."""
        self._chromium.call("Target.disposeBrowserContext", {"browserContextId": self.context})
        for session in self._sessions:
            del self._chromium.messages[session]

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except BrowserError:
            return False
