"""The page in a real browser, beside `ctx send`: first words, a flood of deltas, memory, and idle CPU.

Rules: times are measured in the browser, from the press of the button to the text in the page. Figures
need Playwright and Chromium, which `make test-web` installs.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from statistics import median
from typing import NamedTuple

from tests.bench import listings, measure
from tests.bench.rows import Row, below, fact
from tests.mounted.ctx_mount import Ctx
from tests.mounted.talking import talk
from tests.web.acting import ECHO, SCRIPTED, go
from tests.web.browsing import CHROMIUM, PLAYWRIGHT, Tab, WebProcess, browsing, person, web

TABS = 20
DELTAS = 20_000
ROUNDS = 9
LARGE = 20  # answers of half a megabyte
IDLE_SECONDS = 5.0
# From the press of Send until a text is in an answer, in ms.
UNTIL_SEEN = """([said, wanted]) => new Promise((done) => {
    const log = document.querySelector('.log');
    const look = new MutationObserver(() => {
        const last = [...log.querySelectorAll('.answer')].at(-1);
        if (!last || !last.textContent.includes(wanted)) return;
        look.disconnect();
        done(performance.now() - began);
    });
    look.observe(log, {childList: true, subtree: true, characterData: true});
    document.querySelector('textarea').value = said;
    const began = performance.now();
    document.querySelector('.conversation form').requestSubmit();
})"""


# Notes when the button that begins a conversation is there, in ms since the address was opened.
USABLE = """new MutationObserver((_, self) => {
    if (![...document.querySelectorAll('button')].some((each) => each.textContent === 'Begin')) return;
    window.usable = performance.now();
    self.disconnect();
}).observe(document, {childList: true, subtree: true})"""


class PageFigures(NamedTuple):
    """Milliseconds, MiB, and ms of CPU in a second."""

    opened: float
    first: float
    over_send: float
    flood: float
    large: float
    memory: float
    idle: float


def figures(ctx: Ctx) -> PageFigures | None:
    if not PLAYWRIGHT.exists() or not shutil.which(CHROMIUM):
        return None
    with web(ctx) as page, browsing() as browser, person(browser, page.link) as tab:
        tab.locator("main h1").first.wait_for()
        tab.add_init_script(USABLE)
        opened = median(_opened(tab, page) for _ in range(ROUNDS))
        go(tab, page, ECHO, "bench")
        first = median(_seen(tab, f"word{number}", f"word{number}") for number in range(ROUNDS))
        words = [listings.program(ctx), "send", "debug/echo", "hello", "--session", "bench-sent"]
        send = median(measure.spawn(words, ctx.environ) for _ in range(ROUNDS))
        go(tab, page, SCRIPTED, "bench")
        steps = [{"burst": DELTAS, "size": 32}, {"delta": "THE END"}]
        flood = _seen(tab, json.dumps(steps), "THE END")
        large = _large(ctx, tab, page)
        before = measure.cpu_ms(ctx.pid)
        time.sleep(IDLE_SECONDS)  # a tab on which nothing is done for so long is measured
        idle = (measure.cpu_ms(ctx.pid) - before) / IDLE_SECONDS
        token = tab.evaluate("localStorage['cortexfs.token']")
        return PageFigures(opened, first, first - send, flood, large, _memory(page, token), idle)


def paging(ctx: Ctx) -> Iterator[Row]:
    if found := figures(ctx):
        yield below("send to first words on the page, over ctx send", found.over_send, "ms", 60)
        yield fact("send to first words on the page", found.first, "ms")
        yield below(f"{DELTAS:,} deltas, from Send to the last of them on the page", found.flood, "ms", 1500)
        yield below("a session of 10 MB is shown, from its address on", found.large, "ms", 1000)
        yield below("the page is usable, from its address on", found.opened, "ms", 200)
        yield below(f"memory of ctx web with {TABS} tabs", found.memory, "MiB", 80)
        yield below("the daemon's CPU for an idle tab, in a second", found.idle, "ms", 1)


def _opened(tab: Tab, page: WebProcess) -> float:
    """Milliseconds from opening the address until a list of models to talk to is there."""
    tab.goto("about:blank")
    tab.goto(f"{page.url}#/talk", wait_until="commit")
    tab.get_by_role("button", name="Begin").wait_for()
    return float(tab.evaluate("window.usable"))


def _large(ctx: Ctx, tab: Tab, page: WebProcess) -> float:
    """Milliseconds from opening a long session until its last words are there."""
    with talk(ctx, f"{SCRIPTED}.sock") as client:
        for number in range(LARGE):
            client.play(
                {"burst": 1 << 9, "size": 1 << 10}, {"delta": f" end {number}"}, session="bench-large"
            )
            client.until("done")
    times = []
    for _ in range(ROUNDS // 3):
        tab.goto("about:blank")
        began = time.perf_counter()
        tab.goto(f"{page.url}#/talk/private/{SCRIPTED.replace('/', '%2F')}/bench-large")
        tab.locator(".log").get_by_text(f"end {LARGE - 1}").first.wait_for()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def _seen(tab: Tab, said: str, wanted: str) -> float:
    return float(tab.evaluate(UNTIL_SEEN, [said, wanted]))


def _memory(page: WebProcess, token: str) -> float:
    """Memory of the process, while so many tabs follow a session and the inbox."""
    with ExitStack() as tabs:
        for number in range(TABS):
            for path in (f"/api/events?object={ECHO}&session=tab{number}", "/api/inbox"):
                connection = tabs.enter_context(closing(http.client.HTTPConnection("127.0.0.1", page.port)))
                connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
                connection.getresponse().read1(1)
        return measure.rss_mib(page.process.pid)
