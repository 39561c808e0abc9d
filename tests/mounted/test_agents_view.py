"""Files and programs that agents can open and run, seen from inside: by the default mount table, which
docs/security.md shows, and by a table of the agent's own."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted import placed as places
from tests.mounted.agents import agent, call, decisions, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Frame

# Paths that the page says can be read, and paths that cannot. A folder is listed, a file is read.
OPEN = [
    "/usr/bin",
    "/etc",
    "/etc/passwd",
    "/proc/1/cmdline",
    "/proc/mounts",
    "/proc/net/tcp",
    "{root}/agent",
    ".",
]
CLOSED = [
    "/root",
    "/home",
    "/tmp",
    "/var",
    "/run",
    "/srv",
    "/mnt",
    "/media",
    "/boot",
    "/sys",
    "/dev",
    "/",
    "/proc/{pid}/environ",
    "/proc/{pid}/maps",
    "/proc/{pid}/fd/0",
    "/proc/{pid}/cwd/.",
    "/proc/{pid}/root/etc",
]
LOOK = """
for place in {}; do
    if [ -d "$place" ]; then ls "$place"; else head -c1 "$place"; fi >/dev/null 2>&1 && echo "$place"
done
true
"""


own, placed = places.own, places.placed


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


def opened(ctx: Ctx, path: str, places: list[str]) -> list[str]:
    """Returns the places that a shell of the agent can list or read."""
    task = script(call("shell.exec", cmd=LOOK.format(" ".join(places))), say("x"))
    with working(ctx, path, task, session="looks") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        (told,) = results(client.until("done", status="ok"))
    return str(told["output"]).split()


def test_what_the_default_shows(placed: Ctx) -> None:
    root, uid = str(placed.root), placed.user or 0
    sessions = "{root}/home/{uid}/agent/looker.d/session/looks/events.jsonl"
    places = [place.format(root=root, pid=placed.pid, uid=uid) for place in (*OPEN, sessions, *CLOSED)]
    there = [one for one in places if one.startswith(("/proc", root)) or one == "." or Path(one).exists()]
    with agent(placed, "looker", "shell.exec") as path:
        found = opened(placed, path, there)
        shadow = opened(placed, path, ["/etc/passwd", "/etc/shadow"])
    assert found == [one for one in places[: len(OPEN) + 1] if one in there]
    assert shadow == ["/etc/passwd", "/etc/shadow"][: 1 if uid else 2]  # as the agent's user may


# The mount view: the objects that an agent sees.

SEEN = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev/null"]


def table(ctx: Ctx, *shown: str) -> str:
    """Returns a table with the needs of a shell, the working directory, and these objects of the mount."""
    paths = [*SEEN, str(ctx.work), *(f"{ctx.root}/{one}" for one in shown)]
    return "".join(f"{path}\t{path}\tro\t-\n" for path in paths)


def allowed(ctx: Ctx, path: str, task: str) -> list[Frame]:
    """Returns the frames of a run whose first call is approved."""
    with working(ctx, path, task) as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        return client.until("done", status="ok")


def test_an_object_that_no_line_shows_is_not_run_from_inside_either(placed: Ctx) -> None:
    # the issue: "neither offered to its model nor run, from inside the view too"
    (placed.work / "file").write_text("shown")
    runner = Path(sysconfig.get_path("scripts")) / "cortexfs-object-runner"
    # The kernel refuses to execute the object. A runner given its path asks the daemon, if it gets so far.
    cmd = f"{placed.root}/tool/fs.read file; {runner} {placed.root}/tool/fs.read file; true"
    task = script(call("shell.exec", cmd=f"({cmd}) 2>&1"), call("fs.read", path="file"), say("x"))
    with agent(placed, "narrow", "shell.exec", "fs.read") as path:
        write(placed, path, "mount", table(placed, "tool/shell.exec"))
        frames = allowed(placed, path, task)
        *nested, inside, own = results(frames)
        assert all(one["is_error"] for one in nested)
        assert "shown" not in inside["output"]
        assert f"no line of its mount table shows {placed.root}/tool/fs.read" in inside["output"]
        assert own["is_error"]
        assert decisions(frames)[-1]["rule"] == f"{path}.d/mount (no line)"
        assert placed.ctx("policy", "explain", path, "fs.read", check=False).returncode == 13
        write(placed, path, "mount", table(placed, "tool"))
        *_, inside, own = results(allowed(placed, path, task))
        assert "shown" in inside["output"]
        assert own["output"] == "shown"


def test_each_table_on_the_way_counts(placed: Ctx) -> None:
    # Of the originals: "hidden→visible never": an object hidden from the starter is hidden from the agent
    (placed.work / "file").write_text("shown")
    asks = script(call("fs.read", path="file"), say("said"))
    with agent(placed, "boss", "agent.run") as path, agent(placed, "mate", "fs.read"):
        policy = placed.text(f"{path}.d/policy")
        write(
            placed,
            path,
            "policy",
            f"{policy}allow boss_t agent:mate start\nallow boss_t tool:fs.read execute\n",
        )
        told, log = {}, "tool/fs.read.d/log"
        for shown in ((), ("agent/mate",), ("agent/mate", "tool/fs.read")):
            write(placed, path, "mount", table(placed, "tool/agent.run", *shown))
            task = script(call("agent.run", name="mate", task=asks), say("x"))
            before = placed.text(log).count("\n")
            told[len(shown)] = results(allowed(placed, path, task))[0]
            assert placed.text(log).count("\n") - before == (len(shown) == 2)
    assert told[0]["is_error"]
    assert told[1]["output"].startswith("said\n[denied to the helper: fs.read: ")
    assert told[2]["output"] == "said"
