"""What an agent whose mount table is empty can open, seen from inside (docs/security.md has the table)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, say, script, working
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted

# Of the page: what it says can be read, and what it says cannot. A folder is listed, a file read.
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


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


def opened(ctx: Ctx, path: str, uid: int | None, places: list[str]) -> list[str]:
    """Which of them a shell of the agent's can list or read."""
    task = script(call("shell.exec", cmd=LOOK.format(" ".join(places))), say("x"))
    with working(ctx, path, task, uid, session="looks") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        (told,) = results(client.until("done", status="ok"))
    return str(told["output"]).split()


@pytest.mark.parametrize("uid", [None, NOBODY])
def test_what_the_default_shows(ctx: Ctx, uid: int | None) -> None:
    sessions = "{root}/home/{uid}/agent/looker.d/session/looks/events.jsonl"
    places = [place.format(root=ctx.root, pid=ctx.pid, uid=uid or 0) for place in (*OPEN, sessions, *CLOSED)]
    there = [place for place in places if place.startswith("/proc") or place == "." or Path(place).exists()]
    with agent(ctx, "looker", "shell.exec") as path:
        found = opened(ctx, path, uid, there)
        shadow = opened(ctx, path, uid, ["/etc/passwd", "/etc/shadow"])
    assert found == [one for one in places[: len(OPEN) + 1] if one in there]
    assert shadow == ["/etc/passwd", "/etc/shadow"][: 1 if uid else 2]  # as its user may
