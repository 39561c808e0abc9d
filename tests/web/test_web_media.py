"""Pictures, sounds and films from tools, on the page (abi.md 13)."""

from __future__ import annotations

import shutil

import pytest

from tests.mounted.agents import agent, call, script
from tests.mounted.agents import say as answered
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import PACKAGES, from_npm
from tests.mounted.mcp_places import command, declare, tool_is
from tests.mounted.test_agents_places import hung
from tests.waiting import until
from tests.web.acting import answer, go, part, say
from tests.web.browsing import Tab, WebProcess, opened


@pytest.fixture(scope="module")
def pictures(ctx: Ctx) -> str:
    """The official server, with a tool that returns a picture."""
    server = PACKAGES[1]
    program = from_npm("media", server) / "node_modules" / server.rpartition("@")[0] / "dist/index.js"
    node = shutil.which("node")
    assert node
    declare(ctx, "all", command(node, str(program)))
    tool_is(ctx, "all.get-tiny-image")
    return "all.get-tiny-image"


def test_a_picture_is_shown(tab: Tab, page: WebProcess, ctx: Ctx, pictures: str) -> None:
    # abi.md 13.38
    part(tab, page, f"tools/{pictures}")
    tab.get_by_role("button", name="Run").click()
    wide = "all => all.map((each) => each.complete && each.naturalWidth)"
    until(
        lambda: tab.locator("figure img").evaluate_all(wide) or tab.locator("main").inner_text(),
        lambda seen: isinstance(seen, list) and all(seen),
    )
    with agent(ctx, "painter", pictures) as path:
        go(tab, page, path, "painted")
        say(tab, script(call(pictures), answered("here it is")))
        tab.get_by_role("button", name="Allow", exact=True).click()
        answer(tab).get_by_text("here it is").wait_for()
        shown = answer(tab).locator("figure img")
        until(lambda: shown.evaluate_all(wide), lambda seen: len(seen) == 1 and all(seen))
        tab.reload()
        until(lambda: shown.evaluate_all(wide), lambda seen: len(seen) == 1 and all(seen))


@pytest.mark.parametrize("url", ["/etc/passwd", "/proc/self/environ", "/dev/zero", "/", "/no/such", "no path",
    "data:image/png;base64,AAAA", "data:image/svg+xml;base64,PHN2Zy8+"])  # fmt: skip
def test_what_is_no_picture_is_not_read(tab: Tab, page: WebProcess, url: str) -> None:
    # abi.md 13.38: a tool may name any file
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    told = tab.evaluate(
        """async (url) => (await import("/api.js")).file(url).then(() => "read", ({message}) => message)""",
        url,
    )
    assert "is not a picture, sound or film" in told


def test_what_lies_on_another_host_is_a_link(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.38
    part(tab, page, "tools")
    tab.evaluate(
        """async () => { const { attached } = await import("/media.js");
            document.querySelector("main").append(attached({media_type: "image", url: "https://x.example/a.png"}),
                attached({media_type: "image", url: "javascript:window.hurt=1", caption: "<b>x</b>"})); }"""
    )
    assert tab.get_by_role("link", name="a.png").get_attribute("href") == "https://x.example/a.png"
    tab.get_by_text("is not a picture, sound or film").wait_for()
    assert tab.locator('a[href^="javascript"]').count() == 0
    assert tab.locator("main b").count() == 0


def test_files_that_never_come_hold_nothing_up(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.38: a tool may name files where no file system answers
    part(tab, page, "approvals")
    with hung(ctx.work / "hung"):
        tab.evaluate(
            """async (url) => { const { attached } = await import("/media.js");
                for (let number = 0; number < 100; number++)
                    document.querySelector("main").append(attached({media_type: "image", url})); }""",
            str(ctx.work / "hung/picture"),
        )
        other = opened(tab.context, page.url)
        other.get_by_role("link", name="Tools", exact=True).click()
        other.get_by_role("link", name="fs.read", exact=True).wait_for()
        tab.get_by_text("does not answer").first.wait_for()
