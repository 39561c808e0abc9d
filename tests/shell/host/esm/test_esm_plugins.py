"""host/esm/tools.py: calls of JavaScript modules, in real Deno, in real hosts."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from cortexfs.core import hooks
from cortexfs.core.manifest import targets
from cortexfs.host.call import plugin_state
from cortexfs.host.esm import child, permissions
from cortexfs.host.esm import tools as esm
from tests.places import PROJECT
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.wat import Asked, broken
from tests.waiting import awaited

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
RULES = " ".join((PROJECT / "docs" / "abi.md").read_text().split())

TOOLS = {
    "echo": "return args.text",
    "pid": "return Deno.pid",
    "calls": "return globalThis.calls = (globalThis.calls ?? 0) + 1",
    "place": "return ctx.workingDir",
    "keys": "return Object.keys(ctx).sort().join(' ')",
    "half": "return 'a' + '\\u{1f600}'.slice(0, 1) + 'b \\\\ud83d'",
    "throw": "throw new Error('no ' + args.text)",
    "nothing": "throw undefined",
    "long": "return 'x'.repeat(5_000_000)",
    "spin": "ctx.emit('start'); for (;;);",
    "never": "ctx.emit('start'); await new Promise(() => {})",
    "obeys": "ctx.emit('start'); await new Promise((done) => ctx.signal.onabort = done); return 'aborted'",
    "parts": "ctx.emit('one '); ctx.onProgress('half'); ctx.onProgress({message: 'more'}); return 'two'",
    "flood": "for (;;) { ctx.emit('x'.repeat(100_000)); await 0; }",
    "stream": "for (let n = 0; n < 300; n++) ctx.emit('x'.repeat(10_000)); return ''",
}


async def test_calls(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("echo", text="ü\U0001f600\0") == "ü\U0001f600\0"
        assert await asked.said("echo") == "undefined"
        assert [await asked.said("calls") for _ in range(3)] == ["1", "2", "3"]
        assert await asked.said("place") == os.getcwd()
        assert len(await asked.said("long")) == 5_000_000
        assert len(await asked.said("stream")) == 3_000_000
        assert await asked.said("echo", text="ü" * 500_000) == "ü" * 500_000
        assert await asked.said("half") == "a\ufffdb \\ud83d"
        assert await asked.said("parts") == "one two"
        # Of the originals: "Throw from execute -> {success:false,output:'',error:message"
        answer = await asked("throw", text="way")
        assert (answer.code, answer.message, answer.status) == ("EIO", "no way", 1)
        assert (await asked("nothing")).code == "EIO"
        assert (await asked("missing")).code == "ENOENT"
        assert await asked.said("calls") == "4"
        assert len(esmodules.deno(world)) == 1


async def test_a_bug_is_told_with_its_place(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # abi.md 4.62; an error that a tool throws as its answer is reported unchanged, and logged too
    (place / "p").mkdir()
    (place / "p" / "other.ts").write_text("interface A {}\n\nexport const f = (a) => a.none.such;\n")
    tools = {"bug": "return f({});", "answer": "throw new Error('not today')"}
    more = "import { f } from './other.ts';"
    plugin = esmodules.plugin(place / "p", esmodules.source(tools, more))
    caplog.set_level("INFO", "cortexfs")
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        told = (await asked("bug")).message
        assert told.endswith("(other.ts, line 3)")
        assert "\n" not in told
        assert (await asked("answer")).message == "not today"
        await awaited(lambda: "Error: not today at " in caplog.text and "other.ts:3:" in caplog.text)


async def test_what_a_tool_is_given(tmp_path: Path, place: Path) -> None:
    # Of the originals: "pass the union PluginContext and ToolContext"
    given = "return [ctx.pluginId, ctx.pluginDir, ctx.toolName, typeof ctx.logger.warn].join(' ')"
    plugin = esmodules.plugin(place / "p", esmodules.source({"keys": TOOLS["keys"], "given": given}))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        said = (await asked.said("keys")).split()
        assert {"pluginId", "pluginDir", "state", "config", "logger", "host"} <= {*said}
        assert {"sessionId", "workingDir", "agentId", "workspaceDir", "onProgress", "signal"} <= {*said}
        assert (await asked.said("given")).split() == ["fixture", str(place / "p"), "given", "function"]


async def test_progress_comes_while_it_runs(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        answer = await Asked(world, plugin)("parts")
        assert [
            getattr(frame, "message", None) for frame in answer.frames if "Progress" in type(frame).__name__
        ] == [
            "half",
            "more",
        ]


async def test_input_and_results_are_checked(tmp_path: Path, place: Path) -> None:
    # Of the originals: "C does not validate args (no required/type/enum), nor the result. Do both."
    bad = {
        "none": "return undefined",
        "other": "return {toolName: 'else', success: true, output: '', durationMs: 1}",
        "number": "return {toolName: 'number', success: true, output: 1, durationMs: 1}",
        "circular": "const o = {}; o.o = o; return o",
        "big": "return {toolName: 'big', success: true, output: '', durationMs: 1n}",
        "failed": "return {toolName: 'failed', success: false, output: '', error: 'soft', durationMs: 1}",
    }
    raw = ", ".join(
        f"{{definition: {{name: '{name}', description: '', params: []}}, async execute() {{ {body} }}}}"
        for name, body in bad.items()
    )
    params = '{name: "level", type: "string", description: "", required: true, enum: ["low", "high"]}'
    text = f"export const tools = [{raw}, {esmodules.tool('return args.level', 'level', params)}]"
    plugin = esmodules.plugin(place / "p", text)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("level", level="low") == "low"
        for wrong in ({"level": "mid"}, {"level": 1}, {}, {"level": "low", "other": 1}):
            assert (await asked("level", **wrong)).code == "EINVAL"
        for name in ("none", "other", "number"):
            answer = await asked(name)
            assert (answer.code, "returned" in answer.message) == ("EPROTO", True), name
        # Of the originals: "circular/BigInt results throw at serialise: each must become a failed
        # ToolCallResult"
        for name, told in {"circular": "circular", "big": "BigInt", "failed": "soft"}.items():
            answer = await asked(name)
            assert (answer.code, answer.status) == ("EIO", 1)
            assert told in answer.message
        assert len(esmodules.deno(world)) == 1


# -- faults


async def test_a_killed_process_ends_its_calls_alone(tmp_path: Path, place: Path) -> None:
    # issue 6: "Deno or a server killed in mid-call (error frame, 70 or 69, back within 1 s)"
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        await asked.said("calls")
        hosts = set(world.pool.by_pid)
        async with world.begun(world.inode("never", plugin), "{}") as runner:
            await runner.until(b"start")
            os.kill(int(await asked.said("pid")), signal.SIGKILL)
            answer = await runner.answer()
            assert (answer.code, answer.status) == ("EPROTO", 70)
            assert "ended with signal: 9 (SIGKILL)" in answer.message
        assert await asked.said("calls") == "1"
        assert set(world.pool.by_pid) == hosts
        assert len(esmodules.deno(world)) == 1


@pytest.mark.parametrize("name", ["obeys", "never", "spin"])
async def test_a_call_can_be_cancelled(tmp_path: Path, place: Path, name: str) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        async with world.begun(world.inode(name, plugin), "{}") as runner:
            await runner.until(b"start")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        if name == "obeys":
            assert await asked.said("pid") == first
        else:
            await awaited(lambda: int(first) not in esmodules.deno(world))
            assert await asked.said("calls") == "1"
        assert len(world.pool.by_pid) == 1


@pytest.mark.parametrize("name", ["never", "spin"])
async def test_a_call_ends_at_its_deadline(tmp_path: Path, place: Path, name: str) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS), timeout=1)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        answer = await asked(name)
        assert (answer.code, answer.status) == ("ETIMEDOUT", 1)
        assert answer.message == f"the tool {name} did not end within 1 s"  # abi.md 4.59
        await awaited(lambda: int(first) not in esmodules.deno(world))
        assert await asked.said("calls") == "1"


async def test_what_a_stuck_process_has_not_heard_of_another_does(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS), timeout=10)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        async with world.begun(world.inode("spin", plugin), "{}") as runner:
            await runner.until(b"start")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        # called at once, while the first call still spins
        assert await asked.said("echo", text="a") == "a"
        assert await asked.said("pid") != first


async def test_a_call_can_be_cancelled_while_its_process_starts(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = esmodules.source(TOOLS, "if (Deno.cwd() !== '/') await new Promise(() => {});")
    plugin = esmodules.plugin(place / "p", text, capabilities=("tools", "fs:read"))
    monkeypatch.chdir(place)
    async with serving(tmp_path) as world:
        (host,) = [await world.pid()] and world.pool.by_pid
        async with world.begun(world.inode("echo", plugin), "{}") as runner:
            await runner.until(b"start")
            await awaited(lambda: len(esmodules.deno(world)) == 2)
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        assert host in world.pool.by_pid
        assert len(world.pool.by_pid) == 2


async def test_files_are_made_with_the_callers_umask(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 4.35: a tool runs with the umask of its caller
    monkeypatch.chdir(place)
    body = "Deno.writeTextFileSync(args.text, ''); return (Deno.statSync(args.text).mode & 0o777).toString(8)"
    may = ("tools", "fs:read", "fs:write")
    plugin = esmodules.plugin(place / "p", esmodules.source({"make": body}), capabilities=may)
    async with serving(tmp_path) as world:
        for umask, mode in ((0o22, "644"), (0o77, "600"), (0o7, "660")):
            inode = world.inode("make", plugin)
            answer = await world.call(inode, f'{{"text":"{mode}"}}', umask=umask)
            assert answer.output == mode


async def test_a_flood_ends(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        answer = await asked("flood")
        assert answer.code in ("EIO", "EPROTO")
        await awaited(lambda: int(first) not in esmodules.deno(world))
        assert await asked.said("echo", text="a") == "a"


async def test_calls_run_side_by_side_in_one_process(tmp_path: Path, place: Path) -> None:
    tools = TOOLS | {
        "meet": "globalThis.met ? globalThis.met() : await new Promise((d) => globalThis.met = d); return 1"
    }
    plugin = esmodules.plugin(place / "p", esmodules.source(tools))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        async with world.begun(world.inode("meet", plugin), "{}") as runner:
            while not (await asked("meet")).output:  # the first call waits for the second
                pass
            assert (await runner.answer()).output == "1"


async def test_calls_that_are_cancelled_harm_no_other(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", esmodules.source(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        first = await asked.said("pid")
        for step in range(60):
            async with world.begun(world.inode("echo", plugin), '{"text":"a"}') as runner:
                for _ in range(step):
                    os.sched_yield()
                runner.stream.shutdown(socket.SHUT_WR)
                assert (await runner.answer()).code in (None, "ECANCELED")
            assert await asked.said("echo", text="a") == "a"
        assert await asked.said("pid") == first


async def test_an_end_of_its_own(tmp_path: Path, place: Path) -> None:
    # Of the originals: "Uncaught timer error or rejected promise exits rc 1; Deno.exit(n) is allowed"
    ends = {
        "leave": ("Deno.exit(3)", "ended with exit status: 3"),
        "timer": (
            "setTimeout(() => { throw new Error('late') }, 1); await new Promise(() => {})",
            "ended with exit status: 1: late",
        ),
        "reject": (
            "Promise.reject(new Error('nobody')); await new Promise(() => {})",
            "ended with exit status: 1: nobody",
        ),
    }
    plugin = esmodules.plugin(
        place / "p", esmodules.source({name: body for name, (body, _) in ends.items()} | TOOLS)
    )
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for name, (_, told) in ends.items():
            answer = await asked(name)
            assert (answer.code, answer.status) == ("EPROTO", 70), name
            assert told in answer.message
            assert await asked.said("calls") == "1"


async def test_what_does_not_load(tmp_path: Path, place: Path) -> None:
    bad = {
        "throws": ("\nthrow new Error('not today')", "not today (mod.ts, line 2)"),
        "syntax": ("export const tools = [", "Expression expected"),
        "onload": (
            "export async function onLoad() { throw new Error('no key') }",
            "no key (mod.ts, line 1) (in onLoad)",
        ),
        "exits": ("Deno.exit(0)", "ended with exit status: 0"),
        "says": ("console.error('no key'); Deno.exit(2)", "exit status: 2; it printed last: no key"),
        "twice": ("const t = {definition: {name: 'a'}, execute() {}}; export const tools = [t, t]", "twice"),
        "odd": (
            "export const tools = [{definition: {name: 'a', description: 1}, execute() {}}]",
            "not described",
        ),
        "hangs": ("await new Promise(() => {})", "load did not end within 1 s"),
        "spins": ("for (;;);", "load did not end within 1 s"),
    }
    for name, (text, told) in bad.items():
        seconds = 1.0 if "within 1 s" in told else 14.0
        plugin = esmodules.plugin(place / name, text, loading=seconds)
        (tmp_path / name).mkdir()
        assert told in await broken(tmp_path / name, plugin), name


def test_the_figures_are_those_of_the_code() -> None:
    # abi.md 9.38, 9.40, 9.43, 9.49
    calls = f"A call may take {targets.ESM_SECONDS} s, a hook {hooks.HOOK_SECONDS:g} s"
    assert f"{calls}, loading {hooks.LOAD_SECONDS:g}" in " ".join(PAGE.split())
    for figure in (
        f"calls, {esm.MAX_PROCESSES} at most",
        f"in good order, with {hooks.HOOK_SECONDS:g} s each",
        f"An answer has {child.OUTPUT_BYTES >> 20} MiB at most",
        f"has {permissions.HEAP_MIB} MiB for objects and some {permissions.DATA_KIB >> 20} GiB of data",
        f"key has {plugin_state.MAX_KEY >> 10} KiB at most, a value {plugin_state.MAX_VALUE >> 10} KiB;"
        f" a plugin has {plugin_state.MAX_KEYS:,} keys and {plugin_state.MAX_TOTAL >> 20} MiB",
    ):
        assert figure in RULES, figure
