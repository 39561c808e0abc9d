"""Access to the page (abi.md 13): each attack of another user, another site and a stolen link."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.waiting import until
from tests.web.browsing import Tab, WebProcess, person, web

SEND_IF_IT_IS_THERE = (
    "[...document.querySelectorAll('button')].find((one) => one.innerText == 'Send')?.click()"
)
JSON = {"Content-Type": "application/json"}


def asked(
    page: WebProcess, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Send a request as any program could, and return its status, answer and headers."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port)) as connection:
        data = None if body is None else json.dumps(body)
        sent = JSON | (headers or {}) if body is not None else headers or {}
        connection.request(method, path, data, sent)
        answer = connection.getresponse()
        said = answer.read()
        is_json = answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(said) if is_json else said, dict(answer.getheaders())


@pytest.fixture
def token(page: WebProcess) -> dict[str, str]:
    status, said, _ = asked(page, "POST", "/api/enter", {"ticket": page.ticket})
    assert status == 200
    return {"Authorization": f"Bearer {said['token']}"}


def test_a_ticket_lets_in_once(page: WebProcess) -> None:
    # abi.md 13.2: a link works once, and a stolen one gets nothing after its use
    status, said, _ = asked(page, "POST", "/api/enter", {"ticket": page.ticket})
    assert (status, set(said)) == (200, {"token"})
    status, said, _ = asked(page, "POST", "/api/enter", {"ticket": page.ticket})
    assert (status, said["code"]) == (403, "EACCES")
    for guess in ("", "x" * 43, page.ticket[:-1], "é"):
        assert asked(page, "POST", "/api/enter", {"ticket": guess})[0] == 403
    assert asked(page, "POST", "/api/enter", {"ticket": 1})[0] == 400


def test_only_the_token_opens_anything(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.3: another local user reaches the port, and gets the empty page alone
    paths = ("/api/objects", "/api/sessions", "/api/inbox", "/api/status", "/api/nothing")
    for path in paths:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": token["Authorization"]}):
            status, said, _ = asked(page, "GET", path, headers=headers)
            assert (status, said["code"]) == (401, "EACCES"), path
    for path in ("/api/send", "/api/run", "/api/approve", "/api/remove", "/api/ticket"):
        assert asked(page, "POST", path, {})[0] == 401
    assert asked(page, "GET", "/api/objects", headers=token)[0] == 200
    status, shell, _ = asked(page, "GET", "/")
    assert status == 200
    assert page.ticket.encode() not in shell
    for path in ("/gate.py", "/../gate.py", "/%2e%2e/gate.py", "/static/main.js", "//etc/passwd"):
        assert asked(page, "GET", path)[0] == 404, path


def test_other_names_and_other_sites_are_refused(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.4: DNS rebinding shows another Host, another site another Origin; the token helps neither
    for host in (
        f"evil.example:{page.port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "0.0.0.0",
        "",
    ):
        for path in ("/", "/main.js", "/api/objects"):
            assert asked(page, "GET", path, headers=token | {"Host": host})[0] in (400, 421), host
    own = f"127.0.0.1:{page.port}"
    sites = (
        "http://evil.example",
        f"https://{own}",
        "http://127.0.0.1:1",
        f"http://localhost:{page.port}",
        "null",
    )
    for site in sites:
        for method, body in (("GET", None), ("POST", {}), ("OPTIONS", None)):
            status, _, headers = asked(page, method, "/api/objects", body, token | {"Origin": site})
            assert status == 403, site
            assert not [name for name in headers if name.lower().startswith("access-control")]
    for near in (own, "localhost:9000", "[::1]:9000"):  # the near end of ssh -L has a port of its own
        headers = token | {"Host": near, "Origin": f"http://{near}"}
        assert asked(page, "GET", "/api/status", headers=headers)[0] == 200


def test_a_body_is_json_and_small(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.4: a form of another site cannot say application/json
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert asked(page, "POST", "/api/enter", {"ticket": page.ticket}, {"Content-Type": kind})[0] == 415
    assert asked(page, "POST", "/api/enter", {"ticket": "x" * 2000})[0] == 413
    assert asked(page, "POST", "/api/markdown", {"text": "x" * (3 << 20)}, token)[0] == 413
    assert asked(page, "POST", "/api/markdown", [1], token)[0] == 400
    assert asked(page, "POST", "/api/plugin/review", {"name": "a\0b"}, token)[0] == 400
    deep = json.loads("[" * 90 + "]" * 90)
    assert asked(page, "POST", "/api/markdown", {"text": deep}, token)[0] == 400
    nested = "*a " * 2000 + "a* " * 2000
    assert asked(page, "POST", "/api/markdown", {"text": nested}, token)[1]["live"] == [["pre", {}, nested]]
    assert asked(page, "GET", "/api/search?q=--root%3Dx", None, token)[:2] == (200, [])


def test_what_a_browser_is_told_of_every_answer(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.5
    for path in ("/", "/main.js", "/api/status", "/api/nothing", "/nothing"):
        _, _, headers = asked(page, "GET", path, headers=token)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Set-Cookie" not in headers


def test_strangers_who_say_nothing_hold_nobody_up(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.6: whoever has not shown the token makes room
    idle = []
    try:
        for _ in range(300):
            idle.append(socket.create_connection(("127.0.0.1", page.port)))
            idle[-1].send(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert asked(page, "GET", "/api/status", headers=token)[0] == 200
    finally:
        for each in idle:
            each.close()


def test_garbage_is_refused_and_harms_nobody(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.6
    rubbish = (
        b"\x16\x03\x01\x00\xa5\x01\x00\x00", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"G" * 40000, b"\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /api/enter HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/enter HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    )  # fmt: skip
    for each in rubbish:
        with socket.create_connection(("127.0.0.1", page.port)) as end:
            end.sendall(each)
            end.shutdown(socket.SHUT_WR)
            while end.recv(4096):
                pass
    for address in ("//", "/?" + "a&" * 50, "/api/past?object=../..", "/api/tool?object=/etc/passwd"):
        assert asked(page, "GET", address, headers=token)[0] in (200, 400, 404), address
    assert asked(page, "GET", "/api/status", headers=token)[0] == 200


def test_the_mount_is_named_by_paths_within_it(page: WebProcess, token: dict[str, str]) -> None:
    # abi.md 13.7
    for object_ in ("../../etc", "/etc", "model/../../etc", "a//b", "", "a\0b"):
        status, said, _ = asked(page, "POST", "/api/run", {"object": object_, "input": {}}, token)
        assert (status, said["code"]) == (400, "EINVAL"), object_
    status, said, _ = asked(page, "GET", "/api/past?object=model/debug/echo&session=..%2Fx", headers=token)
    assert (status, said["code"]) == (400, "EINVAL")
    body = {"object": "--help", "session": "--yes", "scope": "private"}
    status, said, _ = asked(page, "POST", "/api/remove", body, token)
    assert status in (400, 404)


def test_an_address_of_others_needs_a_certificate(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 13.8
    for words in (("--bind", "0.0.0.0"), ("--bind", "::"), ("--bind", "10.1.2.3")):
        refused = ctx.ctx("web", "--no-browser", *words, check=False)
        assert refused.returncode == 2
        assert "--cert and --key" in refused.stderr
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=127.0.0.1",
        "-days",
        "1",
    ]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", cert], capture_output=True, check=True)
    assert ctx.ctx("web", "--cert", str(cert), check=False).returncode == 2
    assert ctx.ctx("web", "--cert", str(key), "--key", str(key), "--no-browser", check=False).returncode == 2
    lost = ctx.ctx("web", "--cert", str(cert), "--key", "/nowhere/key.pem", "--no-browser", check=False)
    assert (lost.returncode, lost.stderr) == (
        1,
        "ctx web: /nowhere/key.pem cannot be read: No such file or directory\n",
    )
    encrypted = ("--cert", str(cert), "--key", str(key))
    with web(ctx, "--no-browser", "--bind", "0.0.0.0", *encrypted) as page:
        assert page.url.startswith("https://0.0.0.0:")
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("127.0.0.1", page.port, context=context)
        connection.request("POST", "/api/enter", json.dumps({"ticket": page.ticket}), JSON)
        assert connection.getresponse().status == 200
        connection.close()


def test_a_signal_ends_it_and_it_prints_one_line(ctx: Ctx) -> None:
    # abi.md 13.1
    for number in (signal.SIGINT, signal.SIGTERM):
        with web(ctx) as page:
            page.process.send_signal(number)
            assert page.process.wait() == 128 + number
            assert page.process.stdout
            assert page.process.stdout.read() == ""


def test_the_browser_is_led_by_a_file_of_its_user(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 13.9: arguments are public, so the link is in none
    tmp_path.chmod(0o755)
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{seen}.new\nmv {seen}.new {seen}\n')
    browser.chmod(0o755)
    environ = {"BROWSER": str(browser), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    with web(ctx, "--port", "0", env=environ) as page:
        address = until(lambda: seen.read_text() if seen.exists() else "").strip()
        assert page.ticket not in address
        way = Path(address.removeprefix("file://"))
        assert way.stat().st_mode & 0o777 == 0o600
        assert page.link in way.read_text()
    assert not way.exists()
    seen.unlink()
    with web(ctx, "--no-browser", env=environ) as page:
        assert asked(page, "GET", "/")[0] == 200
    assert not seen.exists()


def test_the_journal_has_no_link(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 13.19: its readers, who may be others, would be let in
    ours, theirs = os.pipe()
    seen = os.fstat(theirs)
    environ = {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}", "XDG_CACHE_HOME": str(tmp_path)}
    words = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "web", "--no-browser"]
    with subprocess.Popen(words, env=ctx.environ | environ, cwd=ctx.work, stdout=theirs) as process:
        os.close(theirs)
        with open(ours) as journal:
            try:
                said = journal.readline()
                [way] = (tmp_path / "cortexfs").iterdir()
                assert said == f"the link is in {way}, for its user alone\n"
                assert way.stat().st_mode & 0o777 == 0o600
                assert "#ticket=" in way.read_text()
            finally:
                process.terminate()
            assert not journal.read()
    assert not way.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_each_user_has_a_page_of_his_own(ctx: Ctx, browser: Any) -> None:
    # abi.md 13.3: what a page shows and does is its user's
    with web(ctx, uid=NOBODY) as his, web(ctx) as ours:
        _, said, _ = asked(his, "POST", "/api/enter", {"ticket": his.ticket})
        his_token = {"Authorization": f"Bearer {said['token']}"}
        assert asked(ours, "GET", "/api/objects", headers=his_token)[0] == 401
        assert asked(ours, "POST", "/api/enter", {"ticket": his.ticket})[0] == 403
        body = {"object": "model/debug/echo", "session": "his", "id": "1", "input": "only mine"}
        assert asked(his, "POST", "/api/send", body, his_token)[0] == 200
        until(lambda: "his" in str(asked(his, "GET", "/api/sessions", headers=his_token)[1]))
        with person(browser, ours.link) as tab:
            tab.get_by_role("link", name="Sessions", exact=True).click()
            tab.get_by_role("heading", name="Sessions").wait_for()
            assert tab.get_by_role("link", name="his", exact=True).count() == 0


def test_the_link_opens_the_page_once(tab: Tab, page: WebProcess, browser: Any) -> None:
    # abi.md 13.2: the ticket leaves the address, the token stays for reloads and tabs
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    assert "ticket" not in tab.url
    tab.reload()
    tab.get_by_role("link", name="Status", exact=True).click()
    tab.get_by_role("heading", name="Status").wait_for()
    with person(browser, page.link) as thief:
        thief.get_by_text("this link was used").wait_for()
        thief.goto(page.url)
        thief.get_by_text("open the link that it prints").wait_for()


def test_a_ticket_that_did_not_arrive_is_tried_again(page: WebProcess, browser: Any) -> None:
    # abi.md 13.2. Found: it had left the address by then, so the link was lost
    with person(browser, "about:blank") as tab:
        tab.route("**/api/enter", lambda route: route.abort(), times=1)
        tab.goto(page.link)
        tab.get_by_text("open the link that it prints").wait_for()
        tab.reload()
        tab.get_by_role("navigation", name="Parts").wait_for()
        assert "ticket" not in tab.url


def test_another_site_gets_nothing_by_a_browser(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.4: a page of another origin in the same browser, with the token in the origin's storage
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    with web(ctx) as other:  # another port is another origin, and its files are all that it serves
        site = tab.context.new_page()
        site.goto(other.url)
        target = f"{page.url}api/objects"
        seen = site.evaluate(
            """async (target) => {
                const said = [JSON.stringify({...localStorage})];
                const ways = [{}, {mode: 'no-cors'}, {method: 'POST', body: '{}', mode: 'no-cors'},
                    {headers: {Authorization: 'Bearer x'}}];
                for (const way of ways)
                    said.push(await fetch(target, way).then((answer) => answer.type, () => 'failed'));
                return said;
            }""",
            target,
        )
        assert seen[0] == "{}"
        assert set(seen[1:]) == {"failed"}


def test_whoever_has_the_port_afterwards_gets_nothing(ctx: Ctx, browser: Any) -> None:
    # abi.md 13.18: another user waits for the end of a page, and takes its port
    heard: list[bytes] = []
    with web(ctx) as page, person(browser, page.link) as tab:
        tab.get_by_role("link", name="Talk", exact=True).wait_for()
        tab.goto(f"{page.url}#/talk/private/model%2Fdebug%2Fecho/squatted")
        tab.get_by_role("textbox", name="Message").fill("for my eyes only")
        until(lambda: tab.evaluate("sessionStorage.length"))
        token = tab.evaluate("localStorage['cortexfs.token']")
        page.process.terminate()
        page.process.wait()
        with squatting(page.port, heard):
            tab.evaluate(SEND_IF_IT_IS_THERE)  # the page may have seen the end by itself
            tab.get_by_text("Run ctx web, and open the link").wait_for()
            kept = tab.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
            assert "eyes" not in kept  # abi.md 13.24: all that the next owner of the origin finds
            assert "squatted" not in kept
    assert any(b"/api/prove" in each for each in heard)
    assert not [each for each in heard if token.encode() in each or b"eyes" in each]


@contextlib.contextmanager
def squatting(port: int, heard: list[bytes]) -> Iterator[None]:
    """Answer every request at this port. A browser opens connections on which it sends nothing. So each
    connection has a thread, and the end does not wait for these threads."""
    body = b'{"proof": "0", "token": "x", "state": "begun"}'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)

    class Squatter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                heard.append(self.request.recv(1 << 16))
                self.request.sendall(head + body)
                heard.append(self.request.recv(1 << 16))

    class Squatting(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads, block_on_close = True, True, False

    with Squatting(("127.0.0.1", port), Squatter) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield
        finally:
            server.shutdown()
            serving.join()
