"""Faults of hosts, daemon and callers: no call hangs, no answer is lost, no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.bench.measure import rss_mib
from tests.mounted.ctx_mount import Answer, Ctx, alive, mounted, wait_gone
from tests.waiting import PATIENCE, SOAK, until


def descendants(pid: int) -> set[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: set[int] = set()
    queue = [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def start(ctx: Ctx, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [ctx.tool(name), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=ctx.environ,
        cwd=ctx.work,
    )


def begun(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert b'"start"' in process.stdout.readline()


def asleep(process: subprocess.Popen[bytes]) -> None:
    """Wait until the tool bad.sleep is asleep."""
    begun(process)
    assert process.stdout is not None
    assert b"asleep" in process.stdout.readline()


def finish(process: subprocess.Popen[bytes]) -> Answer:
    out, _ = process.communicate(timeout=PATIENCE)
    return Answer(subprocess.CompletedProcess([], process.returncode, out, b""))


def test_a_host_killed_in_a_call(fresh: Ctx) -> None:
    pid = json.loads(fresh.call("show.who", input=b"").output)["pid"]
    process = start(fresh, "bad.sleep")
    asleep(process)
    os.kill(pid, signal.SIGKILL)
    answer = finish(process)
    assert (answer.status, answer.code) == (70, "EPROTO")
    assert "SIGKILL" in answer.message
    assert fresh.call("show.types", "x").status == 0  # the host was replaced


def test_a_fork_bomb_is_ended(python: Path) -> None:
    with mounted(python, ["faulty"], "[limits]\nprocesses = 64\n") as ctx:
        answer = ctx.call("bad.fork", input=b"")
        assert answer.status in (1, 70), answer
        after = ctx.call("text.word_count", "a")
        assert after.output == "1 words", after
        assert ctx.call("show.types", "x").status == 0  # the plugin of the fork bomb has a new host


def test_the_daemon_killed_in_a_call(fresh: Ctx) -> None:
    # issue: "runner exits 69 in under 1 s with a clear line, next `ctx mount` recovers"
    process = start(fresh, "bad.sleep")
    asleep(process)
    pid = fresh.pid
    hosts = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 69
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines[-2:]] == ["error", "done"]
    assert lines[-1]["code"] == "EHOSTDOWN"
    assert "run" in lines[-1]
    for host in hosts:
        assert wait_gone(host), "a host outlived the daemon"
    # abi.md 4.27
    dead = fresh.run(["sh", "-c", f"{fresh.tool('fs.read')} x"])
    assert dead.returncode == 126
    fresh.mount()  # abi.md 8.9
    assert fresh.call("text.word_count", "a b").output == "2 words"


def _kill_in_mid_call(ctx: Ctx, count: int, *words: str) -> None:
    wave = [start(ctx, *words) for _ in range(count)]
    for process in wave:
        begun(process)
        process.kill()
    for process in wave:
        process.communicate(timeout=PATIENCE)


def test_runners_killed_in_mid_call_leave_nothing(fresh: Ctx) -> None:
    # issue: "500 runners killed in mid-call leave no process, no fd, no memory growth"
    marker = "sleep 98765"
    _kill_in_mid_call(fresh, 25, "shell.exec", marker)
    _settled(fresh, marker)
    files, memory = len(os.listdir(f"/proc/{fresh.pid}/fd")), rss_mib(fresh.pid)
    for _ in range(19 if SOAK else 3):
        _kill_in_mid_call(fresh, 25, "shell.exec", marker)
    _settled(fresh, marker)
    until(lambda: os.listdir(f"/proc/{fresh.pid}/fd"), lambda left: len(left) <= files)
    assert rss_mib(fresh.pid) < memory + 4
    assert fresh.call("shell.exec", "true").status == 0


def _settled(ctx: Ctx, marker: str) -> None:
    """Wait, with a deadline, until no run is active and no child is left."""
    for pid in descendants(ctx.pid):
        if marker.encode() in _command(pid):
            assert wait_gone(pid), "a child of a killed call stays behind"
    ctx.at_rest()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def test_a_stuck_tool_does_not_stop_its_neighbours(fresh: Ctx) -> None:
    neighbour = start(fresh, "bad.sleep", "--seconds", "2.5")
    asleep(neighbour)
    answer = fresh.call("bad.hang", input=b"")
    assert answer.code == "ETIMEDOUT"
    assert finish(neighbour).output == "rested"
    assert fresh.call("show.types", "x").status == 0


def test_shutdown_ends_active_runs_and_leaves_nothing(fresh: Ctx) -> None:
    # abi.md 8.10
    process = start(fresh, "shell.exec", "sleep 1000")
    begun(process)
    pid, family = fresh.pid, descendants(fresh.pid)
    fresh.ctx("umount", str(fresh.root))
    answer = finish(process)
    assert answer.status == 69
    assert not alive(pid)
    assert all(wait_gone(member) for member in family)
    assert not os.path.ismount(fresh.root)


def test_umount_lazily_by_hand_ends_the_daemon(fresh: Ctx) -> None:
    # abi.md 8.11
    pid = fresh.pid
    subprocess.run(["umount", "-l", str(fresh.root)], check=True)
    assert wait_gone(pid)


def test_a_plugin_that_does_not_load_is_reported(python: Path) -> None:
    # issue: "a plugin that fails to import is reported in status and `ctx doctor`, and everything else works"
    with mounted(python, ["unloadable", "faulty"]) as ctx:
        assert "unloadable" in (ctx.root / "status").read_text()
        assert ctx.call("show.types", "x").status == 0
        assert "unloadable" in ctx.ctx("doctor", check=False).stdout


def test_enabling_and_disabling_a_plugin_changes_a_running_mount(python: Path) -> None:
    # abi.md 8.7
    with mounted(python) as ctx:
        assert not os.path.exists(ctx.tool("show.types"))
        ctx.ctx("plugin", "enable", "faulty")
        assert ctx.call("show.types", "x").status == 0
        ctx.ctx("plugin", "disable", "faulty")
        assert not os.path.exists(ctx.tool("show.types"))
