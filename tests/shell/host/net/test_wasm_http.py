"""The network access of a WebAssembly plugin: host_http_request, and webfetch.py below it."""

from __future__ import annotations

import http.server
import queue
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from cortexfs.core import networks
from cortexfs.host.net import fetch
from cortexfs.net import web
from tests.shell import wat
from tests.shell.addresses import has_ipv6
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import BUFFER, OUT, WORD, Asked, then
from tests.shell.webserving import served

LOOPBACK = ("127.0.0.0/8",)
STATUS = "(i32.const 0x17ffe1)"  # unaligned: the ABI does not require alignment


class Server6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True


class _Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size)
        seen = " ".join(
            (self.command, self.path, str(self.headers.get("x-own")), str(self.headers.get("cookie")), "")
        ).encode()
        self.send_response(302 if self.path.startswith("/to/") else 404 if self.path == "/no" else 200)
        if self.path.startswith("/to/"):
            self.send_header("Location", self.path.removeprefix("/to/"))
        data = b"y" * 100_000 if self.path == "/large" else seen + body
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _answer


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)) as made:
        yield f"http://127.0.0.1:{made.server_address[1]}"


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


def requested(texts: wat.Texts, url: str, method: str = "", body: str = "", headers: str = "") -> str:
    """Returns a tool that outputs the status, a space and the body, and returns the function's result."""
    said = " ".join(texts(each) for each in (method, url, body, headers))
    return then(
        f"(i32.store {WORD} (i32.const 0))",
        f"(local.set $t (call $http {said} {STATUS} {BUFFER} {WORD}))",
        f"(drop (call $number (i32.load {STATUS}) {OUT}))",
        "(i32.store8 (i32.add (local.get $out) (i32.load (local.get $length))) (i32.const 32))",
        f"""(memory.copy (i32.add (local.get $out) (i32.add (i32.load (local.get $length)) (i32.const 1)))
            {BUFFER} (i32.load {WORD}))""",
        f"""(i32.store (local.get $length)
            (i32.add (i32.load {WORD}) (i32.add (i32.load (local.get $length)) (i32.const 1))))""",
        "(local.get $t)",
    )


async def test_requests(tmp_path: Path, place: Path, server: str) -> None:
    # abi.md 9.31
    texts = wat.Texts()
    tools = {
        "get": requested(texts, f"{server}/a?b=c", headers='{"x-own":"1"}'),
        "post": requested(texts, f"{server}/p", "POST", "data"),
        "missing": requested(texts, f"{server}/no"),
        "large": requested(texts, f"{server}/large"),
        "away": requested(texts, f"{server}/to//b"),
    }
    refused = {
        "empty": (requested(texts, ""), "400 host: empty URL"),
        "file": (
            requested(texts, "file:///etc/hostname"),
            '400 host: "file:///etc/hostname" is not an http',
        ),
        "ftp": (requested(texts, "ftp://127.0.0.1/"), '400 host: "ftp://127.0.0.1/" is not an http'),
        "nowhere": (requested(texts, "http:///a"), "400 host: the URL names no host"),
        "headers": (requested(texts, server, headers="[1]"), "400 host: the headers are no JSON object"),
        "numbers": (requested(texts, server, headers='{"a":1}'), "400 host: the headers are no JSON object"),
        "split": (
            requested(texts, server, headers='{"a":"b\\r\\nc: d"}'),
            "400 host: the request cannot be written as HTTP",
        ),
        "spaced": (requested(texts, f"{server}/a b"), "400 host: the request cannot be written as HTTP"),
        "method": (requested(texts, server, "GET /\r\n"), "400 host: the request cannot be written as HTTP"),
        "port": (requested(texts, "http://127.0.0.1:99999/"), "400 host: the request cannot be written"),
        "closed": (
            requested(texts, "http://127.0.0.1:1/"),
            "500 host: request timeout or failed: connection refused",
        ),
        "private": (requested(texts, "http://10.0.0.1/"), "403 host: 10.0.0.1 is a private address"),
        "metadata": (
            requested(texts, f"{server}/to/http://169.254.169.254/"),
            "403 host: 169.254.169.254 is",
        ),
        "to a file": (
            requested(texts, f"{server}/to/file:///etc/passwd"),
            '400 host: "file:///etc/passwd" is not an http',
        ),
        "around": (requested(texts, f"{server}/to/{server}/to/" * 4 + server), "500 host: "),
    }
    tools |= {name: body for name, (body, _) in refused.items()}
    for index, capability in enumerate(("network:fetch", "net:outbound")):
        plugin = wat.plugin(
            place / f"{index}.wasm",
            wat.text(tools, texts),
            capabilities=("tools", capability),
            private=LOOPBACK,
        )
        async with serving(tmp_path) as world:
            asked = Asked(world, plugin)
            assert await asked.said("get") == "200 GET /a?b=c 1 None "
            if index:
                break
            assert await asked.said("post") == "200 POST /p None None data"
            assert (await asked.said("missing")).startswith("404 GET /no ")
            assert await asked.said("large") == "200 " + "y" * fetch.MAX_BODY
            assert await asked.said("away") == "200 GET /b None None "
            for tool, (_, why) in refused.items():
                answer = await asked(tool)
                assert answer.code == "EIO", tool
                assert answer.message.startswith(why), tool
        (tmp_path / "s").unlink()


async def test_without_the_capability(tmp_path: Path, place: Path, server: str) -> None:
    # Of the originals: "status 403 `host: network:fetch permission denied`"
    texts = wat.Texts()
    plugin = wat.plugin(
        place / "m.wasm", wat.text({"get": requested(texts, server)}, texts), private=LOOPBACK
    )
    async with serving(tmp_path) as world:
        answer = await Asked(world, plugin)("get")
        assert answer.message == "403 host: network:fetch permission denied"


async def test_a_server_that_does_not_answer(tmp_path: Path, place: Path) -> None:
    # Of the originals: "deadline also inside host functions (epoch does not interrupt Python)"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        texts = wat.Texts()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        tools = {"get": requested(texts, url), "calls": f"(call $number (global.get $calls) {OUT})"}
        plugin = wat.plugin(
            place / "m.wasm",
            wat.text(tools, texts),
            capabilities=("tools", "network:fetch"),
            private=LOOPBACK,
            timeout=1,
        )
        async with serving(tmp_path) as world:
            asked = Asked(world, plugin)
            await asked.said("calls")
            pids = set(world.pool.by_pid)
            assert (await asked("get")).code == "ETIMEDOUT"
            assert await asked.said("calls") == "1"
            assert set(world.pool.by_pid) == pids


PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]",
    "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]", "[fec0::1]", "[ff02::1]",
    "[2001:db8::1]", "[2001::1]", "[3fff::1]", "224.0.0.1", "255.255.255.255", "240.0.0.1",
    "192.0.0.8", "198.18.0.1", "2130706433", "0x7f.1", "localhost",
)  # fmt: skip


def fetched(url: str, private: tuple[str, ...] = (), **fields: Any) -> fetch.HttpAnswer:
    request = web.WebRequest("GET", url, fields.get("headers", {}), b"")
    answer = fetch.fetch(request, private, queue.SimpleQueue())
    assert answer is not None
    return answer


@pytest.mark.parametrize("host", PRIVATE)
def test_private_addresses(host: str) -> None:
    # issue 6: "private addresses and redirects into them refused unless granted"
    answer = fetched(f"http://{host}:1/")
    assert (answer.status, answer.reached) == (403, False)
    assert b"is a private address, which the plugin is not granted" in answer.body


@pytest.mark.parametrize(
    "host", ["1.1.1.1", "172.32.0.1", "192.169.0.1", "100.128.0.1", "2606:4700::1", "2a00::1"]
)
def test_public_addresses(host: str) -> None:
    assert networks.may_reach(host, ())
    assert not networks.closed_4(networks.granted(["0.0.0.0/0"]))
    assert networks.stands_for(ip_address("2002:101:101::")) == ip_address("1.1.1.1")


def test_a_grant_is_for_its_network_alone(server: str) -> None:
    assert fetched(server, ("127.0.0.1/32",)).status == 200
    assert fetched(server, ("10.0.0.0/8",)).status == 403


@pytest.mark.skipif(not has_ipv6(), reason="needs the loopback address of IPv6")
def test_loopback_of_ipv6_is_not_reached_either(server: str) -> None:
    # issue 6: "private addresses and redirects into them refused unless granted"
    with served(Server6(("::1", 0), _Pages)) as made:
        six = f"http://[::1]:{made.server_port}"
        for private in ((), LOOPBACK, ("fd00::/8",)):
            assert fetched(f"{six}/a", private).status == 403
        assert fetched(f"{server}/to/{six}/a", LOOPBACK).status == 403
        assert fetched(f"{six}/a", ("::1/128",)).body == b"GET /a None None "
        assert fetched(f"{server}/to/{six}/a", (*LOOPBACK, "::1/128")).body == b"GET /a None None "


def test_secrets_stay_with_their_server(server: str) -> None:
    sent = {"Cookie": "secret", "X-Own": "1", "Content-Length": "7", "Host": "elsewhere"}
    there = server.replace("127.0.0.1", "127.0.0.2")
    here = fetched(f"{server}/to/{server}/a", LOOPBACK, headers=fetch.headers_of(sent))
    assert here.body == b"GET /a 1 secret "
    made = web.redirected(web.WebRequest("POST", server, sent, b"x"), 302, f"{there}/a")
    assert (made.method, made.body, made.headers.get("Cookie")) == ("GET", b"", None)
    kept = web.redirected(web.WebRequest("POST", server, sent, b"x"), 307, f"{server}/a")
    assert (kept.method, kept.body, kept.headers["Cookie"]) == ("POST", b"x", "secret")


def test_redirects_end(server: str) -> None:
    url = server + "/to//to//to//to//to//to//to//a"
    assert fetched(url, LOOPBACK) == fetch.HttpAnswer(500, b"host: more than 5 redirects", False)


def test_a_server_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 9.31
    assert fetch.SECONDS == 30
    monkeypatch.setattr(fetch, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = fetched(f"http://127.0.0.1:{silent.getsockname()[1]}/", LOOPBACK)
    assert answer == fetch.HttpAnswer(408, b"host: request timeout or failed", False)
