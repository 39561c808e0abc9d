"""The start of an MCP server, which may take long, and the home it starts in (abi.md 8.33, 8.34)."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import DESCRIBING, Identity, Plugin
from cortexfs.core.manifest.mcp_server import ERRORS, KIND, McpTarget
from cortexfs.host.call import plugin_state
from cortexfs.host.mcp import home, tools
from cortexfs.host.mcp.home import ServerHome
from cortexfs.host.mcp.keeper import Keeper
from cortexfs.host.mcp.starting import ServerStart
from tests.places import PROJECT
from tests.waiting import until

PROGRAM = PROJECT / "tests" / "mounted" / "mcp_server.py"
# A server that installs itself first: it prints a line, and continues once the file exists.
INSTALLING = """
import os, sys, time
print("it downloads", file=sys.stderr, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("it is there", file=sys.stderr, flush=True)
os.execv(sys.executable, [sys.executable, "-I", *sys.argv[2:]])
"""


class Clock:
    """A clock that advances whenever a program sleeps; `work` is what a server does meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[Clock], None]) -> None:
        self.now = self.worked = 0.0
        self.start = ServerStart()
        self.start.leader = 1
        self._work = work
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(anyio, "sleep", self._sleep)
        monkeypatch.setattr(self.start, "_work", lambda: self.worked)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self._work(self)

    def stalled(self) -> str:
        return anyio.run(self.start.stalled)


def test_a_start_has_as_long_as_it_gets_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 8.34
    def prints(clock: Clock) -> None:
        clock.start.note_output(b"one more\n")
        clock.start.is_over = clock.now > 600

    assert Clock(monkeypatch, prints).stalled() == ""

    def computes(clock: Clock) -> None:
        clock.worked += 0.01
        clock.start.is_over = clock.now > 600

    assert Clock(monkeypatch, computes).stalled() == ""


def test_a_start_that_does_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Clock(monkeypatch, lambda clock: None)
    assert idle.stalled() == "did not complete the handshake, and was idle for 90 s"
    assert idle.now < 91

    def ticks(clock: Clock) -> None:  # a timer does not count as progress
        clock.worked += 0.00001

    assert "was idle for 90 s" in Clock(monkeypatch, ticks).stalled()

    def says_why(clock: Clock) -> None:
        if clock.now < 0.3:
            clock.start.note_output(b"waits for a key\n")

    assert Clock(monkeypatch, says_why).stalled().endswith("90 s; it printed last: waits for a key")

    def greets_nobody(clock: Clock) -> None:  # abi.md 8.52
        if clock.now < 60:
            clock.start.missed(b"Server v1\n")

    banner = Clock(monkeypatch, greets_nobody)
    said = banner.stalled()
    assert banner.now > 140
    assert said.endswith(
        "was idle for 90 s; it printed 239 lines outside of the protocol, the last: Server v1"
    )


def test_a_server_that_runs_elsewhere_greets_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Clock(monkeypatch, lambda clock: None)
    remote.start.leader = 0
    assert remote.stalled() == "did not complete the handshake within 12 s"


def test_a_start_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Clock(monkeypatch, lambda clock: clock.start.note_output(b"."))
    assert busy.stalled().startswith("did not complete the handshake within 900 s")


def test_the_time_of_one_that_waits_for_another_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(clock: Clock) -> None:
        clock.start.waits = clock.now < 2000
        clock.start.is_over = clock.now > 2005

    assert Clock(monkeypatch, waits).stalled() == ""


def installing(place: Path, path: Path) -> Keeper:
    words = ("-c", INSTALLING, str(place / "installed"), str(PROGRAM))
    return Keeper(McpTarget("test", command=(sys.executable, "-I", *words), home=str(path)))


def test_who_stops_waiting_does_not_end_a_start(tmp_path: Path) -> None:
    # abi.md 8.34
    folder = tmp_path / "home"
    folder.mkdir()
    keeper = installing(tmp_path, folder)
    heard: list[str] = []
    try:
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(keeper.link, heard.append)
            until(lambda: [*heard], bool)
            assert heard[0] == "the MCP server test starts: it downloads"
            leader = keeper._open_link()._start.leader
            other = threading.Thread(target=keeper.link, daemon=True)  # a cancelled call leaves its thread
            other.start()
            (tmp_path / "installed").touch()
            link = waiting.result()
            other.join()
        assert link._start.leader == leader  # one start for all of them
        assert (folder / ERRORS).read_text().startswith("it downloads\nit is there\n")
        echo = next(one for one in tools.adapted(keeper) if one.name == "test.echo")
        assert sdk.run(echo, {"text": "x"}, sdk.MemoryRuntime()).output == "x"
    finally:
        (tmp_path / "installed").touch()
        keeper.close()


def test_one_start_at_a_time_in_a_home(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    first, second = installing(tmp_path, folder), installing(tmp_path, folder)
    try:
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(first.link)]
            until(lambda: (folder / ERRORS).exists(), bool)
            waiting.append(threads.submit(second.link))
            until(lambda: second._link is not None and second._link._start.waits, bool)
            assert second._link is not None
            assert second._link._start.leader == 0
            (tmp_path / "installed").touch()
            for one in waiting:
                one.result()
            assert second._link._start.leader
    finally:
        (tmp_path / "installed").touch()
        first.close()
        second.close()


def started(path: Path, ending: Callable[[ServerHome], None]) -> ServerHome:
    async def main() -> ServerHome:
        own = ServerHome(str(path))
        await own.claim()
        ending(own)
        own.leave()
        return own

    return anyio.run(main)


def test_what_a_cut_start_left_is_removed_before_the_next(tmp_path: Path) -> None:
    cache, target = tmp_path / ".npm", tmp_path.parent / "elsewhere"
    target.mkdir()
    (target / "file").touch()

    def fills(own: ServerHome) -> None:
        cache.mkdir(exist_ok=True)
        (cache / "half").touch()
        if not (tmp_path / "link").is_symlink():
            (tmp_path / "link").symlink_to(target)

    def fails(own: ServerHome) -> None:
        fills(own)
        own.note_failure()

    started(tmp_path, fails)  # a start that ended by itself left whole files: perhaps a key was missing
    started(tmp_path, lambda own: None)  # this start was cut
    assert (cache / "half").exists()
    started(tmp_path, lambda own: None)
    assert not cache.exists()
    assert (target / "file").exists()
    assert not (tmp_path / "link").is_symlink()

    def greets(own: ServerHome) -> None:
        fills(own)
        own.note_greeting()

    started(tmp_path, greets)
    started(tmp_path, lambda own: None)  # cut, but these files have worked, and may be data it keeps
    started(tmp_path, lambda own: None)
    assert (cache / "half").exists()


def test_the_files_of_a_home_are_no_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (home.LOCK, ERRORS):
        folder = tmp_path / name.strip(".")
        folder.mkdir()
        (folder / name).symlink_to(victim)
        with pytest.raises(Fault, match="cannot be used") as caught:
            started(folder, lambda own: None)
        assert caught.value.code == "EHOSTDOWN"
    assert victim.read_text() == "precious"


def test_a_pipe_in_a_home_keeps_nobody_waiting(tmp_path: Path) -> None:
    for name in (home.LOCK, ERRORS):
        folder = tmp_path / name.strip(".")
        folder.mkdir()
        os.mkfifo(folder / name)
        with pytest.raises(Fault, match="is no regular file"):
            started(folder, lambda own: None)


def test_what_is_printed_is_bounded_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "MAX_ERRORS", 100)

    def floods(own: ServerHome) -> None:
        for _ in range(10):
            own.keep_output(b"x" * 64)

    started(tmp_path, floods)
    assert (tmp_path / ERRORS).stat().st_size == 100
    assert stat.S_IMODE((tmp_path / ERRORS).stat().st_mode) == 0o600


def test_the_variables_of_a_server(tmp_path: Path) -> None:
    # abi.md 8.33
    own, users = ServerHome(str(tmp_path / "own")), tmp_path / "user"
    users.mkdir()
    caches = {"XDG_CACHE_HOME": f"{own.path}/.cache", "npm_config_cache": f"{own.path}/.npm"}
    caches["npm_config_update_notifier"] = "false"  # it would hide why a server ended
    assert own.variables({"HOME": str(users)}) == {"HOME": str(users), **caches}
    for nowhere in ({"HOME": "/nonexistent"}, {"HOME": "."}, {}):
        assert own.variables(nowhere) == {"HOME": own.path, **caches}
    assert ServerHome("").variables({"HOME": "/nonexistent"}) == {"HOME": "/nonexistent"}


def test_homes_of_agents_are_others(tmp_path: Path) -> None:
    # docs/attacks.md: what an agent's server leaves in its home is run for that agent alone
    kept = tmp_path / "kept"
    (kept / "mcp@test").mkdir(parents=True)
    me = Identity(os.getuid(), os.getgid(), ())
    plugin = Plugin("mcp:test", "1", KIND, "{}", keeps=str(kept / "mcp@test"))
    agents = [replace(me, label=label, view=()) for label in ("agent/a", "agent/b", "home/1/agent/a")]
    places = set()
    for identity in (me, *agents):
        plugin_state.prepare(plugin, identity, str(kept))
        own = plugin_state.of(plugin, identity)
        ((path, _),) = plugin_state.view(own, identity)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) & 0o022 == 0
        places.add(path)
    assert len(places) == 4
    assert not any(one.startswith(f"{other}/") for one in places for other in places)
    other = replace(plugin, kind="esm")
    assert plugin_state.of(other, agents[0]) == other  # the homes of other plugins hold no programs


def test_a_home_is_its_users_alone(tmp_path: Path) -> None:
    # abi.md 8.33
    kept = tmp_path / "kept"
    (kept / "mcp@test").mkdir(parents=True)
    me = Identity(os.getuid(), os.getgid(), ())
    plugin = Plugin("mcp:test", "1", KIND, "{}", keeps=str(kept / "mcp@test"))
    plugin_state.prepare(plugin, me, str(kept))
    assert stat.S_IMODE((kept / "mcp@test" / str(me.uid)).stat().st_mode) == 0o700
    assert plugin_state.view(plugin, me) == ((str(kept / "mcp@test" / str(me.uid)), "rwx"),)
    if me.uid == 0:
        plugin_state.prepare(plugin, DESCRIBING, str(kept))
        assert (kept / "mcp@test" / "65534").stat().st_uid == DESCRIBING.uid
    with pytest.raises(Fault, match="cannot keep its files"):
        plugin_state.prepare(plugin, me, str(tmp_path))
