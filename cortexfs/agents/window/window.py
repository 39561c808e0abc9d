"""The window of a run: the input for each question to its model, and the files that show this input.

    window = AgentWindow(parts, (limit, reserve), files, session, agent)
    await window.load()
    window.add(messages)
    pack = await window.pack(summarise)

Rules: context.py plans; this file gets what planning needs from the disk, in a thread, and from the model. If
a summary fails, turns that do not fit are left out without one. Of the run's steps, only what the window has
room for is held, and the last step: what was cut stays cut.
This file must never know tools, policy or sockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from cortexfs.agents.window.context import Pack, WindowParts, pack_json, plan, renewed, summary_request
from cortexfs.agents.window.files import ContextFiles
from cortexfs.core.errors import Fault
from cortexfs.models.ask.question import PromptMessage

Summarise = Callable[[dict[str, Any]], Awaitable[str]]


class AgentWindow:
    def __init__(
        self, parts: WindowParts, room: tuple[int, int], files: ContextFiles | None, session: str, agent: str
    ) -> None:
        self._parts = parts
        self._limit, self._reserve = room
        self._files = files
        self._names = session, agent  # in pack.json
        self._text = b""
        self._summarises = True

    def add(self, *messages: PromptMessage) -> None:
        """Add messages of the run's latest step."""
        self._parts = self._parts._replace(steps=(*self._parts.steps, *messages))

    async def load(self) -> None:
        """Load the session's summary, and what its user has pinned."""
        if self._files is not None:
            context = await trio.to_thread.run_sync(self._files.load)
            self._parts = self._parts._replace(summary=context.summary, pinned=context.pinned)

    async def pack(self, summarise: Summarise) -> Pack:
        """Returns the next question. Raises EMSGSIZE if it cannot be made to fit."""
        pack = self._planned()
        if pack.forgotten and self._summarises:
            self._summarises = await self._summarised(pack, summarise)
            pack = self._planned()
        await self._tell(pack)
        return pack

    def _planned(self) -> Pack:
        pack = plan(self._parts, self._limit, self._reserve)
        self._parts = self._parts._replace(steps=pack.steps)
        return pack

    async def _summarised(self, pack: Pack, summarise: Summarise) -> bool:
        """Returns True if there is a new summary of the turns that have no room any more."""
        before = self._parts.summary
        try:
            text = await summarise(summary_request(pack.forgotten, before, self._limit))
        except Fault as fault:
            if fault.code in ("ETIMEDOUT", "EDQUOT"):  # the run's own limits
                raise
            return False
        summary = renewed(pack.forgotten, before, text)
        if summary is None or summary == before:
            return False
        self._parts = self._parts._replace(summary=summary)
        if self._files is not None:
            await trio.to_thread.run_sync(self._files.write_summary, summary)
        return True

    async def _tell(self, pack: Pack) -> None:
        text = pack_json(pack, *self._names)
        if self._files is not None and text != self._text:
            self._text = text
            await trio.to_thread.run_sync(self._files.write_pack, text)

    async def spill(self, call: str, output: str) -> str:
        """Keep an output that is too long for the model. Returns its path, or "" if it is not kept."""
        if self._files is None:
            return ""
        return await trio.to_thread.run_sync(self._files.spill, call, output)

    def grown(self) -> int:
        """Returns the bytes by which its files grew since the last call."""
        return self._files.grown() if self._files is not None else 0

    async def pin(self, text: str) -> str:
        if self._files is None:
            raise Fault("EINVAL", "a single call has no session for a pin; use ctx chat, or the .sock")
        return await trio.to_thread.run_sync(self._files.pin, text)
