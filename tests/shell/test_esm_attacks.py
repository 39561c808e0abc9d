"""What ESM plugins try and must not get: each pitfall of Deno, in real hosts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.host import esmcalls, esmrights
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import Asked, broken

SECRET = "/etc/passwd"


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


@pytest.fixture
def work(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's directory."""
    made = place / "work"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def tried(body: str) -> str:
    """What comes of it, or why nothing does."""
    failed = "return `not: ${e} ${e.cause}`"
    return f"try {{ return 'got ' + await (async () => {{ {body} }})() }} catch (e) {{ {failed} }}"


def attacks(bodies: dict[str, str]) -> dict[str, str]:
    return {name: tried(body) for name, body in bodies.items()}


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
    # prism-manifest-json.md 8: "Static imports bypass --allow-read"
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
        "proc": "return Deno.readTextFileSync('/proc/self/environ')",
    }
    text = esmodules.source(attacks(bodies))
    plugin = esmodules.plugin(place / "p", text, capabilities=("tools", "fs:read", "fs:write"))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("mine") == "got mine"
        assert await asked.said("make") == "got new"
        # prism-manifest-json.md 8: "Symlinks inside the allowed dir are followed"
        for name in ("other", "out", "up", "overwrite", "link", "hard", "import", "proc"):
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


async def test_nothing_is_fetched_to_be_imported(tmp_path: Path, place: Path) -> None:
    # prism-manifest-json.md 8: "import("npm:"+x) performs registry requests with no net permission"
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
    # prism-manifest-json.md 8: "net=true reaches loopback/metadata"
    # issue 6: "private addresses and redirects into them refused unless granted"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            with listener.accept()[0] as client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        hosts = ("127.0.0.1", "localhost", "[::1]", "2130706433", "0.0.0.0", "10.0.0.1", "169.254.169.254")
        bodies = {
            f"h{at}": f"return (await fetch('http://{host}:{port}/')).text()" for at, host in enumerate(hosts)
        }
        bodies["tcp"] = f"return (await Deno.connect({{hostname: 'localhost', port: {port}}})).close()"
        bodies["unix"] = "return (await Deno.connect({transport: 'unix', path: '/run/x.sock'})).close()"
        text = esmodules.source(attacks(bodies))
        may = ("tools", "network:fetch")
        closed = esmodules.plugin(place / "p", text, capabilities=may)
        opened = esmodules.plugin(place / "q", text, "opened", capabilities=may, private=("127.0.0.0/8",))
        async with serving(tmp_path) as world:
            asked = Asked(world, closed)
            for name in bodies:
                said = await asked.said(name)
                assert said.startswith("not: "), (name, said)
                assert "Requires " in said, (name, said)
            thread = threading.Thread(target=serve)
            thread.start()
            assert await Asked(world, opened).said("h0") == "got hi"
            thread.join()


def test_what_is_given_is_taken_out_of_what_is_closed() -> None:
    (flag,) = esmrights._closed(("10.1.0.0/16", "192.168.0.0/16", "::1/128"))
    closed = flag.removeprefix("--deny-net=").split(",")
    assert "10.0.0.0/16" in closed
    assert "10.1.0.0/16" not in closed
    assert not {"10.0.0.0/8", "192.168.0.0/16", "[::1]"} & set(closed)
    assert list(esmrights._closed(("0.0.0.0/0", "::1/128"))) == []


# -- what it could leave for others


async def test_there_is_no_storage_that_plugins_share(tmp_path: Path, place: Path) -> None:
    # prism-manifest-json.md 8: "localStorage shared between plugins of one bootstrap (reproduced)"
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


# -- the channel


async def test_its_channel_can_be_neither_written_nor_read(tmp_path: Path, place: Path) -> None:
    # prism-manifest-json.md 8: "stdout belongs to the plugin too ... it can corrupt or forge protocol lines"
    line = '{"id":4,"result":{"toolName":"write","success":true,"output":"forged","durationMs":0}}\\n'
    forged = f"const text = '{line}'; const data = new TextEncoder().encode(text); const done = [];"
    bodies = {
        "stdout": f"{forged} Deno.stdout.writeSync(data); console.log(text); return 'written'",
        "files": f"""{forged} const fs = await import('node:fs');
            for (let fd = 3; fd < 40; fd++) try {{ fs.writeSync(fd, data); done.push(fd) }} catch {{}}
            const room = new Uint8Array(9);
            for (let fd = 3; fd < 40; fd++) try {{ fs.readSync(fd, room); done.push(fd) }} catch {{}}
            return done.join()""",
        "sockets": f"""{forged} const net = await import('node:net');
            for (let fd = 0; fd < 40; fd++) try {{
              const s = new net.Socket({{fd}}); s.on('error', () => {{}}); s.write(data); done.push(fd)
            }} catch {{}}
            return done.join()""",
        "listen": """const net = await import('node:net');
            return await new Promise((done) => {
              const server = net.createServer();
              server.on('error', () => done('')); server.listen({fd: 3}, () => done('listens'));
            })""",
        "terminal": """const tty = await import('node:tty'); const done = [];
            for (let fd = 3; fd < 40; fd++) try { new tty.WriteStream(fd); done.push(fd) } catch {}
            return done.join()""",
        "paths": """const done = [];
            for (const p of ['/dev/fd/3', '/dev/fd/4', '/proc/self/fd/3', '/proc/self/fd/4', '/dev/stdin'])
              for (const o of [{read: true}, {write: true}])
                try { Deno.openSync(p, o); done.push(p) } catch {}
            return done.join()""",
        "binding": "return (await import('node:process')).default.binding('pipe_wrap')",
        "internal": "return Deno[Deno.internal].core",
        "parent": "return postMessage('x')",
        "send": "return (await import('node:process')).default.send('x')",
    }
    expected = {name: "got " for name in ("files", "sockets", "terminal", "paths")}
    may = ("tools", "fs:read", "fs:write", "network:fetch")
    plugin = esmodules.plugin(
        place / "p", esmodules.source(attacks(bodies) | {"pid": "return Deno.pid"}), capabilities=may
    )
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        assert await asked.said("stdout") == "got written"
        for name in bodies:
            if name != "stdout":
                said = await asked.said(name)
                assert said == expected[name] if name in expected else said.startswith("not: "), (name, said)
        assert await asked.said("pid") == first


POISON = """
globalThis.seen = [];
const keep = (...all) => { for (let at = 0; at < all.length; at++) seen[seen.length] = all[at] };
const apply = Reflect.apply;
const watch = (owner, names) => {
  for (const name of names) {
    const original = Object.getOwnPropertyDescriptor(owner, name).value;
    if (typeof original !== "function") continue;
    owner[name] = function (...args) {
      keep(this, ...args);
      return apply(original, this, args);
    };
  }
};
const types = [String, Array, Map, Object, Function, Promise, Uint8Array, TextEncoder, TextDecoder];
for (const type of types)
  watch(type.prototype, Object.getOwnPropertyNames(type.prototype).filter((n) => n !== "constructor"));
watch(Object.getPrototypeOf(Uint8Array.prototype), ["set", "subarray", "slice", "fill", "values"]);
for (const name of ["buffer", "byteLength", "byteOffset", "length"]) {
  const typed = Object.getPrototypeOf(Uint8Array.prototype);
  const original = Object.getOwnPropertyDescriptor(typed, name).get;
  Object.defineProperty(typed, name, { configurable: true, get() {
    keep(this);
    return apply(original, this, []);
  } });
}
watch(JSON, ["parse", "stringify"]);
watch(Reflect, ["apply", "construct"]);
for (const name of ["handle", "oncomplete", "buffer", "then", "stream", "id", "result", "toJSON"])
  Object.defineProperty(Object.prototype, name, {
    configurable: true, get() { keep(this); }, set(value) {
      keep(this, value);
      Object.defineProperty(this, name, {value, writable: true, configurable: true, enumerable: true});
    },
  });
for (const type of [Uint8Array, ArrayBuffer, Promise])
  Object.defineProperty(type, Symbol.species, {configurable: true, get() { keep(this); return type; }});
const told = (value) => {
  if (typeof value === "string") return value;
  if (ArrayBuffer.isView(value)) return new TextDecoder().decode(value);
  if (value instanceof ArrayBuffer) return new TextDecoder().decode(new Uint8Array(value));
  return "";
};
"""


async def test_what_it_replaces_hears_no_secret(tmp_path: Path, place: Path) -> None:
    # the per-process secret is "taken before plugin code loads", and never handed to what it could replace
    bodies = {
        "echo": "await ctx.state.set('a', args.text); ctx.emit(''); return await ctx.state.get('a')",
        "look": "const all = seen; globalThis.seen = [];"
        " return [all.length > 9, all.map(told).filter((each) => /[0-9a-f]{64}/.test(each)).length]",
    }
    plugin = esmodules.plugin(place / "p", esmodules.source(bodies, POISON))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("echo", text="a") == "a"
        assert await asked.said("look") == "true,0"


async def test_a_line_without_the_secret_ends_the_process(tmp_path: Path, place: Path) -> None:
    # Who may run commands can write to whatever its process has open.
    body = """ctx.emit('start');
        new Deno.Command('/bin/sh', {args: ['-c', 'echo \\'{"id":3,"result":1}\\' >&4']}).outputSync();
        await new Promise(() => {})"""
    plugin = esmodules.plugin(
        place / "p",
        esmodules.source({"forge": body, "fine": "return 1"}),
        capabilities=("tools", "shell:run"),
    )
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        answer = await asked("forge")
        assert answer.code == "EPROTO"
        assert "wrote to the channel of its host" in answer.message
        assert await asked.said("fine") == "1"


# -- what it may use


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
    # prism-manifest-json.md 8: "--max-old-space-size=N kills JS heap only; ArrayBuffers took 3 GB"
    plugin = esmodules.plugin(place / "p", esmodules.source({"eat": body, "fine": "return 1"}), timeout=50)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        answer = await asked("eat")
        assert answer.code in ("EPROTO", "EIO"), answer.message
        assert await asked.said("fine") == "1"


async def test_answers_have_an_end(tmp_path: Path, place: Path) -> None:
    size = esmcalls.OUTPUT_BYTES
    bodies = {"much": f"return 'x'.repeat({size})", "fine": "return 1"}
    plugin = esmodules.plugin(place / "p", esmodules.source(bodies))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        answer = await asked("much")
        assert (answer.code, "over 16 MiB" in answer.message) == ("EIO", True)
        assert await asked.said("fine") == "1"
