"""Limits of one client: "memory per client is bounded whatever it does: not reading, sending without end,
opening thousands of connections (documented limits, then EAGAIN frames or refused accepts)" (abi.md 5)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.bench.measure import rss_mib
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.talking import (
    MAX_LINE,
    SCRIPT,
    Closed,
    Talk,
    ids,
    line,
    one_run,
    said,
    talk,
    text,
    types,
)
from tests.waiting import PATIENCE

WAITING = 16  # docs/protocol.md, "messages that wait in a session"
HELD = 64 << 20  # bytes of a user's messages without an answer
HANG = json.dumps([{"delta": "begun"}, {"hang": True}])


def test_messages_that_wait_are_bounded(ctx: Ctx) -> None:
    # docs/protocol.md: "EAGAIN says that too many do"
    with talk(ctx, SCRIPT) as client:
        client.send(HANG, scope="temp")
        run = client.until("delta")[-1]["run"]
        for number in range(WAITING):
            client.send("[]", scope="temp", id=f"w{number}")
        client.send("[]", scope="temp", id="too much")
        error = client.error()
        assert (error["code"], error["request"]) == ("EAGAIN", "too much")
        assert "send again" in error["message"]
        client.ask("cancel", id=run)
        frames = [frame for _ in range(WAITING + 1) for frame in client.until("done")]
        assert types(frames).count("done") == WAITING + 1
        client.send("[]", scope="temp", id="too much")  # the first was refused, so this is no retry
        assert client.until("done")[-1]["status"] == "ok"


def test_messages_of_a_user_are_bounded(ctx: Ctx) -> None:
    # abi.md 5.25; of others nothing is held up
    big = HANG + " " * (1_000_000 - len(HANG))
    before = rss_mib(ctx.pid)
    for _ in range(2):  # the daemon frees the messages when their connection ends
        with talk(ctx, SCRIPT, uid=NOBODY) as client:
            taken = 0
            refused = None
            while not refused:
                client.send(big, scope="temp", session=f"s{taken // (WAITING + 1)}", id=str(taken))
                client.ask("ping")
                answers = client.until("pong")
                refused = next((frame for frame in answers if frame["type"] == "error"), None)
                taken += 1
                assert taken * len(big) <= HELD + len(big), "a user may have us keep what he likes"
            assert refused["code"] == "EAGAIN"
            assert "uid 65534" in refused["message"]
            assert (taken + 1) * len(big) > HELD
            assert rss_mib(ctx.pid) < before + 3 * HELD / (1 << 20)
            one_run(said(ctx, "root has room"))
            client.ask("cancel", id="0")  # an answered message is freed
            client.until("done", status="cancelled")
            client.send(big, scope="temp", session="more", id="more")
            assert client.until("start", request="more")


def test_a_line_without_end(ctx: Ctx) -> None:
    # abi.md 5.11
    with talk(ctx) as client:
        client.raw(b"x" * MAX_LINE)
        assert client.error()["code"] == "EMSGSIZE"
        before = rss_mib(ctx.pid)
        for _ in range(100):
            client.raw(b"x" * MAX_LINE)
        assert rss_mib(ctx.pid) < before + 8
        client.raw(b"\n")
        assert client.is_alive()


def test_many_lines_that_never_end(ctx: Ctx) -> None:
    # abi.md 5.25: an unfinished line is at most a line
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(talk(ctx)) for _ in range(20)]
        before = rss_mib(ctx.pid)
        for client in clients:
            client.raw(b"x" * (MAX_LINE - 1))
        one_run(said(ctx, "neighbour"))
        assert rss_mib(ctx.pid) < before + 2 * len(clients) + 8
        for client in clients:
            client.raw(b"\n")
            assert client.error()["code"] == "EINVAL"


def test_one_that_asks_without_end_and_does_not_read(ctx: Ctx) -> None:
    # abi.md 5.25: what is not read is not said
    asked = line("ping", id="x" * 200)
    with talk(ctx) as client:
        before = rss_mib(ctx.pid)
        client.socket.settimeout(0.5)
        count = 0
        with contextlib.suppress(TimeoutError):
            while count < 200_000:
                client.raw(asked)  # sends the whole line, or waits
                count += 1
        assert count < 200_000, "it was heard for ever"
        assert rss_mib(ctx.pid) < before + 8
        one_run(said(ctx, "neighbour"))
        client.socket.settimeout(PATIENCE)
        for _ in range(count):
            assert client.frame()["type"] == "pong"


def test_one_that_follows_and_does_not_read(ctx: Ctx) -> None:
    # abi.md 5.15; the log is the buffer
    steps = json.dumps([{"burst": 200_000, "size": 64}])
    with talk(ctx, SCRIPT) as slow, talk(ctx, SCRIPT) as quick:
        before = rss_mib(ctx.pid)
        for client in (slow, quick):
            client.send(steps, session="slow", id="m")
        frames = quick.until("done")
        assert rss_mib(ctx.pid) < before + 24
        assert slow.until("done") == frames
    assert ids(frames) == list(range(1, 200_005))
    assert len(text(frames)) == 200_000 * 64


def test_connections_of_a_user_are_bounded(python: Path) -> None:
    # abi.md 5.25
    with mounted(python, [], "[limits]\nconnections = 40\n") as ctx, contextlib.ExitStack() as stack:
        for _ in range(10):  # one user has a quarter of them
            client = stack.enter_context(talk(ctx, uid=NOBODY))
            assert client.is_alive()
        for _ in range(3):
            with talk(ctx, uid=NOBODY) as more, pytest.raises((Closed, ConnectionError)):
                more.is_alive()
        one_run(said(ctx, "root has his own share"))
        assert client.is_alive()
        client.close()
        with talk(ctx, uid=NOBODY) as next_:
            frames = []
            with contextlib.suppress(Closed, ConnectionError):
                frames.append(next_.is_alive())
            assert frames or _comes_in(ctx)


def _comes_in(ctx: Ctx) -> bool:
    """Returns True if there is room soon, as a client cannot see when the daemon has noticed a close."""
    for _ in range(1000):
        with talk(ctx, uid=NOBODY) as client, contextlib.suppress(Closed, ConnectionError):
            return client.is_alive()
    return False


_HOLDS = """
import socket, subprocess, sys
root, count = sys.argv[1], int(sys.argv[2])
runs = [subprocess.Popen([root + "/tool/fs.write"], stdin=-1, stdout=-3, stderr=-3) for _ in range(count)]
clients = [socket.socket(socket.AF_UNIX) for _ in range(count)]
for number, client in enumerate(clients):
    try:
        client.connect(root + "/model/debug/echo.sock")
        client.sendall(b'{"op":"send","session":"s%d","input":"hello"}\\n' % number)
    except OSError:
        pass
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_users_with_all_their_connections_leave_descriptors_for_others(python: Path) -> None:
    # docs/attacks.md: three quarters of the connections, and a session for each
    most = 1024
    with mounted(python) as ctx, contextlib.ExitStack() as stack:
        ctx.umount()
        words = [str(python), "-I", "-m", "cortexfs.cli.main", "mount", str(ctx.root)]
        ctx.run(["prlimit", f"--nofile={most}:{most}", *words], check=True)
        held = [
            stack.enter_context(
                subprocess.Popen(
                    [python, "-I", "-c", _HOLDS, str(ctx.root), str(most // 16)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    user=uid,
                    cwd="/",
                )
            )
            for uid in (3001, 3002, 3003)
        ]
        try:
            for each in held:
                assert each.stdout
                assert each.stdout.readline() == b"held\n"
            for _ in range(3):
                assert ctx.call("fs.list", "--path", "/", uid=NOBODY).status == 0
            assert _files(ctx) < most - 64
            log = (ctx.state / "daemon.log").read_text()
            assert "limits.connections is 64 here, as 4096 would need 18944 descriptors" in log
        finally:
            for each in held:
                each.communicate()


def test_thousands_of_connections_come_and_go(ctx: Ctx) -> None:
    # abi.md 5.25
    one_run(said(ctx, "warm"))
    files, before = _files(ctx), rss_mib(ctx.pid)
    threads = [threading.Thread(target=_visit, args=(ctx, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one_run(said(ctx, "still there"))
    assert rss_mib(ctx.pid) < before + 8
    for _ in range(1000):
        if _files(ctx) <= files + 2:
            break
        one_run(said(ctx, "still there"))
    assert _files(ctx) <= files + 2


def _visit(ctx: Ctx, number: int) -> None:
    for turn in range(150):
        with contextlib.suppress(ConnectionError), contextlib.closing(Talk(ctx.root / SCRIPT)) as client:
            match turn % 4:
                case 0:
                    client.send(HANG, scope="temp")
                case 1:
                    client.send("[]", scope="temp")
                    client.until("done")
                case 2:
                    client.raw(b'{"op":"ping"')
                case _:
                    pass


def _files(ctx: Ctx) -> int:
    return len(os.listdir(f"/proc/{ctx.pid}/fd"))


def test_sessions_that_a_connection_asks_for_are_bounded(ctx: Ctx) -> None:
    # docs/protocol.md, "sessions that a connection has asked for": 1024
    with talk(ctx) as client:
        for number in range(1024):
            client.ask("resume", session=f"many{number}")
        assert client.is_alive()
        client.ask("resume", session="one-more", id="r")
        error = client.error()
        assert (error["code"], error["request"]) == ("EAGAIN", "r")
        client.ask("resume", session="many7")
        assert client.is_alive()


def test_sessions_of_a_user_are_bounded_by_the_configuration(python: Path) -> None:
    # docs/config.md: `sessions.user_sessions`; `rm -r` of one makes room for another
    with mounted(python, config="[sessions]\nuser_sessions = 2\n") as ctx, talk(ctx) as client:
        for name in ("one", "two"):
            client.send("x", session=name)
            assert client.until("done")[-1]["status"] == "ok"
        client.send("x", session="three")
        error = client.error()
        assert error["code"] == "EDQUOT"
        assert "ctx session rm" in error["message"]
        shutil.rmtree(ctx.root / f"home/{os.getuid()}/model/debug/echo.d/session/one")
        client.send("x", session="three")
        assert client.until("done")[-1]["status"] == "ok"
