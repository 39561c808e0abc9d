"""The events of the mount for a plugin's page: those that its plugin hears, and no others.

    number = await newest(place)                the number of the newest event that there is
    found = await after(place, "notes", number)  those of a plugin that have come since

Rules: the mount says which events a plugin hears, and tells those of this process's user alone.
This file must never know frames.
"""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.web.children import WebPlace

RUNNER, FILE = "bin/cortexfs-object-runner", ".events"  # below the root


class MountEvent(msgspec.Struct, frozen=True):
    number: int
    plugin: str = ""
    event: dict[str, Any] = {}

    @property
    def told(self) -> tuple[str, dict[str, Any]]:
        """Its type, and its other members."""
        members = dict(self.event)
        return str(members.pop("type", "")), members


_line = msgspec.json.Decoder(MountEvent)


async def newest(place: WebPlace) -> int:
    return max((one.number for one in await _read(place)), default=0)


async def after(place: WebPlace, plugin: str, number: int) -> list[MountEvent]:
    return [one for one in await _read(place, str(number)) if one.plugin == plugin]


async def _read(place: WebPlace, *words: str) -> list[MountEvent]:
    done = await trio.run_process(
        [f"{place.root}/{RUNNER}", f"{place.root}/{FILE}", *words],
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
        env={**place.environ, "CTX_OUTPUT": "text"},
    )
    if done.returncode:
        raise Fault("EHOSTDOWN", "the mount did not tell what has happened; see: ctx status")
    try:
        return [_line.decode(line) for line in done.stdout.splitlines()]
    except UNREADABLE:
        raise Fault("EPROTO", f"{FILE} of the mount cannot be read") from None
