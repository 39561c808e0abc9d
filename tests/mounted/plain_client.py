"""A client of a `.sock` as any author could write it: a Unix socket and JSON lines, no code of ours."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio


class Line(NamedTuple):
    """A received line, raw and parsed."""

    raw: bytes
    frame: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.frame["type"])

    @property
    def number(self) -> int:
        """The event id of the line; 0 if the line is an answer and not an event."""
        return int(self.frame.get("id", 0)) if "run" in self.frame else 0


class Plain:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self._heard: deque[bytes] = deque()

    async def ask(self, op: str, **fields: object) -> None:
        await self._stream.send_all(json.dumps({"op": op, **fields}).encode() + b"\n")

    async def line(self) -> Line | None:
        """Returns the next line; None if the other end is gone."""
        while not self._heard:
            try:
                data = await self._stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._heard += whole
        raw = self._heard.popleft()
        return Line(raw, json.loads(raw))

    async def until_done(self, *requests: str) -> list[Line]:
        """Returns the lines received until the runs of these requests are over."""
        heard: list[Line] = []
        left, runs = set(requests), dict[str, str]()
        while left:
            line = await self.line()
            assert line, f"the connection ended before {sorted(left)} did"
            heard.append(line)
            if line.type == "start":
                runs[line.frame["run"]] = line.frame.get("request", "")
            elif line.type == "done":
                left.discard(runs.get(line.frame["run"], ""))
            else:
                assert line.type != "error" or "run" in line.frame, line
        return heard


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Plain]:
    async with await trio.open_unix_socket(str(path)) as stream:
        yield Plain(stream)
