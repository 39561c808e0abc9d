"""The claims of a hostile panel, and the plugins whose panels are shown at all (abi.md 13.30 to 13.32)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.waiting import until
from tests.web.acting import part, question
from tests.web.browsing import Tab, WebProcess, person, web
from tests.web.showing import PANEL, install, package, panel, tried
from tests.web.test_web_gate import asked, token

__all__ = ["token"]
PLUGIN, OTHER = "claiming-plugin", "claimed-plugin"
SECRET = "the-others-secret"
TITLE = "<b onclick=alert(1)>Title</b> & \"'"
CALL = "const said = await Cortex.fetch({path}, {{method: 'POST', body: '{{\"text\": \"a\"}}'}});"


@pytest.fixture(scope="module")
def claiming(ctx: Ctx) -> Iterator[str]:
    """Install a hostile plugin, and another plugin with tools that have effects and with a secret."""
    install(ctx, package(ctx.work / PLUGIN, panels=[PANEL, PANEL | {"id": "odd", "title": TITLE}]))
    secret = {"key": "token", "label": "Token", "type": "secret"}
    settings = [{"section": "All", "fields": [secret]}]
    install(ctx, package(ctx.work / OTHER, capabilities=("fs:read",), settings=settings))
    ctx.ctx("plugin", "config", OTHER, "token", SECRET)
    yield PLUGIN
    for name in (PLUGIN, OTHER):
        ctx.ctx("plugin", "uninstall", name, "--purge")


def fetched(frame: Any, path: str, method: str = "GET") -> Any:
    """Returns the status and text of the answer to a request of the panel."""
    body = ", body: '{}'" if method != "GET" else ""
    return tried(frame, f"""const said = await Cortex.fetch({json.dumps(path)}, {{method: "{method}"{body}}});
        return [said.status, await said.text()];""")  # fmt: skip


def test_a_panel_is_its_own_plugin_whatever_it_says(
    tab: Tab, page: WebProcess, ctx: Ctx, claiming: str
) -> None:
    # abi.md 13.30
    frame = panel(tab, page, claiming)
    for path in (
        "/api/status",
        "/api/plugins",
        "/api/objects",
        "status",
        "",
        "//x/tools/y",
        "/api/frame/open",
    ):
        assert fetched(frame, path)[0] == 403, path
    for path in (
        f"/api/plugins/{OTHER}/config",
        f"../{OTHER}/config",
        f"/api/plugins/{claiming}/../{OTHER}/config",
    ):
        for method in ("GET", "PUT"):
            status, said = fetched(frame, path, method)
            assert status == 403, path
            assert SECRET not in said
    tools = (
        "claimed_plugin_echo",
        "fs.read",
        "fs.write",
        "agent/base",
        "..%2ffs.read",
        "../../etc",
        "a\0b",
        "x" * 999,
    )
    for name in tools:
        assert fetched(frame, f"/api/tools/{name}", "POST")[0] in (400, 403), name
    said = frame.evaluate("""(other) => new Promise((done) => {
        const {port1, port2} = new MessageChannel();
        port1.onmessage = ({data}) => done(data);
        parent.postMessage("cortex", "*", [port2]);  // it has its channel, and gets no other
        const forged = {pluginName: other, notification: {msg: "forged"}};
        parent.postMessage({type: "cortex-notification", ...forged}, "*");
        port1.postMessage({id: 1, op: "getConfig", key: null, plugin: other, frame: other});
        Cortex.emit("config:change", {});
        Cortex.notify("of " + other);
        Cortex.getConfig().then(() => done("nothing"));
    })""", OTHER)  # fmt: skip
    assert said == "nothing"
    tab.get_by_text(f"{claiming}: of {OTHER}").wait_for()
    assert tab.get_by_text("forged").count() == 0
    assert frame.evaluate("Cortex.setConfig('token', 'mine').catch(({code}) => code)") in ("EINVAL", "ENOENT")
    assert ctx.ctx("plugin", "config", OTHER, "--json").stdout.count("mine") == 0


def test_a_call_with_effects_is_asked_about(tab: Tab, page: WebProcess, claiming: str) -> None:
    # abi.md 13.30: the question is beside the frame, which can neither cover nor answer it
    frame = panel(tab, page, OTHER)
    tool = "claimed_plugin_echo"
    answers = """() => { window.said = []; for (let each = 0; each < 3; each++) {
        const body = JSON.stringify({text: "<b>" + each});
        Cortex.fetch("tools/claimed_plugin_echo", {method: "POST", body})
            .then(async (one) => said.push([one.status, (await one.json()).output])); } }"""
    frame.evaluate(answers)
    asked_ = question(tab, tool)
    until(asked_.count, lambda seen: seen == 3)
    assert "<b>" in asked_.first.inner_text()
    asked_.first.get_by_role("button", name="Deny").click()
    until(lambda: frame.evaluate("said"), lambda seen: seen == [[403, None]])
    asked_.first.get_by_role("button", name="Allow", exact=True).click()
    asked_.first.get_by_role("button", name="Allow while it is open").click()
    until(lambda: str(frame.evaluate("said")), lambda seen: seen.count("200, 'heard <b>") == 2)
    assert tried(frame, CALL.format(path="'tools/claimed_plugin_echo'") + "return said.status") == 200
    assert asked_.count() == 0


def test_no_spelling_of_a_call_is_unasked(
    tab: Tab, page: WebProcess, claiming: str, token_of: dict[str, str]
) -> None:
    # abi.md 13.30
    frame = panel(tab, page, OTHER)
    name = "claimed_plugin_echo"
    spellings = (
        ("post", f"tools/{name}"),
        ("PoSt", f"/api/tools/{name}"),
        ("POST", f"/api/plugins/{OTHER}/tools/{name}"),
        ("post", f"/api/plugins/{OTHER}//api/tools/{name}"),
    )
    for method, path in spellings:
        call = f"{json.dumps(path)}, " + json.dumps({"method": method, "body": '{"text": "unasked"}'})
        frame.evaluate(f"() => {{ Cortex.fetch({call}).then((one) => {{ window.status_ = one.status; }}); }}")
        asked_ = question(tab, name)
        asked_.get_by_role("button", name="Deny").click()
        until(lambda: frame.evaluate("window.status_"), lambda seen: seen == 403)
        frame.evaluate("() => { delete window.status_; }")
    _, found, _ = asked(page, "POST", "/api/frame/open", {"plugin": OTHER, "part": "panel/main"}, token_of)
    for method, path in spellings:
        given = {"frame": found["frame"], "method": method, "path": path, "body": {"text": "unasked"}}
        assert asked(page, "POST", "/api/frame/ask", given, token_of)[0] == 403, (method, path)


def test_a_question_is_not_answered_by_a_click_meant_for_the_frame(
    tab: Tab, page: WebProcess, claiming: str
) -> None:
    # abi.md 13.30: it comes where the frame was, and so under the pointer of who clicks twice
    frame = panel(tab, page, OTHER)
    tab.evaluate("""() => { window.wasAble = []; new MutationObserver(() => {
        for (const each of document.querySelectorAll(".asked button.go")) wasAble.push(!each.disabled);
    }).observe(document.body, {childList: true, subtree: true}); }""")
    frame.evaluate("() => { Cortex.fetch('tools/claimed_plugin_echo', {method: 'POST', body: '{}'}); }")
    question(tab, "claimed_plugin_echo").get_by_role("button", name="Deny").click()
    assert tab.evaluate("wasAble[0]") is False


def test_only_settings_that_are_there_are_set(tab: Tab, page: WebProcess, claiming: str) -> None:
    # abi.md 13.30
    frame = panel(tab, page, OTHER)
    for key in ("--help", "a\0b", "", "__proto__", "constructor", "x" * 200_000):
        tried_ = f"Cortex.setConfig({json.dumps(key)}, 1).then(() => 0, (one) => [one.code, one.message])"
        code, message = frame.evaluate(tried_)
        assert code == "EINVAL", key[:50]
        assert "bug" not in message
    own = """{method: 'PUT', body: '{"__proto__": 1}'}"""
    assert tried(frame, f"return (await Cortex.fetch('config', {own})).status") == 400
    many = "JSON.stringify(Object.fromEntries(Array.from({length: 5000}, (_, at) => [`k${at}`, 1])))"
    said = "const said = await Cortex.fetch('config', {method: 'PUT', body: MANY}); return said.status;"
    assert tried(frame, said.replace("MANY", many)) == 400


def test_an_event_carries_no_more_than_was_counted(tab: Tab, page: WebProcess, claiming: str) -> None:
    # abi.md 13.32: a buffer has no characters
    frame = panel(tab, page, claiming)
    heard = frame.evaluate("""() => new Promise((done) => {
        Cortex.onEvent("big", (data) => done(JSON.stringify([data, data.a instanceof ArrayBuffer])));
        Cortex.emit("big", {a: new ArrayBuffer(1 << 24)}); })""")  # fmt: skip
    assert heard == '[{"a":{}},false]'


def test_floods_end_the_frame(tab: Tab, page: WebProcess, claiming: str) -> None:
    # abi.md 13.32
    frame = panel(tab, page, claiming)
    busy = "Promise.all(Array.from({length: 40}, () => Cortex.getConfig().then(() => 0, ({code}) => code)))"
    assert "EBUSY" in frame.evaluate(busy)
    for flood in (
        "for (let each = 0; each < 2000; each++) Cortex.notify('x')",
        "for (let each = 0; each < 2000; each++) parent.postMessage('x', '*')",
        "Cortex.emit('x', 'y'.repeat(1 << 20))",
        "{ const round = {}; round.self = round; Cortex.emit('x', round); }",
    ):
        frame = panel(tab, page, claiming)
        frame.evaluate(f"() => {{ setTimeout(() => {{ {flood} }}); }}")
        tab.get_by_role("alert").get_by_text("and was closed").wait_for()
        assert tab.locator("iframe").count() == 0
    frame = panel(tab, page, claiming)
    frame.evaluate("Cortex.notify('z'.repeat(9999), '<script>')")
    tab.locator(".said", has_text="zzz").wait_for()
    assert len(tab.locator(".said").inner_text()) < 300


def test_a_hostile_title_is_text(tab: Tab, page: WebProcess, claiming: str) -> None:
    # abi.md 13.10
    frame = panel(tab, page, claiming, TITLE, "odd")
    assert frame.evaluate("typeof Cortex") == "object"
    assert tab.locator("main b").count() == 0
    tab.get_by_role("heading", name=TITLE).wait_for()


def test_a_disabled_plugins_panel_goes_at_once(
    tab: Tab, page: WebProcess, ctx: Ctx, claiming: str, token_of: dict[str, str]
) -> None:
    # abi.md 13.31
    asks = {"frame": "", "method": "GET", "path": "config"}
    for off, on in (
        (("disable", OTHER), ("enable", OTHER)),
        (
            ("permissions", OTHER, "--set", "ui:panel=deny"),
            ("permissions", OTHER, "--set", "ui:panel=default"),
        ),
    ):
        panel(tab, page, OTHER)
        _, found, _ = asked(
            page, "POST", "/api/frame/open", {"plugin": OTHER, "part": "panel/main"}, token_of
        )
        ctx.ctx("plugin", *off)
        status, said, _ = asked(page, "POST", "/api/frame/ask", asks | {"frame": found["frame"]}, token_of)
        assert (status, said["code"]) == (404, "ENOENT")
        assert asked(page, "GET", found["path"])[0] == 404
        tab.get_by_role("alert").get_by_text(f"panel/main of {OTHER} is not shown").wait_for()
        assert tab.locator("iframe").count() == 0
        status, said, _ = asked(
            page, "POST", "/api/frame/open", {"plugin": OTHER, "part": "panel/main"}, token_of
        )
        assert (status, said["code"]) == (403, "EACCES")
        part(tab, page, "plugins")
        tab.get_by_role("heading", name="Install").wait_for()
        assert tab.get_by_text(f"of {OTHER}").count() == 0
        ctx.ctx("plugin", *on)


@pytest.fixture
def token_of(tab: Tab) -> dict[str, str]:
    """The token of the page in this tab, as the ticket of the page is used up."""
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    return {"Authorization": f"Bearer {tab.evaluate('localStorage.getItem(`cortexfs.token`)')}"}


def test_what_was_not_reviewed_is_not_shown(
    page: WebProcess, ctx: Ctx, claiming: str, token: dict[str, str]
) -> None:
    # abi.md 13.31
    installed = ctx.state / "plugins" / OTHER
    by_hand = ctx.state / "plugins" / "by-hand"
    shutil.copytree(package(ctx.work / "by-hand"), by_hand)
    said = ctx.ctx("plugin", "ui", "by-hand", "panel/main", check=False)
    assert said.returncode
    assert "disabled" in said.stderr
    ctx.ctx("plugin", "enable", "by-hand", check=False)
    said = ctx.ctx("plugin", "ui", "by-hand", "panel/main", check=False)
    assert said.returncode
    where = {"plugin": "by-hand", "part": "panel/main"}
    assert asked(page, "POST", "/api/frame/open", where, token)[0] == 403
    ctx.ctx("plugin", "disable", "by-hand", check=False)
    shutil.rmtree(by_hand)
    target = installed / "ui/panel.js"
    before = target.read_bytes()
    where = {"plugin": OTHER, "part": "panel/main"}
    for change in (lambda: target.write_text("steal()"), lambda: os.symlink("/etc/passwd", target)):
        target.unlink()
        change()
        status, told, _ = asked(page, "POST", "/api/frame/open", where, token)
        assert status in (400, 403), told
        assert "root:" not in str(told)
    target.unlink()
    target.write_bytes(before)
    assert asked(page, "POST", "/api/frame/open", where, token)[0] == 200


def test_hostile_words_are_no_options(page: WebProcess, claiming: str, token: dict[str, str]) -> None:
    # abi.md 13.31
    for plugin, name in (
        ("--json", "panel/main"), ("../x", "panel/main"), ("a\0b", "x"), (claiming, "--help"), (claiming, ""),
        (claiming, "panel/../main"), (claiming, "widget/main"), ("", "panel/main"),
    ):  # fmt: skip
        status, said, _ = asked(page, "POST", "/api/frame/open", {"plugin": plugin, "part": name}, token)
        assert 400 <= status < 500, said
    for path in ("ask", "still", "tool", "close"):
        given = {"frame": "x", "path": "config", "tool": "x"}
        assert asked(page, "POST", f"/api/frame/{path}", given, token)[0] == (200 if path == "close" else 404)
        assert asked(page, "POST", f"/api/frame/{path}", {"frame": 1}, token)[0] == 400
        assert asked(page, "POST", f"/api/frame/{path}", given)[0] == 401


def test_nobody_has_panels_of_another_users_plugins(ctx: Ctx, browser: Any, claiming: str) -> None:
    # abi.md 13.3
    with web(ctx, uid=NOBODY) as page, person(browser, page.link) as other:
        part(other, page, "plugins")
        other.get_by_role("heading", name="Install").wait_for()
        assert other.get_by_role("link", name="A panel").count() == 0
