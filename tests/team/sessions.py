"""Sessions of a team for tests: the logs that machines have, and the commands of their users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.mounted.talking import ECHO
from tests.team.machines import Machine
from tests.waiting import until

MAP = "root@* = root\nnobody@* = nobody\n"


def log_of(machine: Machine, session: str, path: str = ECHO, uid: int = 0) -> Path:
    return machine.ctx.root / f"home/{uid}/{path[:-5]}.d/session/{session}/events.jsonl"


def whole(machine: Machine, session: str, path: str = ECHO) -> bytes:
    """Returns the machine's copy of the log, empty if there is none."""
    try:
        return log_of(machine, session, path).read_bytes()
    except FileNotFoundError:
        return b""


def same(session: str, *machines: Machine, path: str = ECHO) -> bytes:
    """Wait until all machines have the same log; returns it."""
    found = until(
        lambda: {whole(each, session, path) for each in machines},
        lambda seen: len(seen) == 1 and b"" not in seen,
    )
    return found.pop()


def events(log: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def send(machine: Machine, session: str, said: str, check: bool = True) -> str:
    words = ("send", ECHO[:-5], "--session", session, "--output", "text", said)
    done = machine.ctx.ctx(*words, check=check)
    return done.stdout if check else done.stderr


def take(machine: Machine, session: str, path: str = ECHO, *words: str, check: bool = True) -> str:
    return machine.ctx.ctx("session", "take", path[:-5], session, *words, check=check).stderr


def listed(machine: Machine, path: str = ECHO) -> dict[str, Any]:
    found = json.loads(machine.ctx.ctx("session", "list", path[:-5], "--json").stdout)
    return {one["session"]: one for one in found}
