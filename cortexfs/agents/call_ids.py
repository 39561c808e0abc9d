"""A model's names for its calls: an id for each that its run has not seen, and inputs of a bounded size.

This file must never know what a call does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from cortexfs.agents.hooked_call import MAX_INPUT
from cortexfs.core.errors import Fault
from cortexfs.core.frames import ToolCall

MAX_NAME = 64  # characters of a tool's name, which no tool's is over
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


class CallNames:
    """Those of one run."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def named(self, made: Iterable[ToolCall]) -> list[ToolCall]:
        named = []
        for one in made:
            if len(msgspec.json.encode(one.input)) > MAX_INPUT:
                raise Fault("EMSGSIZE", f"the model made a call with an input over {MAX_INPUT >> 10} KiB")
            named.append(replace(one, call=self._id(one.call), name=one.name[:MAX_NAME]))
        return named

    def _id(self, given: str) -> str:
        found = given if _ID.fullmatch(given) else f"call{len(self._seen) + 1}"
        while found in self._seen:
            found = f"{found}.{len(self._seen) + 1}"
        self._seen.add(found)
        return found
