"""The meaning of a typed line: something to say, or an order to the chat itself.

Rules: only a single line whose first word is a slash and letters is an order, so a pasted path or
program is said as it is. An unknown order is never said to the model: it is a slip of the fingers.
This file must never know terminals or conversations.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.talk import requests

ORDERS = {
    "/help": ("", "show this"),
    "/new": ("[NAME]", "begin another session"),
    "/sessions": ("", "list the sessions of this object"),
    "/resume": ("[NAME]", "go on with a session; without a name, the one before this"),
    "/pin": ("TEXT", "have an agent keep this in mind, whatever else it forgets"),
    "/quit": ("", "leave, as Ctrl-D does"),
}
KEYS = {
    "Enter": "send",
    "Alt-Enter": "begin a new line; so does a backslash before Enter",
    "Ctrl-C": "cancel what runs; again: leave",
    "Ctrl-D": "leave",
    "Up, Ctrl-R": "what you typed before; search in it",
    "Ctrl-X Ctrl-E": "write in your editor",
    "Tab": "complete orders, and sessions after /resume",
    "y, a, n, e": "answer a question: once, always in this session, no, edit the call first",
}
_ORDER = re.compile(r"(/[A-Za-z]+)(?:[ \t]+(.*))?", re.ASCII)


class TypedText(NamedTuple):
    text: str


class TypedCommand(NamedTuple):
    name: str
    argument: str


def meaning(text: str) -> TypedText | TypedCommand | None:
    """Returns the meaning of a line; None where nothing was typed. The Fault about an unknown command
    lists all."""
    text = text.rstrip()
    if not text.strip():
        return None
    found = _ORDER.fullmatch(text)
    if not found:
        return TypedText(fit(text))
    name, argument = found[1].lower(), (found[2] or "").strip()
    if name not in ORDERS:
        raise Fault("EINVAL", _unknown(found[1]))
    if argument and not ORDERS[name][0]:
        raise Fault("EINVAL", f"{name} takes no argument")
    return TypedCommand(name, argument)


def fit(text: str) -> str:
    """`text` as it can be sent, or EMSGSIZE: what is no UTF-8 is replaced, what is too long is refused."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    try:
        # With an id and names as long as they may be, so that what fits here fits later too.
        longest = "x" * requests.MAX_ID
        requests.encode(requests.Send(id=longest, session=longest, cwd="x" * requests.MAX_CWD, input=text))
    except Fault:
        raise Fault(
            "EMSGSIZE", "a message may have 1 MiB and this one is longer; say where to read it"
        ) from None
    return text


def goes_on(text: str) -> bool:
    """Returns True if a line ends in the backslash that asks for another one."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def help_lines() -> list[str]:
    rows = {f"{name} {argument}".rstrip(): summary for name, (argument, summary) in ORDERS.items()} | KEYS
    width = max(map(len, rows))
    return [f"{row:{width}}  {summary}" for row, summary in rows.items()]


def _unknown(name: str) -> str:
    near = get_close_matches(name.lower(), list(ORDERS), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"there is no {name}; {hint}there are {', '.join(ORDERS)}. "
        "Begin with a space to say what begins with a slash"
    )
