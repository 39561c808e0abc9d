"""Attacks by ESM plugins that must fail: each pitfall of Deno, in real hosts."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.host.esm import child, permissions
from tests.shell import esmodules
from tests.shell.addresses import has_ipv6
from tests.shell.calling import serving
from tests.shell.esmodules import attacks
from tests.shell.wat import Asked, broken
from tests.shell.webserving import served

SECRET = "/etc/passwd"


# -- files


@pytest.mark.parametrize(
    "text",
    [
        'import s from "file:///etc/passwd" with {type: "text"}',
        'import s from "../../../../etc/passwd" with {type: "text"}',
        'import s from "file:///etc/hostname.json" with {type: "json"}',
        'await import("file:///etc/passwd", {with: {type: "text"}})',
        'import "./other.ts"',
    ],
)
async def test_imports_read_no_other_files(tmp_path: Path, place: Path, text: str) -> None:
    # Of the originals: "Static imports bypass --allow-read"
    (place / "p").mkdir()
    (place / "p" / "other.ts").write_text('import s from "file:///etc/passwd" with {type: "text"}')
    assert "Requires read access" in await broken(tmp_path, esmodules.plugin(place / "p", text))


async def test_nothing_is_granted_that_is_not_declared(tmp_path: Path, place: Path, work: Path) -> None:
    (work / "mine").write_text("mine")
    bodies = {
        "read": "return Deno.readTextFileSync('/etc/passwd')",
        "here": "return Deno.readTextFileSync('mine')",
        "list": "return [...Deno.readDirSync('.')].length",
        "write": "Deno.writeTextFileSync('new', '')",
        "own": "Deno.writeTextFileSync(ctx.pluginDir + '/new', '')",
        "run": "return new Deno.Command('/bin/true').outputSync().code",
        "env": "return JSON.stringify(Deno.env.toObject())",
        "node": "return (await import('node:process')).default.env.PATH.length",
        "name": "return Deno.hostname()",
        "net": "return (await Deno.connect({port: 80})).close()",
        "ffi": "return Deno.dlopen('libc.so.6', {})",
        "maps": "return Deno.readTextFileSync('/proc/self/maps')",
        "fetch": "return (await fetch('file:///etc/passwd')).text()",
        "worker": """return await new Promise((done, failed) => {
            const worker = new Worker(new URL('./worker.ts', import.meta.url), {type: 'module'});
            worker.onmessage = (event) => done(event.data);
            worker.onerror = (event) => { event.preventDefault(); failed(event.message) };
        })""",
        "inspect": "new (await import('node:inspector')).Session().connect()",
        "prompt": "return Deno.permissions.requestSync({name: 'read'}).state",
        "signal": "return Deno.kill(1, 'SIGCONT')",
    }
    (place / "p").mkdir()
    worker = 'import s from "file:///etc/passwd" with {type: "text"}; postMessage(s)'
    (place / "p" / "worker.ts").write_text(worker)
    plugin = esmodules.plugin(place / "p", esmodules.source(attacks(bodies)))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for name in bodies:
            said = await asked.said(name)
            if name == "prompt":
                assert said == "got denied"
            elif name == "node":
                assert "not" in said
            else:
                assert said.startswith("not: "), (name, said)
    assert os.listdir(work) == ["mine"]


async def test_files_are_those_of_the_callers_directory(tmp_path: Path, place: Path, work: Path) -> None:
    (place / "other").write_text("other")
    (work / "mine").write_text("mine")
    (work / "out").symlink_to("../other")
    (work / "up").symlink_to("..")
    (work / "environ").symlink_to(f"/proc/{os.getpid()}/environ")  # of another process of the user
    (work / "fd").symlink_to(f"/proc/{os.getpid()}/fd/0")
    bodies = {
        "mine": "return Deno.readTextFileSync('mine')",
        "make": "Deno.writeTextFileSync('new', 'new'); return Deno.readTextFileSync('new')",
        "other": "return Deno.readTextFileSync('../other')",
        "out": "return Deno.readTextFileSync('out')",
        "up": "return Deno.readTextFileSync('up/other')",
        "overwrite": "return Deno.writeTextFileSync('out', 'gone')",
        "link": "Deno.symlinkSync('/etc/passwd', 'l'); return Deno.readTextFileSync('l')",
        "hard": "Deno.linkSync('/etc/passwd', 'h'); return Deno.readTextFileSync('h')",
        "import": "return (await import(ctx.workingDir + '/out', {with: {type: 'text'}})).default",
        **{
            name: f"return (await import(ctx.workingDir + '/{name}', {{with: {{type: 'text'}}}})).default"
            for name in ("environ", "fd")
        },
        "proc": "return Deno.readTextFileSync('/proc/self/environ')",
    }
    text = esmodules.source(attacks(bodies))
    plugin = esmodules.plugin(place / "p", text, capabilities=("tools", "fs:read", "fs:write"))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("mine") == "got mine"
        assert await asked.said("make") == "got new"
        # Of the originals: "Symlinks inside the allowed dir are followed"
        for name in ("other", "out", "up", "overwrite", "link", "hard", "import", "environ", "fd", "proc"):
            assert (await asked.said(name)).startswith("not: "), name
        assert (place / "other").read_text() == "other"


async def test_each_directory_has_a_process_of_its_own(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {"read": "return Deno.readTextFileSync(args.text)", "pid": "return Deno.pid"}
    plugin = esmodules.plugin(
        place / "p", esmodules.source(attacks(bodies)), capabilities=("tools", "fs:read")
    )
    pids = set()
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for name in "abcdef":
            (place / name).mkdir()
            (place / name / "file").write_text(name)
            monkeypatch.chdir(place / name)
            assert await asked.said("read", text="file") == f"got {name}"
            assert (await asked.said("read", text="../a/file")).startswith(
                "got a" if name == "a" else "not: "
            )
            pids.add(await asked.said("pid"))
        assert len(pids) == 6
        assert len(world.pool.by_pid) == 1


@pytest.mark.parametrize("link", ["soft", "hard"])
async def test_a_folder_with_links_is_refused(tmp_path: Path, place: Path, link: str) -> None:
    (place / "p").mkdir()
    (place / "data").write_text("")
    if link == "soft":
        (place / "p" / "data").symlink_to(SECRET)
    else:
        (place / "p" / "data").hardlink_to(place / "data")
    assert "is a link" in await broken(tmp_path, esmodules.plugin(place / "p", esmodules.source({})))


async def test_a_comma_gives_no_other_directory(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = place / "a,"
    (odd / "etc").mkdir(parents=True)
    monkeypatch.chdir(odd / "etc")
    bodies = attacks({"read": "return Deno.readTextFileSync('/etc/passwd')"})
    plugin = esmodules.plugin(place / "p", esmodules.source(bodies), capabilities=("tools", "fs:read"))
    async with serving(tmp_path) as world:
        answer = await Asked(world, plugin)("read")
        assert answer.code == "EINVAL"
        assert "no comma" in answer.message


# -- the network

HOSTS_6 = (
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[fd00::1]",
    "[fe80::1]",
    "[64:ff9b::7f00:1]",
)
# The message of Deno, or of a kernel without such sockets.
REFUSALS = ("Requires ", "not supported", "error sending request")


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302 if self.path.startswith("/to/") else 200)
        if self.path.startswith("/to/"):
            self.send_header("Location", f"http://{self.path.removeprefix('/to/')}/")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(http.server.ThreadingHTTPServer):
    """Listens on every address of this machine: of IPv4, and of IPv6 if there is any."""

    address_family = socket.AF_INET6 if has_ipv6() else socket.AF_INET
    daemon_threads = True

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


@contextlib.contextmanager
def here() -> Iterator[int]:
    """Yields the port of a server that answers "hi"."""
    with served(_Server(("", 0), _Page)) as made:
        for host in (
            ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",)
        ):  # the server is there, so a plugin that cannot reach it was refused
            socket.create_connection((host, made.server_port), 60).close()
        yield made.server_port


async def test_nothing_is_fetched_to_be_imported(tmp_path: Path, place: Path) -> None:
    # Of the originals: "import("npm:"+x) performs registry requests with no net permission"
    names = (
        "npm:ms",
        "npm:" + "a" * 40,
        "jsr:@std/path",
        "https://deno.land/x/a.ts",
        "http://127.0.0.1/a.js",
    )
    bodies = {f"i{at}": f"const name = '{name}'; return await import(name)" for at, name in enumerate(names)}
    bodies["require"] = (
        "return (await import('node:module')).default.createRequire('file://' + ctx.pluginDir)('ms')"
    )
    plugin = esmodules.plugin(place / "p", esmodules.source(attacks(bodies)))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for name in bodies:
            said = await asked.said(name)
            assert "specified" in said or name == "require", said
            assert said.startswith("not: ")


async def test_requests_reach_no_private_address(tmp_path: Path, place: Path) -> None:
    # Of the originals: "net=true reaches loopback/metadata"
    # issue 6: "private addresses and redirects into them refused unless granted"
    with here() as port:
        hosts = ("127.0.0.1", "localhost", "2130706433", "0.0.0.0", "10.0.0.1", "169.254.169.254", *HOSTS_6)
        bodies = {host: f"return (await fetch('http://{host}:{port}/')).text()" for host in hosts}
        bodies["tcp"] = f"return (await Deno.connect({{hostname: 'localhost', port: {port}}})).close()"
        for address in ("::1", "::", "::ffff:127.0.0.1", "fe80::1%lo"):
            bodies[address] = f"return (await Deno.connect({{hostname: '{address}', port: {port}}})).close()"
        bodies["node"] = f"""const {{connect}} = (await import('node:net')).default;
            return await new Promise((done, failed) =>
                connect({port}, '::1', () => done('in')).on('error', failed))"""
        bodies["listen"] = "return Deno.listen({hostname: '::', port: 0}).addr.port"
        bodies["unix"] = "return (await Deno.connect({transport: 'unix', path: '/run/x.sock'})).close()"
        may = ("tools", "network:fetch")
        closed = esmodules.plugin(place / "p", esmodules.source(attacks(bodies)), capabilities=may)
        async with serving(tmp_path) as world:
            asked = Asked(world, closed)
            for name in bodies:
                said = await asked.said(name)
                assert said.startswith("not: "), (name, said)
                assert any(why in said for why in REFUSALS), (name, said)


@pytest.mark.skipif(not has_ipv6(), reason="needs the loopback address of IPv6")
async def test_a_grant_opens_its_networks(tmp_path: Path, place: Path) -> None:
    # abi.md 9.25: "a grant of any of these opens all of IPv6 but this machine's own addresses"
    with here() as port:
        hosts = ("127.0.0.1", "127.0.0.2", "[::1]", "[::]", "[::ffff:127.0.0.1]")
        bodies = {host: f"return (await fetch('http://{host}:{port}/')).text()" for host in hosts}
        bodies["away"] = f"return (await fetch('http://127.0.0.1:{port}/to/127.0.0.2:{port}')).text()"
        bodies["far"] = f"return (await fetch('http://127.0.0.1:{port}/to/[::1]:{port}')).text()"
        text = esmodules.source(attacks(bodies))
        grants = {
            "four": (("127.0.0.1/32",), {"127.0.0.1"}),
            "six": (("::1/128",), {"[::1]"}),
            "else": (("fd00::/8", "10.0.0.0/8"), set()),
        }
        async with serving(tmp_path) as world:
            for name, (private, reached) in grants.items():
                fields: dict[str, Any] = {"capabilities": ("tools", "network:fetch"), "private": private}
                asked = Asked(world, esmodules.plugin(place / name, text, name, **fields))
                for body in bodies:
                    said = await asked.said(body)
                    assert said.startswith("got hi" if body in reached else "not: "), (name, body, said)


def test_what_is_given_is_taken_out_of_what_is_closed() -> None:
    (flag,) = permissions._network_flags(("10.1.0.0/16", "192.168.0.0/16", "::1/128"))
    closed = flag.removeprefix("--deny-net=").split(",")
    assert "10.0.0.0/16" in closed
    assert "10.1.0.0/16" not in closed
    assert not {"10.0.0.0/8", "192.168.0.0/16", "[::1]"} & set(closed)
    assert list(permissions._network_flags(("0.0.0.0/0", "::/127"))) == []
    assert list(permissions._network_flags(("0.0.0.0/0", "::1/128"))) == ["--deny-net=[::]"]


# -- data left for other plugins


async def test_there_is_no_storage_that_plugins_share(tmp_path: Path, place: Path) -> None:
    # Of the originals: "localStorage shared between plugins of one bootstrap (reproduced)"
    bodies = {
        "local": "localStorage.setItem('a', 'b'); return localStorage.getItem('a')",
        "caches": "return await caches.open('a')",
        "kv": "return await Deno.openKv()",
    }
    plugin = esmodules.plugin(place / "p", esmodules.source(attacks(bodies)))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for name in bodies:
            assert (await asked.said(name)).startswith("not: "), name


# -- resources


@pytest.mark.parametrize(
    "body",
    [
        "const all = []; for (;;) all.push({all: new Array(1000).fill(1.5)})",
        "const all = []; for (;;) all.push(new Uint8Array(10_000_000).fill(1))",
        "let text = 'x'; for (;;) text += text + Math.random()",
        "const all = []; for (;;) all.push(new Worker('data:text/javascript,for(;;);', {type: 'module'}))",
    ],
)
async def test_memory_has_an_end(tmp_path: Path, place: Path, body: str) -> None:
    # Of the originals: "--max-old-space-size=N kills JS heap only; ArrayBuffers took 3 GB"
    plugin = esmodules.plugin(place / "p", esmodules.source({"eat": body, "fine": "return 1"}), timeout=50)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        answer = await asked("eat")
        assert answer.code in ("EPROTO", "EIO"), answer.message
        # A child that reports EIO has no memory left, and may end with the next call, but not with two.
        if (await asked("fine")).code is not None:
            assert answer.code == "EIO"
        assert await asked.said("fine") == "1"


async def test_answers_have_an_end(tmp_path: Path, place: Path) -> None:
    size = child.OUTPUT_BYTES
    bodies = {"much": f"return 'x'.repeat({size})", "fine": "return 1"}
    plugin = esmodules.plugin(place / "p", esmodules.source(bodies))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        answer = await asked("much")
        assert (answer.code, "over 16 MiB" in answer.message) == ("EIO", True)
        assert await asked.said("fine") == "1"
