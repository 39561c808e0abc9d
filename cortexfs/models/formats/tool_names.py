"""Names of tools as providers take them.

A tool's name may have dots and plus signs (abi.md 2.1); OpenAI, Anthropic and Google take letters, digits, _
and - only, and not more than 64. So `fs.read` goes out as fs_read, and a call of fs_read comes in as one of
fs.read.

Rules: a request's tools have each a name of their own, and the same tools have the same ones every time, as
prompt caches want it: a name that is good as it is stays, others follow in the order of the request. A call
of a name that was not sent is passed on as it is.
This file must never know which format it serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, count

from msgspec.structs import replace

from cortexfs.models.ask.question import ModelInput, PromptMessage

LONGEST = 64
_GOOD = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}", re.ASCII)
_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


def sent(names: Iterable[str]) -> dict[str, str]:
    """Returns the name to send for each name that cannot go as it is."""
    each = list(dict.fromkeys(names))
    taken = {name for name in each if _GOOD.fullmatch(name)}
    found: dict[str, str] = {}
    for name in each:
        if not _GOOD.fullmatch(name):
            found[name] = _free(_plain(name), taken)
            taken.add(found[name])
    return found


def _plain(name: str) -> str:
    return _OUTSIDE.sub("_", name)[:LONGEST] or "_"


def _free(plain: str, taken: set[str]) -> str:
    ends = chain([""], (f"_{number}" for number in count(2)))
    return next(name for end in ends if (name := plain[: LONGEST - len(end)] + end) not in taken)


def renamed(asked: ModelInput) -> ModelInput:
    """Returns what is asked, with the names that are sent."""
    names = sent(tool.name for tool in asked.tools)
    return replace(
        asked,
        tools=tuple(replace(tool, name=names.get(tool.name, tool.name)) for tool in asked.tools),
        said=tuple(_said(said, names) for said in asked.said),
        tool_choice=names.get(asked.tool_choice, asked.tool_choice),
    )


def _said(said: PromptMessage, names: dict[str, str]) -> PromptMessage:
    """Of a tool that is not there any more, a call needs a name that can go, and no more than that."""
    calls = tuple(replace(call, name=names.get(call.name) or _plain(call.name)) for call in said.calls)
    return replace(said, calls=calls) if calls else said
