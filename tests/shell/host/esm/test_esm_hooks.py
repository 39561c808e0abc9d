"""host/esm/hooks.py: events, middleware, commands and the last hook, called as a daemon calls them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cortexfs.core.manifestjson.fields import Argument, CommandField, Option
from cortexfs.plugins.catalog import Catalog
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.wat import Asked
from tests.waiting import awaited

EVENTS = """
import { globalEventBus } from "cortex/plugins";
const heard = [];
export function onLoad() {
  for (const type of ["session:start", "session:end"]) globalEventBus.on(type, (event) => heard.push(event));
}
"""
HEARD = {"heard": "return JSON.stringify(heard)"}


async def test_declared_events_come_once(tmp_path: Path, place: Path) -> None:
    # abi.md 9.13, 9.42
    text = esmodules.source(HEARD, EVENTS)
    may = ("tools", "events:listener")
    plugin = esmodules.plugin(place / "p", text, capabilities=may, events=("session:start",))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        event = {"type": "session:start", "sessionId": "s"}
        assert await asked.said(":event", **event) == ""
        assert await asked.said(":event", type="session:end", sessionId="s") == ""
        assert msgspec.json.decode(await asked.said("heard")) == [event]
        deaf = Asked(world, esmodules.plugin(place / "q", text, "deaf", events=("session:start",)))
        assert (await deaf(":event", **event)).code == "ENOENT"


async def test_middleware_aborts_and_changes_and_fails_closed(tmp_path: Path, place: Path) -> None:
    # abi.md 9.24
    # issue 6: "a failing or slow hook fails closed for abort-capable stages"
    more = """
    const nothing = { false: false, zero: 0, empty: "", list: [] };
    export async function middlewarePre(ctx) {
      const { toolName, args } = ctx.toolCall;
      if (toolName === "bad") throw new Error("broken");
      if (toolName === "odd") return { abort: "no" };
      if (toolName === "none") return null;
      if (toolName in nothing) return nothing[toolName];
      if (toolName === "rm") return { abort: { reason: "policy", message: "not that" } };
      if (toolName === "cp") return { modifyInput: { ...args, safe: true }, sideEffects: [] };
    }
    export const middlewarePost = async (ctx) => ({ modifyOutput: ctx.toolResult.output.toUpperCase() });
    """
    may = ("tools", "middleware:pre", "middleware:post")
    plugin = esmodules.plugin(place / "p", esmodules.source({}, more), capabilities=may)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)

        async def pre(tool: str) -> object:
            said = await asked.said(":middleware-pre", toolCall={"toolName": tool, "args": {"a": 1}})
            return msgspec.json.decode(said)

        assert await pre("ls") == await pre("none") == {}
        assert await pre("rm") == {"abort": {"reason": "policy", "message": "not that"}}
        assert await pre("cp") == {"modifyInput": {"a": 1, "safe": True}}
        # docs/plugins.md: "What throws ... or answers something else ends the call"
        else_ = dict.fromkeys(("odd", "false", "zero", "empty", "list"), "EPROTO")
        for tool, code in {"bad": "EIO", **else_}.items():
            assert (await asked(":middleware-pre", toolCall={"toolName": tool, "args": {}})).code == code
        said = await asked.said(":middleware-post", toolResult={"output": "done"})
        assert msgspec.json.decode(said) == {"modifyOutput": "DONE"}


@pytest.mark.parametrize(
    "export",
    [
        "export default",
        "export const sayHello =",
        "export default {about: 'no handler'}; export const sayHello =",
    ],
)
async def test_commands(tmp_path: Path, place: Path, export: str) -> None:
    # abi.md 9.17
    says = "console.log('hello', args.name, {a: args.loud}); console.log('bye')"
    text = f"{export} async (args) => {{ {says} }}"
    command = CommandField(
        "say-hello",
        "Greets",
        (Argument("name", "string", "Whom", required=True),),
        (Option("loud", "boolean", "Loudly", "-l"),),
    )
    plugin = esmodules.plugin(place / "p", text, capabilities=("cli:commands",), commands=(command,))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        said = await asked.said(":command say-hello", name="ann", loud=True)
        assert said == "hello ann { a: true }\nbye\n"
        for wrong in ({}, {"name": 1}, {"name": "a", "other": 1}):
            assert (await asked(":command say-hello", **wrong)).code == "EINVAL"


async def test_the_handler_of_a_command_is_its_name_in_camel_case(tmp_path: Path, place: Path) -> None:
    # abi.md 9.17
    names = {"count-words": "countWords", "count": "count", "a_b-c2": "aBC2", "more.words": "moreWords"}
    text = "\n".join(f"export function {export}() {{ console.log('{export}') }}" for export in names.values())
    commands = tuple(CommandField(name, "Says its name", (), ()) for name in names)
    plugin = esmodules.plugin(place / "p", text, capabilities=("cli:commands",), commands=commands)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        said = {name: await asked.said(f":command {name}") for name in names}
    assert said == {name: f"{export}\n" for name, export in names.items()}


async def test_the_last_hooks(tmp_path: Path, place: Path) -> None:
    # Of the originals: "Remove onDeactivate->onUnload->onUninstall"
    write = "Deno.writeTextFileSync(ctx.pluginDir + '/ends', '{} ', {{append: true}})"
    ends = "\n".join(
        f"export const {name} = (ctx) => {write.format(name)};"
        for name in ("onUninstall", "onUnload", "onDeactivate")
    )
    plugin = esmodules.plugin(place / "p", esmodules.source({}, ends), capabilities=("fs:write",))
    async with serving(tmp_path) as world:
        assert await Asked(world, plugin).said(":uninstall") == ""
        assert (place / "p" / "ends").read_text().split() == ["onDeactivate", "onUnload", "onUninstall"]
        await awaited(lambda: not esmodules.deno(world))


async def test_after_the_last_hooks_the_state_is_closed_until_the_next_call(
    tmp_path: Path, place: Path
) -> None:
    state = place / "state.sqlite"
    text = esmodules.source({"keep": "await ctx.state.set('a', 'b'); return await ctx.state.get('a')"})
    plugin = esmodules.plugin(place / "p", text, state=str(state))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("keep") == "b"
        assert esmodules.opened(state, *world.pool.by_pid)
        assert await asked.said(":uninstall") == ""
        assert not esmodules.opened(state, *world.pool.by_pid)
        assert await asked.said("keep") == "b"


async def test_none_of_these_is_a_tool(tmp_path: Path, place: Path) -> None:
    may = ("tools", "events:listener", "middleware:pre", "middleware:post", "cli:commands")
    command = CommandField("say-hello", "Greets")
    plugin = esmodules.plugin(
        place / "p", esmodules.source({"only": "return 1"}), capabilities=may, commands=(command,)
    )
    async with serving(tmp_path) as world:
        registry = await Catalog(world.pool).registry([plugin])
        assert [each.name for each in registry if each.plugin == plugin] == ["only"]
