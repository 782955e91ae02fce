"""A real browser for tests of pages: headless Chromium, watched for errors, code that runs, and requests that leave.

Chromium is the system's own, found on PATH. Where there is none a test is left out, and says what to install; in CI, or
with TRUSTJUDGE_BROWSER set, that is a failure.
"""

import os
import shutil
import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler

import pytest
from openai_fixtures import BusyHTTPServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PROBE = "window.pwned = []; window.addEventListener('message', (event) => window.pwned.push(event.data));"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass
class Watched:
    """A page, and what went wrong in it.

    Attributes:
        inside: where its requests may go: the address of the run folder.
    """

    page: object
    inside: str
    wrong: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def watch(self):
        """Write down what must not happen."""
        self.page.on("console", lambda said: said.type in ("error", "warning") and self._no(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self._no(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("popup", lambda popup: self._no(f"popup: {popup.url}"))
        self.page.on("requestfailed", lambda request: self._no(f"failed: {request.url}"))
        self.page.on("request", self._request)

    def _no(self, what):
        self.wrong.append(what)

    def _dialog(self, dialog):
        self._no(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request):
        self.loaded.append(request.url.removeprefix(self.inside))
        if not request.url.startswith((self.inside, "data:", "blob:")):
            self._no(f"request: {request.url}")

    def open(self, name):
        """Open a page of the folder anew."""
        self.page.goto("about:blank")
        self.loaded.clear()
        self.page.goto(self.inside + name)
        self.page.wait_for_selector("main h2")

    def overflow(self):
        """By how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def check(self):
        """Nothing went wrong, and no text became code."""
        assert self.wrong == []
        assert self.page.evaluate("window.pwned") == []


def chromium_path():
    """The system's Chromium."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        said = f"no Chromium on PATH (looked for {', '.join(NAMES)}): install it, on Debian `apt-get install chromium`"
        if os.environ.get("CI") or os.environ.get("TRUSTJUDGE_BROWSER"):
            pytest.fail(said)
        pytest.skip(said)
    return found


@pytest.fixture(scope="session")
def chromium():
    """The browser, started once."""
    path = chromium_path()
    driver = pytest.importorskip("playwright.sync_api", reason="tests of pages need the package playwright")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, headless=True, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Opens a watched page of a run folder: `opened(folder, "report.html")`; all are closed after the test."""
    contexts = []

    def opens(where, name="judgments.html", window=WIDE, scheme="light"):
        context = chromium.new_context(viewport=window, color_scheme=scheme, locale="en-GB")
        contexts.append(context)
        context.set_default_timeout(20_000)
        context.add_init_script(PROBE)
        inside = where if str(where).startswith("http") else where.resolve().as_uri()
        watched = Watched(context.new_page(), f"{inside}/")
        watched.watch()
        watched.open(name)
        return watched

    yield opens
    for context in contexts:
        context.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing on the terminal."""

    def do_GET(self):
        """A browser asks for an icon that no page has."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()


@pytest.fixture
def served():
    """Serves a folder over HTTP on this machine, and says where: `served(folder)`."""
    servers = []

    def serves(folder):
        server = BusyHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serves
    for server in servers:
        server.shutdown()
        server.server_close()
