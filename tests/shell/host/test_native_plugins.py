"""host/native/library.py: libraries, friendly and hostile, in real hosts; built by the system's compiler."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from cortexfs.core import frames, hostcalls
from cortexfs.host.confine import limits
from cortexfs.plugins import catalog as catalogs
from cortexfs.plugins.catalog import Catalog
from tests.places import PROJECT
from tests.shell import declaring
from tests.shell.calling import Answer, World, serving
from tests.shell.declaring import build
from tests.waiting import awaited

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
(EXAMPLE,) = re.findall(r"^```c\n(#include.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FIXTURE = declaring.NATIVE / "fixture.c"


@pytest.fixture(scope="session")
def public() -> Iterator[Path]:
    """A directory that everybody may read: under root, plugins describe their libraries as nobody."""
    place = Path(tempfile.mkdtemp(prefix="cortexfs-native-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def fixture(public: Path) -> hostcalls.Plugin:
    return declaring.library(build(public, FIXTURE, "-Wall", "-Wextra", name="fixture.so"))


def made(public: Path, *flags: str, **names: str) -> hostcalls.Plugin:
    """Build a library with these flags."""
    name = f"lib{len(list(public.iterdir()))}.so"
    return declaring.library(build(public, FIXTURE, *flags, name=name), **names)


async def described(place: Path, plugin: hostcalls.Plugin) -> tuple[Catalog, list[str]]:
    async with serving(place) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        mine = [o.name for o in registry if o.plugin == plugin]
        return catalog, mine


async def call(world: World, plugin: hostcalls.Plugin, tool: str, input: bytes = b"{}") -> Answer:
    return await world.call(world.inode(tool, plugin), input.decode())


# -- the sequence


async def test_a_library_is_asked_what_it_is(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    # abi.md 11.16
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([fixture])
        assert catalog.broken == {}
        echo, counters = registry.get("tool", "echo"), registry.get("tool", "counters")
        assert echo is not None
        assert counters is not None
        assert (echo.description, echo.timeout, counters.timeout) == ("A tool", 7, None)
        assert msgspec.json.decode(echo.schema) == {"type": "object"}
        has = echo.capabilities
        assert (has.emits_progress, has.emits_observer_text, has.background_safe) == (True, False, True)
        assert has.effects == (hostcalls.Effect("write_file", "reversible", "never", "supported", "/x"),)


BROKEN = [
    (("-DNO_INIT",), "does not export required stable native symbol cortex_plugin_init"),
    (("-DSTATUS=-2",), "rejected native ABI initialization with status -2"),
    (("-DSTATUS=7",), "rejected native ABI initialization with status 7"),
    (("-DVERSION=2",), "initialized native ABI version 2 but daemon requires 1"),
    (("-DVERSION=0",), "initialized native ABI version 0 but daemon requires 1"),
    (("-DSTATELESS",), "returned a null native plugin state"),
    *(
        ((f"-DMISSING={name}",), f"native ABI table is missing {name}")
        for name in (
            "plugin_info", "tool_count", "tool_descriptor", "tool_execute", "plugin_drop", "buffer_free"
        )
    ),
    (("-DWILD=tool_execute",), "native ABI table has no code at tool_execute"),
    (("-DLARGER=0",), "wrote beyond the native ABI table"),
    (("-DLARGER=3",), "wrote beyond the native ABI table"),
    (("-DPACKED",), "native ABI table has no code at "),
    (("-DSHIFTED",), "initialized native ABI version 64 but daemon requires 1"),
    (("-DINFO=\"\"",), "returned invalid plugin info JSON"),
    (("-DINFO=\"{}\"",), "returned invalid plugin info JSON"),
    (("-DINFO=\"\\xff\"",), "returned invalid plugin info JSON"),
    (("-DCOUNT=SIZE_MAX",), f"has {(1 << 64) - 1} tools, over the limit of 10000"),
    (("-DDESCRIPTOR=\"\\xff\"",), "returned an invalid descriptor for tool index 0"),
    (("-DDESCRIPTOR=\"{}\"",), "returned an invalid descriptor for tool index 0"),
    (("-DDESCRIPTOR=\"[[[[[[\"",), "returned an invalid descriptor for tool index 0"),
    (("-DSCHEMA=\"7\"",), "returned an invalid descriptor for tool index 0"),
    (("-DEFFECT=\"{}\"",), "returned an invalid descriptor for tool index 0"),
    (("-DCLAIM=(1<<30)",), "returned 1073741824 bytes from tool_descriptor, over the limit of 1048576"),
    (("-DCLAIM=SIZE_MAX",), "over the limit of 1048576"),
    (("-DCRASH_IN_INIT",), "it did not describe its tools; its process was killed by SIG"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "why"), BROKEN, ids=[flags[0] for flags, _ in BROKEN])
async def test_a_library_that_breaks_the_abi(
    tmp_path: Path, public: Path, flags: tuple[str, ...], why: str
) -> None:
    plugin = made(public, *flags)
    catalog, mine = await described(tmp_path, plugin)
    assert mine == []
    assert set(catalog.broken) == {"fixture"}
    assert why in catalog.broken["fixture"]
    assert not re.search(r"Error: ", catalog.broken["fixture"])  # no name that only Python programmers know


async def test_a_library_that_hangs_when_it_is_opened(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "DESCRIBE_SECONDS", 0.5)
    catalog, _ = await described(tmp_path, made(public, "-DHANG_IN_INIT"))
    assert catalog.broken["fixture"] == "it did not describe its tools within 0.5 s"


async def test_what_is_no_library(tmp_path: Path, public: Path) -> None:
    text = public / "text.so"
    text.write_text("not ELF")
    catalog, _ = await described(tmp_path, declaring.library(str(text)))
    assert f"has a library that does not load: {text}: " in catalog.broken["fixture"]


async def test_a_library_that_was_replaced_after_it_was_looked_at(tmp_path: Path, public: Path) -> None:
    plugin = made(public)
    path = msgspec.json.decode(plugin.target)["path"]
    other = build(public, FIXTURE, '-DNAME="other"', name="other.so")
    os.replace(other, path)
    assert declaring.library(path) != plugin  # so the pool's next host loads the new code
    catalog, _ = await described(tmp_path, plugin)
    assert "has a new library file" in catalog.broken["fixture"]


async def test_another_name_is_a_line_of_the_log(
    tmp_path: Path, public: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # abi.md 11.16
    plugin = made(public, '-DNAME="my-plugin"', name="native-hello")
    with caplog.at_level(logging.INFO, "cortexfs"):
        async with serving(tmp_path) as world:
            catalog = Catalog(world.pool)
            registry = await catalog.registry([plugin])
            assert registry.get("tool", "echo") is not None
            told = "plugin 'native-hello': its name is 'my-plugin' in its code"
            await awaited(lambda: told in caplog.text)


# -- calls


async def test_calls(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    # abi.md 11.16
    async with serving(tmp_path) as world:
        for tool, expected in {
            "soft": ("EIO", "so so", 1),
            # abi.md 4.29
            "invalid": ("EINVAL", "n", 2),
            "failed": ("EIO", "x", 1),
            "empty": ("EPROTO", "native tool 'empty' returned invalid result JSON: ", 70),
            "garbage": ("EPROTO", "native tool 'garbage' returned invalid result JSON: ", 70),
            "latin": ("EPROTO", "native tool 'latin' returned invalid result JSON: ", 70),
            "partial": ("EPROTO", "native tool 'partial' returned invalid result JSON: ", 70),
            "wrong": ("EPROTO", "native tool 'wrong' returned invalid result JSON: ", 70),
            "huge": ("EPROTO", "returned 1073741824 bytes from tool_execute, over the limit of 67108864", 70),
            "vast": ("EPROTO", "bytes from tool_execute, over the limit of 67108864", 70),
            "null": ("EPROTO", "native tool 'null' returned invalid result JSON: ", 70),
        }.items():
            answer = await call(world, fixture, tool)
            assert (answer.code, answer.status) == (expected[0], expected[2]), tool
            assert expected[1] in answer.message
        # abi.md 11.16
        assert (await call(world, fixture, "counters")).output == "1 0"
        assert len(world.pool.by_pid) == 1


async def test_text_and_media(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        text = '{"a":"\\u0000\\"\\\\ü\U0001f600\\u007f"}'
        answer = await call(world, fixture, "echo", text.encode())
        assert msgspec.json.decode(answer.output) == msgspec.json.decode(text)
        answer = await call(world, fixture, "media")
        attached = [frame.attachment for frame in answer.frames if isinstance(frame, frames.Media)]
        assert attached == [
            {"media_type": "image", "mime_type": "image/png", "url": "/a.png", "caption": None, "size": 9}
        ]
        assert answer.output == "seen"


async def test_the_invocation(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        told = msgspec.json.decode((await call(world, fixture, "invocation")).output)
        assert told.keys() == {"tool_name", "session_id", "actor", "source", "execution_scope"}
        assert (told["tool_name"], told["execution_scope"]) == ("invocation", "foreground")


async def test_large_values_both_ways(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        assert (await call(world, fixture, "big")).output == "x" * (16 << 20)
        text = "y" * (15 << 20)
        answer = await call(world, fixture, "echo", msgspec.json.encode({"a": text}))
        assert msgspec.json.decode(answer.output) == {"a": text}
        assert (await call(world, fixture, "counters")).output == "1 0"


async def test_the_input_is_validated_before_the_library_sees_it(tmp_path: Path, public: Path) -> None:
    schema = '{\\"type\\":\\"object\\",\\"required\\":[\\"n\\"]}'
    plugin = made(public, f'-DSCHEMA="{schema}"')
    async with serving(tmp_path) as world:
        assert (await call(world, plugin, "echo")).code == "EINVAL"
        assert (await call(world, plugin, "echo", b'{"n":1}')).output == '{"n":1}'


async def test_calls_are_side_by_side_in_one_state(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    # issue 5: "concurrent calls; one state per library and caller identity"
    async with serving(tmp_path) as world:
        inode = world.inode("meet", fixture)
        met: list[str] = []

        async def meet() -> None:
            met.append((await world.call(inode, "{}")).output)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(meet)
        assert met == ["met"] * 4
        for number in range(1, 4):
            assert (await call(world, fixture, "counters")).output == f"{number} 0"


async def test_a_call_stands_where_its_caller_does(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    # abi.md 4.35
    async with serving(tmp_path) as world:
        answer = await world.call(world.inode("where", fixture), "{}", umask=0o27)
        assert answer.output.split(" ", 1)[1] == f"{os.getuid()} 27 {os.getcwd()}"
        assert int(answer.output.split()[0]) in world.pool.by_pid


@pytest.mark.parametrize(
    ("tool", "how"),
    [
        ("exit", "exited with status 3"),
        ("abort", "was killed by SIGABRT during the call; it printed last: out of luck"),
        ("crash", "was killed by SIGSEGV"),
        ("overflow", "was killed by SIGSEGV"),
        ("lie", "was killed by SIGSEGV"),
        ("close", ""),
    ],
)
async def test_a_crash_ends_its_host_and_nothing_else(
    tmp_path: Path, fixture: hostcalls.Plugin, tool: str, how: str
) -> None:
    # abi.md 4.58
    async with serving(tmp_path) as world:
        other = await world.pid()
        before = (await call(world, fixture, "where")).output.split()[0]
        answer = await call(world, fixture, tool)
        assert (answer.code, answer.status) == ("EPROTO", 70)
        assert how in answer.message
        assert (await call(world, fixture, "where")).output.split()[0] != before
        assert await world.pid() == other


async def test_who_shared_a_host_is_told_that_another_may_have_ended_it(
    tmp_path: Path, fixture: hostcalls.Plugin
) -> None:
    # abi.md 4.60
    told = []
    async with serving(tmp_path) as world:

        async def hang() -> None:
            told.append((await call(world, fixture, "hang")).message)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(hang)
            assert (await call(world, fixture, "meet")).output == "met"  # returns once all calls are in it
            told.append((await call(world, fixture, "abort")).message)
    shared = "was killed by SIGABRT during the call, or during another of its 4 calls; it printed last"
    assert [shared in message for message in told] == [True] * 4, told


async def test_a_hang_ends_at_its_timeout(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        before = (await call(world, fixture, "where")).output.split()[0]
        answer = await world.call(world.inode("hang", fixture, timeout=1), "{}")
        assert (answer.code, answer.status) == ("ETIMEDOUT", 1)
        assert (await call(world, fixture, "where")).output.split()[0] != before
        await awaited(lambda: not os.path.exists(f"/proc/{before}"))


async def test_a_hang_can_be_cancelled(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        pid = int((await call(world, fixture, "where")).output.split()[0])
        async with world.begun(world.inode("hang", fixture), "{}") as runner:
            await runner.until(b"start")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        await awaited(lambda: not os.path.exists(f"/proc/{pid}"))


async def test_a_flood_on_standard_output_is_in_nobodys_answer(
    tmp_path: Path, fixture: hostcalls.Plugin
) -> None:
    async with serving(tmp_path) as world:
        assert (await call(world, fixture, "flood")).output == "flooded"


async def test_memory_is_limited(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        world.pool._limits = hostcalls.HostLimits(256 << 20, 40, 256)
        assert (await call(world, fixture, "eat")).status in (0, 70)


async def test_a_fork_bomb_goes_with_its_host(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    if os.geteuid() == 0 and not any(os.access(place, os.W_OK) for _, place in limits.hierarchies()):
        pytest.skip("no cgroups here")  # nothing would limit root's processes
    async with serving(tmp_path) as world:
        world.pool._limits = hostcalls.HostLimits(256 << 20, 40, 256)
        async with world.begun(world.inode("bomb", fixture), "{}") as runner:
            await runner.until(b"start")
            await awaited(lambda: any(map(_has_child, world.pool.by_pid)))  # until then it could be cancelled
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        await awaited(lambda: not world.pool.by_pid)
        assert (await call(world, fixture, "echo")).output == "{}"


async def test_calls_that_are_cancelled_leak_no_buffer(tmp_path: Path, fixture: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        inode = world.inode("echo", fixture)
        pid = (await call(world, fixture, "where")).output.split()[0]
        for step in range(100):
            await world.cancelled(inode, "{}", turns=step)
        assert (await call(world, fixture, "where")).output.split()[0] == pid
        assert (await call(world, fixture, "counters")).output == "1 0"


def _has_child(pid: int) -> bool:
    return any(seen and seen[0] == pid for seen in map(limits._parent_and_state, limits.pids()))


# -- the header


@pytest.mark.parametrize(("compiler", "standard", "suffix"), [("cc", "c11", "c"), ("c++", "c++11", "cc")])
async def test_the_header(tmp_path: Path, compiler: str, standard: str, suffix: str) -> None:
    """The header compiles without a warning in both languages, and its helpers fit the ABI."""
    source = tmp_path / f"plugin.{suffix}"
    source.write_text(EXAMPLE)
    made = tmp_path / "lib.so"
    flags = "-Wall -Wextra -Wconversion -Wshadow -pedantic -Werror -shared -fPIC -fvisibility=hidden"
    includes = ["-I", str(declaring.INCLUDE), f"-std={standard}"]
    await trio.run_process([compiler, *flags.split(), *includes, "-o", made, source])
    async with serving(tmp_path) as world:
        plugin = declaring.library(str(made), name="load", version="0.1.0")
        answer = await call(world, plugin, "load.average")
        assert (answer.code, answer.status) == (None, 0)
        assert re.fullmatch(r"\d+\.\d\d", answer.output)
