"""The parts of `make bench`; each yields its rows."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tests.bench import (
    ask,
    code,
    engine,
    esm,
    flood,
    growth,
    listings,
    many,
    mcp,
    measure,
    plugins,
    providers,
    search,
    streams,
    talking,
    team,
    wasm,
    web,
)
from tests.bench.rows import Row, above, below, fact
from tests.mounted.ctx_mount import Ctx, mounted

PAIRS = 300


def calls(ctx: Ctx) -> Iterator[Row]:
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    tool = [ctx.tool("fs.read"), str(small)]
    ours, cat, ratio = measure.paired(
        lambda: measure.spawn(tool, ctx.environ),
        lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ),
        PAIRS,
    )
    yield below("fs.read of 1 KiB, over cat", ratio, "x", 1.2)
    yield below("fs.read of 1 KiB", ours, "ms", 1.6)
    yield fact("cat of 1 KiB", cat, "ms")
    daemon = measure.cpu_ms(ctx.pid)
    rate, took = measure.parallel(lambda: measure.spawn(tool, ctx.environ), 16, 2000)
    yield above("calls from 16 callers, 2,000 without an error", rate, "/s", 1000)
    ours = rate
    yield below("the daemon's CPU for one of these", (measure.cpu_ms(ctx.pid) - daemon) / 2000, "ms", 0.35)
    slow = sorted(took)[int(len(took) * 0.99)]
    yield fact("p99 of these", slow, "ms")
    rate, took = measure.parallel(lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ), 16, 2000)
    yield above("calls from 16 callers, over cat's rate", ours / rate, "x", 0.85)
    yield fact("cat from 16 callers", rate, "/s")
    yield fact("p99 of these calls, over that of cat", slow / sorted(took)[int(len(took) * 0.99)], "x")


def stream(ctx: Ctx) -> Iterator[Row]:
    large = ctx.work / "large"
    line = "the quick brown fox jumps over the lazy dog, again and again\n"
    large.write_text(line * (100_000_000 // len(line)))
    size = large.stat().st_size / 1e6
    before = measure.rss_mib(ctx.pid)
    took = sorted(measure.spawn([ctx.tool("fs.read"), str(large)], ctx.environ) for _ in range(7))[3]
    yield above("fs.read of 100 MB as JSONL", size / took * 1e3, "MB/s", 200)
    yield fact("the daemon's memory grew by", measure.rss_mib(ctx.pid) - before, "MiB")
    large.unlink()


def metadata(ctx: Ctx) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        peer = Path(shm) / "tool" / "fs.read"
        peer.parent.mkdir()
        peer.touch()
        missing = ctx.tool("no.such"), f"{peer}.no"
        for what, pair in {"stat": (ctx.tool("fs.read"), str(peer)), "lookup": missing}.items():
            mine, theirs = (measure.per_call(functools.partial(os.path.exists, at), 20_000) for at in pair)
            yield below(f"cached {what}, over tmpfs", mine / theirs, "x", 1.3)


def life(ctx: Ctx) -> Iterator[Row]:
    began = time.perf_counter()
    ctx.umount()
    yield below("ctx umount when nothing runs", time.perf_counter() - began, "s", 1.0)
    began = time.perf_counter()
    ctx.mount()
    ctx.call("text.word_count", "x")
    yield below("ctx mount to the first answer", time.perf_counter() - began, "s", 0.4)
    before = measure.cpu_ms(ctx.pid)
    time.sleep(5)  # so long without a request, as an idle mount is measured
    yield below("CPU when idle for 5 s", measure.cpu_ms(ctx.pid) - before, "ms", 10)
    yield fact("the daemon's memory, at rest", measure.rss_mib(ctx.pid), "MiB")
    yield below("CPU to import cortexfs.sdk", measure.imported(str(ctx.python), "cortexfs.sdk"), "ms", 30)


def talk(ctx: Ctx) -> Iterator[Row]:
    ours, bare, ratio = talking.ping(ctx)
    yield below("ping round trip, over a bare echo in Trio", ratio, "x", 1.5)
    yield fact("ping round trip", ours * 1e3, "µs")
    yield fact("bare echo in Trio", bare * 1e3, "µs")
    yield above("deltas of 32 bytes to one client", talking.stream_rate(ctx), "/s", 100_000)
    yield above("resume of a session of 100,000 events", talking.resume_rate(ctx), "MB/s", 50)
    yield below("send to first delta of debug/echo", talking.first_delta(ctx), "ms", 1)
    one, many = talking.frame_cost(ctx, 1), talking.frame_cost(ctx, talking.SESSIONS)
    yield fact("the daemon's CPU for a frame, 1,000 messages of 1,000 frames in one session", one, "µs")
    yield below("the same in 1,000 sessions, over one", many / one, "x", 1.25)
    yield fact("the daemon's memory after it", measure.rss_mib(ctx.pid), "MiB")


def proxied(ctx: Ctx) -> Iterator[Row]:
    found = providers.figures(ctx)
    yield below("10,000 deltas of a provider by exec, over the vendor's SDK alone", found.over, "%", 15)
    yield fact("10,000 deltas of a provider by exec", found.ours, "ms")
    yield fact("the same, read by the vendor's SDK alone", found.alone, "ms")


def asking(ctx: Ctx) -> Iterator[Row]:
    if found := ask.figures(ctx):
        yield below("ctx ask, over llm with the same server", found.over, "x", 0.25)
        yield fact("ctx ask", found.ours, "ms")
        yield fact("llm", found.llm, "ms")
    took, words = ask.slowest_quiet(ctx)
    yield below(f"ctx {words}, the slowest of {len(ask.QUIET)} commands that ask nothing", took, "ms", 60)


def crowded(ctx: Ctx) -> Iterator[Row]:
    found = streams.figures(ctx)
    meanwhile = f"while {streams.STREAMS} answers of a provider stream, {streams.RATE} deltas/s each"
    yield below(f"p99 of a cached stat, {meanwhile}", found.stat, "ms", 1)
    yield below("p99 of fs.read, meanwhile", found.call, "ms", 20)
    yield fact("p99 of a cached stat without them", found.alone_stat, "ms")
    yield fact("p99 of fs.read without them", found.alone_call, "ms")
    yield above("deltas that came meanwhile, of those sent", found.rate / found.wanted, "x", 0.95)
    yield fact("the daemon's CPU meanwhile", found.cpu, "% of a core")


def thousand(python: Path) -> Iterator[Row]:
    with mounted(python, config=many.CONFIG) as ctx:
        found = many.figures(ctx)
    answers = f"{many.STREAMS:,} answers of {many.DELTAS} deltas, {many.RATE} a second each"
    yield below(f"{answers}, from the first caller to the last", found.took, "s", 3.6)
    yield below("the daemon's CPU for each of these deltas, while all stream", found.cpu, "us", 40)
    yield below("their first delta, from the provider to the caller, p50", found.first, "ms", 50)


def flooded(python: Path) -> Iterator[Row]:
    if os.geteuid() != 0:
        return  # needs another user
    with mounted(python) as ctx:
        found = flood.figures(ctx)
    loops = f"beside {flood.LOOPS} connect loops of another user over {flood.SOCKETS} sockets"
    yield below(f"fs.read {loops}, times slower, over cat's times", found.over, "x", 1.5)
    yield fact("fs.read beside these", found.flood.ours, "ms")
    yield fact("cat beside these", found.flood.cat, "ms")
    over = found.held.ours / found.alone.ours
    yield below("fs.read with the loops held to 25 % of a core, over fs.read without", over, "x", 3)
    yield fact("the CPU of these loops", found.used, "% of a core")


def local_model(python: Path) -> Iterator[Row]:
    with mounted(python, [], engine.CONFIG) as ctx:
        found = engine.figures(ctx)
    ours, direct = found.ours, found.direct
    best = f"its engine driven directly, at its best ({found.best})"
    yield above(f"tokens/s of the local model, over {best}", ours.rate / direct.rate, "x", 0.95)
    yield fact("tokens/s of the local model", ours.rate, "/s")
    yield fact("tokens/s of its engine driven directly", direct.rate, "/s")
    yield above("tokens/s beside 10 fs.read/s, over these without", found.beside / ours.rate, "x", 0.8)
    yield below("p99 of these fs.read, over theirs without an answer", found.slower, "x", 5)
    later = "its first delta, over that of its engine driven directly, of a prompt that both have read"
    yield below(later, found.later, "ms", 5)
    yield fact("its first delta", ours.first, "ms")
    yield fact("first delta of debug/echo by exec, which computes nothing", found.echo, "ms")
    yield fact("first delta of its engine driven directly", direct.first, "ms")
    yield fact("loading it", found.load, "s")
    yield fact("first delta of the first call, which loads it", found.first_call, "s")
    yield fact("its engine's memory, loaded", found.loaded, "MiB")
    yield fact("the daemon's memory grew by, with the engine ended when idle", found.grown, "MiB")


def scale(python: Path) -> Iterator[Row]:
    with listings.tools(python, 100) as ctx:
        few = listings.walked(ctx, 100)
    count = listings.TOOLS
    with listings.tools(python) as ctx:
        many, memory, ours = listings.walked(ctx, count), measure.rss_mib(ctx.pid), listings.program(ctx)
        yield below(f"an entry of {count:,} tools listed with stat, over one of 100", many / few, "x", 1.5)
        yield fact(f"an entry of {count:,} tools listed with stat", many, "µs")
        yield below(f"the daemon's memory with {count:,} tools", memory, "MiB", 150)
        for words in ("ls tool", "plugin list", "complete -- ctx run m"):
            rows = 0 if words == "plugin list" else count
            took = listings.command(ctx, ours, *words.split(), rows=rows).whole
            yield below(f"ctx {words}, with {count:,} tools", took, "s", 1)
        for words, rows in (("find 77", 8), ("find many", 8), ("ls tool --allowed", count)):
            took = min(listings.command(ctx, ours, *words.split(), rows=rows).whole for _ in range(5))
            yield below(f"ctx {words}, with {count:,} tools", took * 1e3, "ms", 60)
        for words, took in listings.inside(ctx).items():
            yield below(f"ctx {words} in an agent's shell, which may run 1,111 of these", took, "ms", 60)


def crowds(python: Path) -> Iterator[Row]:
    for count, whole in ((listings.SOME, 1.0), (listings.MANY, 10.0)):
        with listings.sessions(python, count) as (ctx, place):
            took = listings.command(ctx, listings.program(ctx), "session", "list", rows=count)
            yield below(f"ctx session list of {count:,}, the first after a mount", took.whole, "s", whole)
            yield below(f"its first row, of {count:,}", took.first, "s", 1)
            if count == listings.SOME:
                listings.command(ctx, listings.program(ctx), "log", "-q", "hello", rows=0)  # makes the index
                found = listings.command(ctx, listings.program(ctx), "log", "-q", "hello", rows=0)
                yield below(f"ctx log -q over {count:,} sessions", found.whole, "s", 0.2)
                took = listings.command(ctx, "ls", "-l", str(place), rows=count)
                yield below(f"ls -l of {count:,} sessions", took.whole, "s", 2)
    first, again = listings.long_session(python)
    yield below("ctx send to a session of 1 GiB, whole, after another mount", again, "s", 0.5)
    yield fact("the same for the first time, when its log is read", first, "s")


def plugged(python: Path) -> Iterator[Row]:
    with mounted(python) as ctx:
        for kind, found in plugins.through_the_mount(ctx).items():
            what = f"a tool of a {kind} plugin"
            if kind != "process":
                yield below(f"{what}, over cat", found.over, "x", 2.0)
            yield fact(what, found.took, "ms")
        over = plugins.over_the_script(ctx)
        yield below("a tool of a process plugin, over the script alone", over, "ms", 0.8)
    inside = plugins.in_a_host()
    yield below("a call of a library, in its host", inside.native, "µs", 60)
    yield fact(
        "the same, from a request on a socket of its own to the last answer", inside.native_round, "µs"
    )
    yield below("process JSON: a call, in its host, over the bare child", inside.process_over, "ms", 2)
    many, which = plugins.many(python), f"{plugins.MANY:,} plugins"
    yield below(f"ctx mount with {which} (programs, Python, libraries)", many.again, "s", 3)
    yield fact("the same for the first time, when they are copied and asked", many.first, "s")
    yield below(f"one more, from telling the daemon to its first answer, with {which}", many.applied, "s", 1)
    yield below(f"fs.read with {which}, over fs.read without", many.over, "x", 1.1)


def searched(python: Path) -> Iterator[Row]:
    for what, over, took in search.over_grep():
        yield below(f"fs.search in {search.FILES:,} files, {what}, over grep -r", over, "x", 2.0)
        yield fact(f"fs.search in {search.FILES:,} files, {what}", took, "s")
    yield below("fs.search '(a+)+$' in a line of 1 MB", search.attacked(), "s", 1)


def through(
    found: wasm.Calls, what: str, done: str, first: float | None = None, over: float = 2.5
) -> Iterator[Row]:
    yield below(f"{what}, over cat", found.over, "x", over)
    yield fact(what, found.took, "ms")
    said = f"a user's first call of it, for whom {done}"
    yield below(said, found.first, "ms", first) if first else fact(said, found.first, "ms")


def webassembly(python: Path) -> Iterator[Row]:
    with mounted(python) as ctx:
        yield from through(wasm.through_the_mount(ctx), "a tool in WebAssembly", "it is compiled")
    if (peer := wasm.alone()) is not None:
        yield fact("wasmtime run of a module that says as much", peer, "ms")
    inside = wasm.in_its_host()
    yield below("a call of a module, over one of Python that does nothing", inside.over, "µs", 150)
    yield fact("a call of a module, in its host", inside.took, "µs")


def javascript(python: Path) -> Iterator[Row]:
    with mounted(python) as ctx:
        yield from through(esm.through_the_mount(ctx), "a tool in JavaScript", "Deno is started", 60)
    yield fact("deno run of a module that says as much", esm.alone(), "ms")
    yield below("a call of a module in Deno, in its host", esm.in_its_host(), "µs", 250)


def mcp_servers(python: Path) -> Iterator[Row]:
    with mounted(python) as ctx:
        plain = mcp.through_the_mount(ctx, "plain", mcp.PLAIN)
        official = mcp.through_the_mount(ctx, "official", mcp.OFFICIAL)
        offered, as_it_is = mcp.served(ctx, "plain", mcp.PLAIN)
    what = "a tool of an MCP server over stdio"
    yield from through(plain, what, "the server is started", over=1.7)
    bare = mcp.alone(mcp.PLAIN)
    over = "a user's first call of it, over the same over bare pipes (spawn, initialize, list, call)"
    yield below(over, (plain.first - bare.first) / 1e3, "s", 0.35)
    yield fact("the same over bare pipes", bare.first, "ms")
    yield fact("the server's own time for it", bare.call, "ms")
    for how, serve in (("ctx mcp serve", offered), ("ctx mcp serve --server", as_it_is)):
        yield below(f"{how}, from its start to its answer to initialize", serve.greeted / 1e3, "s", 0.5)
        yield below(f"{how}: what it adds to a call", serve.call - plain.took, "ms", 1)
    peer = mcp.a_client_for_each(mcp.PLAIN)
    yield fact("an MCP client in Python that is started for the call, and its server", peer, "ms")
    yield fact(f"{what}, an official one in Python", official.took, "ms")
    yield fact("that server's own time for it", mcp.alone(mcp.OFFICIAL).call, "ms")


def code_mode(python: Path) -> Iterator[Row]:
    with mounted(python) as ctx:
        said = code.figures(ctx)
    what = f"bytes of the definitions of serve --code, over those of {said.tools} tools"
    yield below(what, 100 * said.shell_definitions / said.definitions, "%", 5)
    yield below(
        "bytes of the definition of an agent with --preset code, over the same",
        100 * said.preset_definition / said.definitions,
        "%",
        5,
    )
    log = said.tasks[0]
    share = 100 * log.shell.results / log.one_by_one.results
    yield below("bytes of results of a task over 1,200 lines, with what is looked up for it", share, "%", 2)


def teams(python: Path) -> Iterator[Row]:
    found = team.figures(python)
    yield below("fs.read of 1 KiB on another machine of a team, over the same here", found.over, "ms", 1.5)
    yield fact("the same, with both machines on this one", found.took, "ms")
    yield below("the same, over `ssh host tool` with a connection that is kept", found.over_ssh, "x", 0.2)
    yield above(f"calls of it from {team.CALLERS} callers", found.rate, "/s", 500)
    yield above("fs.read of 100 MB there as JSONL", found.stream, "MB/s", 50)
    yield below("fs.read of 1 KiB here with a team joined, over one without", found.joined, "x", 1.03)
    lasts = growth.lasting(python)
    yield below("an append to a session's stream with three servers, p50", lasts.append, "ms", 3)
    yield below("a session taken over from a machine that was killed", lasts.takeover, "s", 10)
    yield below("the same, of a machine with one of the servers", lasts.takeover_of_server, "s", 20)
    grown = growth.growth(python)
    yield fact("a server's memory for a connection of a machine", grown.connection, "KiB")
    yield fact(f"its memory for a session, of {growth.SESSIONS:,}, begun anew", grown.session, "B")
    yield fact("its disk for a message of a session, beside the message", grown.disk, "B")


# Parts that share one mount, and parts that make their own. `asking` runs before others leave many sessions.
SHARED: Mapping[str, Callable[[Ctx], Iterable[Row]]] = {
    part.__name__: part
    for part in (asking, calls, stream, metadata, talk, proxied, web.paging, crowded, life)
}
OWN: Mapping[str, Callable[[Path], Iterable[Row]]] = {
    "flood": flooded,
    "thousand": thousand,
    "plugins": plugged,
    "search": searched,
    "wasm": webassembly,
    "esm": javascript,
    "mcp": mcp_servers,
    "code": code_mode,
    "team": teams,
    "local_model": local_model,
    "scale": scale,
    "crowds": crowds,
}
