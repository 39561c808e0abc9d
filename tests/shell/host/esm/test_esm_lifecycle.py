"""host/esm/tools.py: the order of hooks, settings, state, and the imports of a module, in real hosts."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.host.call import plugin_state
from cortexfs.host.esm import state as esmstate
from cortexfs.host.esm import tools
from cortexfs.plugins.catalog import Catalog
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.wat import Asked, broken
from tests.waiting import awaited

HOOKS = """
const heard: string[] = [];
const note = (what: string) => heard.push(what);
"""
NOTED = "\n".join(
    f"export const {name} = async (ctx: any) => void note('{name} ' + ctx.pluginId);"
    for name in ("onInstall", "onLoad", "onActivate")
)
CHANGES = "export const onConfigChange = async (k, v, ctx) => void note(`${k}=${v} ${ctx.pluginId}`);"


def kept(place: Path) -> str:
    """Returns a file that this user's hosts can write."""
    return str(place / "state.sqlite")


# -- hooks


async def test_hooks_come_in_their_order(tmp_path: Path, place: Path) -> None:
    # Of the originals: "Install onInstall->onLoad->onActivate; Enable onLoad->onActivate"
    text = esmodules.source({"heard": "return heard.join()"}, HOOKS + NOTED)
    folder = place / "p"
    for times in range(2):
        plugin = esmodules.plugin(folder, text, state=kept(place))
        (tmp_path / str(times)).mkdir()
        async with serving(tmp_path / str(times)) as world:
            said = await Asked(world, plugin).said("heard")
        first = "onInstall fixture," * (times == 0)
        assert said == f"{first}onLoad fixture,onActivate fixture"


async def test_an_end_in_good_order(tmp_path: Path, place: Path) -> None:
    # Of the originals: "Disable onDeactivate->onUnload"
    write = "Deno.writeTextFileSync(ctx.pluginDir + '/ends', '{} ', {{append: true}})"
    ends = "\n".join(
        f"export const {name} = (ctx) => {write.format(name)};" for name in ("onUnload", "onDeactivate")
    )
    text = esmodules.source({"pid": "return Deno.pid"}, ends)
    plugin = esmodules.plugin(place / "p", text, capabilities=("tools", "fs:write"))
    async with serving(tmp_path) as world:
        await Asked(world, plugin).said("pid")
        world.pool.replace(lambda plugin: False)
        await awaited(lambda: not world.pool.by_pid)
    # one process for each directory: the process that listed the tools, and the caller's process
    assert sorted((place / "p" / "ends").read_text().split()) == ["onDeactivate"] * 2 + ["onUnload"] * 2


# -- settings


async def test_settings_and_their_changes(tmp_path: Path, place: Path) -> None:
    # Of the originals: "config change onConfigChange(key,value,ctx) per key"
    bodies = {
        "heard": "return heard.join()",
        "get": "return JSON.stringify(await ctx.config.get(args.text))",
        "all": "return JSON.stringify(await ctx.config.getAll())",
        "set": "await ctx.config.set('theme', args.text); return await ctx.config.get('theme')",
    }
    text = esmodules.source(bodies, HOOKS + CHANGES)

    async def said(config: dict[str, Any], *asks: tuple[str, dict[str, Any]]) -> list[str]:
        plugin = esmodules.plugin(place / "p", text, config=config, state=kept(place))
        work = tmp_path / str(len(os.listdir(tmp_path)))
        work.mkdir()
        async with serving(work) as world:
            asked = Asked(world, plugin)
            return [await asked.said(tool, **input) for tool, input in asks]

    assert await said(
        {"theme": "dark", "n": 1},
        ("heard", {}),
        ("get", {"text": "theme"}),
        ("get", {"text": "x"}),
        ("all", {}),
    ) == ["", '"dark"', "null", '{"theme":"dark","n":1}']
    # "return getAll() for undefined key"
    assert await said({"theme": "dark", "n": 1}, ("heard", {}), ("get", {})) == ["", '{"theme":"dark","n":1}']
    assert await said({"theme": "light", "m": 2}, ("heard", {})) == [
        "theme=light fixture,n=null fixture,m=2 fixture"
    ]
    assert await said({"theme": "light", "m": 2}, ("heard", {}), ("set", {"text": "own"})) == ["", "own"]
    assert await said({"theme": "dark", "m": 2}, ("get", {"text": "theme"})) == ['"own"']


# -- state

STATE = {
    "set": "await ctx.state.set(args.key, args.value); return 'set'",
    "get": "return await ctx.state.get(args.key)",
    "del": "return await ctx.state.delete(args.key)",
    "list": "return JSON.stringify(await ctx.state.list())",
    "number": "await ctx.state.set('n', {a: 1}); return await ctx.state.get('n')",
    "many": "await Promise.all(Array.from({length: 900}, (_, n) => ctx.state.set('k' + n, 'v')));"
    " return Object.keys(await ctx.state.list()).length",
    "flood": "await Promise.all(Array.from({length: 1001}, (_, n) => ctx.state.get('k')))",
    "long": "await ctx.state.set('k', 'x'.repeat(args.size))",
    "name": "await ctx.state.set('k'.repeat(args.size), 'x')",
    "odd": "await ctx.state.set('', 'x')",
}


def keeper(folder: Path, **fields: Any) -> hostcalls.Plugin:
    params = ", ".join(
        f'{{name: "{name}", type: "{kind}", description: ""}}'
        for name, kind in {"key": "string", "value": "string", "size": "number"}.items()
    )
    made = ",".join(esmodules.tool(body, name, params) for name, body in STATE.items())
    return esmodules.plugin(folder, f"export const tools = [{made}]", **fields)


async def test_state_is_kept(tmp_path: Path, place: Path) -> None:
    # Of the originals: "state {get(k)->string|null,set(k,v:string),delete(k),list()->Record} async"
    for times in range(2):
        (tmp_path / str(times)).mkdir()
        async with serving(tmp_path / str(times)) as world:
            asked = Asked(world, keeper(place / "p", state=kept(place)))
            other = Asked(world, keeper(place / "q", state=kept(place), name="other"))
            if not times:
                assert await asked.said("get", key="a") == "null"
                assert await asked.said("set", key="a", value="ü\n") == "set"
                assert await asked.said("set", key="b", value="") == "set"
            assert await asked.said("get", key="a") == "ü\n"
            assert await asked.said("list") == '{"a":"ü\\n","b":""}'
            assert await other.said("list") == "{}"
            assert await asked.said("del", key="none") == "null"
    with contextlib.closing(sqlite3.connect(kept(place))) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_state_has_bounds(tmp_path: Path, place: Path) -> None:
    async with serving(tmp_path) as world:
        asked = Asked(world, keeper(place / "p"))
        assert await asked.said("number") == '{"a":1}'
        await asked.said("del", key="n")
        assert await asked.said("many") == "900"
        for tool, size, told in (
            ("flood", 0, "over 1000 questions"),
            ("long", plugin_state.MAX_VALUE + 1, "at most 65536 bytes"),
            ("name", plugin_state.MAX_KEY + 1, "1 to 1024 bytes"),
            ("odd", 0, "1 to 1024 bytes"),
        ):
            answer = await asked(tool, size=size)
            assert (answer.code, told in answer.message) == ("EIO", True), answer.message
        await asked.said("long", size=plugin_state.MAX_VALUE)
        await asked.said("name", size=plugin_state.MAX_KEY)


def test_state_does_not_grow_without_end(tmp_path: Path) -> None:
    with contextlib.closing(esmstate.EsmState(str(tmp_path / "s"), "p")) as state:
        value = "x" * plugin_state.MAX_VALUE
        for number in range(255):
            state.answer("state.set", (f"k{number}", value))
        with pytest.raises(esmstate.StateRefusal, match="16 MiB"):
            state.answer("state.set", ("k255", value))
        assert len(state.answer("state.list", ())) == 255
        with pytest.raises(esmstate.StateRefusal, match="has no request"):
            state.answer("sql", ("DROP TABLE kept",))
        with pytest.raises(esmstate.StateRefusal, match="has no request"):
            state.answer("state.get", ())
        with pytest.raises(esmstate.StateRefusal, match="a text"):
            state.answer("state.get", (1,))
    with pytest.raises(esmstate.StateRefusal, match="closed database"):
        state.answer("state.get", ("k0",))


async def test_state_that_cannot_be_written_is_told(tmp_path: Path, place: Path) -> None:
    (place / "file").write_text("this is no database" * 100)
    assert "cannot be read or written" in await broken(
        tmp_path, keeper(place / "p", state=str(place / "file"))
    )


async def test_nobody_opens_the_state_himself(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    body = "try { return Deno.readFileSync('state.sqlite').length } catch (e) { return e.name }"
    plugin = esmodules.plugin(
        place / "p",
        esmodules.source({"read": f"await ctx.state.set('a', 'b'); {body}"}),
        state=kept(place),
        capabilities=("tools", "fs:read", "fs:write"),
    )
    async with serving(tmp_path) as world:
        assert await Asked(world, plugin).said("read") == "NotCapable"


# -- imports and tools


async def test_what_a_module_may_import(tmp_path: Path, place: Path) -> None:
    # Of the originals: "'cortex/plugins' value import ... a host must provide it by import map"
    (place / "p" / "lib").mkdir(parents=True)
    (place / "p" / "lib" / "names.ts").write_text('export const name: string = "inner";')
    (place / "p" / "data.json").write_text('{"a": 1}')
    top = """
    import type { Plugin } from "cortex/plugins";
    import { globalEventBus } from "cortex/plugins";
    import { name } from "./lib/names.ts";
    import data from "./data.json" with { type: "json" };
    import { Buffer } from "node:buffer";
    let heard = "";
    globalEventBus.on("mine", () => { throw new Error("alone"); });
    globalEventBus.on("mine", (event) => heard += event.text);
    """
    body = "globalEventBus.emit({type: 'mine', text: 'x'}); return [name, data.a, typeof Buffer, heard]"
    plugin = esmodules.plugin(place / "p", esmodules.source({"look": body}, top))
    async with serving(tmp_path) as world:
        assert await Asked(world, plugin).said("look") == "inner,1,function,x"


async def test_tools_that_are_registered_while_it_loads(tmp_path: Path, place: Path) -> None:
    # Of the originals: "host {registerTool(tool), unregisterTool(name)} ... restrict to own"
    late = esmodules.tool("return 'late'", "late")
    does = f"ctx.host.registerTool({late}); ctx.host.unregisterTool('gone')"
    more = f"export const onLoad = (ctx) => {{ {does} }};"
    text = esmodules.source({"gone": "return 1", "stays": "ctx.host.unregisterTool('stays'); return 1"}, more)
    plugin = esmodules.plugin(place / "p", text)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("late") == "late"
        assert (await asked("gone")).code == "ENOENT"
        assert await asked.said("stays") == "1"
        assert "Unknown tool" in (await asked("stays")).message


async def test_a_tool_that_wants_too_much_is_listed_with_the_reason(tmp_path: Path, place: Path) -> None:
    # abi.md 11.35; of the originals: "tool caps must be a subset -> refuse that tool"
    greedy = esmodules.tool("return 1", "greedy", capabilities='["shell:run"]')
    modest = esmodules.tool("return 1", "modest", capabilities='["fs:read"]')
    plugin = esmodules.plugin(
        place / "p", f"export const tools = [{greedy}, {modest}]", capabilities=("tools", "fs:read")
    )
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("modest") == "1"
        registry = await Catalog(world.pool).registry([plugin])
        greedy_one = registry.get("tool", "greedy")
        assert greedy_one is not None
        assert greedy_one.plugin is None
        assert greedy_one.status.startswith("broken: the tool greedy needs shell:run, which its plugin does")


async def test_no_tools_without_the_capability(tmp_path: Path, place: Path) -> None:
    # abi.md 9.7
    plugin = esmodules.plugin(place / "p", esmodules.source({"a": "return 1"}), capabilities=())
    assert await broken(tmp_path, plugin) == ""  # it loads, but it has no tools


@pytest.mark.parametrize("text", ["export default [];", "const tools = [];", "export const tools = [];"])
async def test_a_capability_of_tools_is_for_some(tmp_path: Path, place: Path, text: str) -> None:
    # abi.md 11.47
    plugin = esmodules.plugin(place / "p", text)
    why = "it has the capability tools, but no tool; export const tools from its module, or register"
    assert why in await broken(tmp_path, plugin)


async def test_a_capability_of_tools_is_in_nobodys_way(tmp_path: Path, place: Path) -> None:
    # abi.md 11.47
    plugin = esmodules.plugin(place / "p", "", capabilities=("tools", "events:listener"))
    assert await broken(tmp_path, plugin) == ""


# -- providers

PROVIDERS = """
export const providers = {
  parrot: (config) => ({
    name: "parrot",
    defaultModel: "grey",
    async *stream(options) {
      const said = options.messages.at(-1).content.split(" ");
      for (const word of said) yield { content: config.prefix + word + " " };
      yield { usage: { tokensIn: 3, tokensOut: options.messages.length } };
    },
  }),
  oracle: () => ({
    async complete(options) {
      return { content: options.model + " " + options.messages[0].content, tokensIn: 1, tokensOut: 2 };
    },
  }),
  mute: () => ({ complete: async () => { throw new Error("no key") } }),
};
"""


def asked(model: sdk.Tool, text: str, **fields: Any) -> sdk.MemoryRuntime:
    runtime = sdk.MemoryRuntime(model.name)
    result = sdk.run(model, {"messages": [{"role": "user", "text": text}], **fields}, runtime)
    runtime.emit(result.output)
    return runtime


def test_providers_are_models(place: Path) -> None:
    # abi.md 9.24
    wanted = {"parrot": "grey", "oracle": "old", "mute": "one", "none": "x"}
    state = Path(kept(place))
    fields: dict[str, Any] = {"providers": wanted, "config": {"prefix": "~"}, "labels": {"parrot": "Polly"}}
    fields |= {"state": str(state)}
    plugin = esmodules.plugin(place / "p", PROVIDERS, capabilities=("config:provider",), **fields)
    models = {model.name: model for model in tools.tools(plugin) if isinstance(model, sdk.Model)}
    assert list(models) == ["parrot/grey", "oracle/old", "mute/one"]
    # abi.md 9.22
    assert models["parrot/grey"].description.startswith("Polly: ")
    said = asked(models["parrot/grey"], "one two", system="be brief")
    assert (said.text, said.events) == ("~one ~two ", [sdk.Usage(3, 2)])
    said = asked(models["oracle/old"], "when?")
    assert (said.text, said.events) == ("old when?", [sdk.Usage(1, 2)])
    with pytest.raises(sdk.ExecutionFailed, match="no key"):
        asked(models["mute/one"], "?")
    closed = esmodules.plugin(place / "p", PROVIDERS, capabilities=(), **fields)
    assert not [each for each in tools.tools(closed) if isinstance(each, sdk.Model)]
    assert esmodules.opened(state, os.getpid())
    tools.drop_all()
    assert not esmodules.opened(state, os.getpid())
