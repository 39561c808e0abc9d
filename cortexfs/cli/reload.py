"""Tells a running daemon that the configuration has changed, and reports the result.

Rules: SIGHUP tells the daemon. If no daemon runs, or we may not signal it, that is no failure. Nothing here
waits longer than RELOAD_SECONDS for a daemon that makes no progress.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from typing import TypeAlias

from cortexfs.cli import daemons, mounts, progress
from cortexfs.core.errors import Fault

# A plugin may take long to import.
RELOAD_SECONDS = 20.0
POLL_SECONDS = 0.05
NOT_MOUNTED = "the change takes effect with the next ctx mount"
_NUMBER = re.compile("[0-9]{1,18}")

Outcome: TypeAlias = Callable[[dict[str, list[str]]], str | None]
GoesOn: TypeAlias = Callable[[dict[str, list[str]]], bool]


def tell(
    root_option: str | None,
    outcome: Outcome = lambda facts: None,
    goes_on: GoesOn = lambda facts: False,
    *,
    waits: bool = True,
) -> str:
    """Tell the daemon, wait until it has taken the change over, and return a sentence about the result.
    `outcome` finds a failure in the facts of its status, `goes_on` whether work goes on."""
    try:
        root = mounts.root(root_option)
        mount = mounts.mounted_at(root)
        before = mounts.facts(mounts.status_text(root)) if mount else {}
        if mount and os.getuid() not in (0, mount.owner):
            why = f"the mount at {root} belongs to uid {mount.owner} and does not read your configuration"
            return f"{why}; a mount of yours does: ctx mount DIR"
        daemon = daemons.of(mount) if mount else None
        if daemon is None:
            return NOT_MOUNTED
        daemon.process.send(signal.SIGHUP)
        # A reload that runs already may have begun before the change; the next one reads it.
        reloads = _reloads(before) + ("reloading" in before)
        end = time.monotonic() + RELOAD_SECONDS
        with progress.shown(f"the daemon of {root} reads the change"):
            while waits and time.monotonic() < end:
                facts = mounts.facts(mounts.status_text(root))
                if goes_on(facts):
                    end = time.monotonic() + RELOAD_SECONDS
                elif _reloads(facts) > reloads:
                    return _sentence(facts, root, outcome)
                time.sleep(POLL_SECONDS)
        return f"the daemon of {root} is still reading the change; see: ctx status"
    except (Fault, ProcessLookupError):
        return NOT_MOUNTED


def broken(kind: str, name: str, verb: str) -> Outcome:
    """Returns an outcome that tells why a plugin, provider or agent is broken."""

    def outcome(facts: dict[str, list[str]]) -> str | None:
        rows = mounts.by_name(facts, f"broken {kind}")
        why = rows.get(name, "").removeprefix(f"the {kind} {name} {verb}: ")
        return f"it {verb}: {why}" if name in rows else None

    return outcome


def until(look: Callable[[], bool], seconds: float | None = None) -> bool:
    """Wait until `look` returns True. Returns False if it does not in time, or fails until then."""
    end = time.monotonic() + (seconds or RELOAD_SECONDS)
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if look():
                return True
        time.sleep(POLL_SECONDS)
    return False


def _sentence(facts: dict[str, list[str]], root: str, outcome: Outcome) -> str:
    if reasons := facts.get("reload refused"):
        return f"the mount at {root} refused the change and works as before: {reasons[0]}"
    unused = [f"but {why}" for why in facts.get("not used", [])]
    return outcome(facts) or ", ".join([f"the change is in effect at {root}", *unused])


def _reloads(facts: dict[str, list[str]]) -> int:
    count = facts.get("reloads", ["0"])[0]
    return int(count) if _NUMBER.fullmatch(count) else 0  # the text of a mount is untrusted
