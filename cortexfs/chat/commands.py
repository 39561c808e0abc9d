"""Where a chat is, and what its orders do: /help, /new, /sessions, /resume, /pin.

Rules: an order changes which session is meant, and says what there is; the connection and the screen
follow. A session's name is checked before it is gone to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cortexfs.chat import sessions as stored
from cortexfs.chat import typed
from cortexfs.chat.calls import Show, Surroundings
from cortexfs.chat.printing import counted
from cortexfs.chat.sessions import StoredSession
from cortexfs.chat.state import Deed, Talk
from cortexfs.client import Conversation, new_id
from cortexfs.core.errors import Fault
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Scope

LISTED = 20


class ChatPlace:
    """An object, and which of its sessions is talked in."""

    def __init__(
        self, root: str, path: str, whole: str, name: str, scope: Scope, sight: Surroundings | None = None
    ) -> None:
        self.name = name
        self.scope: Scope = scope
        self.session = ""
        self.before: str | None = None  # the session that was left last
        self._root, self._path, self._whole = root, path, whole
        self._sight = sight or Surroundings()

    @property
    def is_agents(self) -> bool:
        return self._whole.startswith("agent/")

    def connect(self) -> Conversation:
        return Conversation(self._path)

    def sessions(self) -> list[StoredSession]:
        return [] if self.scope == "temp" else stored.listing(self._root, self._whole, self.scope)

    @property
    def greeting(self) -> str:
        return f"{self.name}, {_WHOSE[self.scope].format(self.session)}; /help says what you can do"

    @property
    def option(self) -> str:
        """Returns the command's option for the scope; nothing for the scope that commands mean anyway."""
        return "" if self.scope == "private" else f" --scope {self.scope}"

    def enter(self, session: str, cwd: str | None = None) -> tuple[Talk, list[Deed]]:
        """Go to a session: its talk, and what was said in it before. An agent's new session works in `cwd`,
        else where we are; an old one stays where it was. Models work nowhere."""
        where = stored.place(self._root, self._whole, self.scope, session)
        past = [] if self.scope == "temp" else stored.tail(where)
        cwd = cwd or (None if past else self._here())
        talk = Talk(self.name, session, self.scope, new_id, cwd, self.sight(session, cwd))
        said, is_cut = stored.recent(past)
        deeds = talk.recall(said)
        if is_cut and deeds:
            deeds.insert(
                0,
                Show("note", f"what was said before: ctx session show {self._whole} {session}{self.option}"),
            )
        if session != self.session:
            self.before, self.session = self.session or None, session
        return talk, deeds

    def sight(self, session: str, cwd: str | None) -> Surroundings:
        """Where the calls of a session find their files."""
        return self._sight._replace(
            read=lambda path: self._sight.read(os.path.join(self._working(session, cwd), path))
        )

    def _working(self, session: str, cwd: str | None) -> str:
        if self.scope != "temp":  # what is kept nowhere works where it was told to
            own = stored.text(stored.place(self._root, self._whole, self.scope, session) / "cwd")
            cwd = own if own not in ("", "/") else cwd  # "/" is said also of one that has none
        return cwd or stored.text(Path(f"{os.path.realpath(self._path)}.d/cwd")) or "/"

    def _here(self) -> str | None:
        try:
            return os.getcwd() if self.is_agents else None
        except FileNotFoundError:  # somebody removed it
            return None


class CommandOutcome(NamedTuple):
    lines: list[str]
    session: str | None = None
    message: str = ""


def carry_out(place: ChatPlace, order: typed.TypedCommand) -> CommandOutcome:
    """Returns the lines to show, the session to go to, and the message to say in it. /quit is not done
    here."""
    return _ORDERS[order.name](place, order.argument)


def _help(place: ChatPlace, argument: str) -> CommandOutcome:
    return CommandOutcome(typed.help_lines())


def _new(place: ChatPlace, argument: str) -> CommandOutcome:
    there = {one.session for one in place.sessions()}
    if not argument:
        return CommandOutcome([], _unused(time.strftime("%Y-%m-%d-%H%M%S"), there))
    if requests.check_session(argument) in there:
        raise Fault("EEXIST", f"there is a session {argument!r}; go on with it: /resume {argument}")
    return CommandOutcome([], argument)


def _unused(name: str, there: set[str]) -> str:
    number = 1
    while (found := name if number == 1 else f"{name}-{number}") in there:
        number += 1
    return found


def _sessions(place: ChatPlace, argument: str) -> CommandOutcome:
    there = place.sessions()
    if not there:
        return CommandOutcome([_NONE[place.scope]])
    width = max(len(one.session) for one in there[:LISTED])
    lines = [
        f"{'*' if one.session == place.session else ' '} {one.session:{width}}  {one.state},"
        f" {counted(one.messages, 'message')}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(one.updated))}"
        for one in there[:LISTED]
    ]
    if len(there) > LISTED:
        lines.append(f"  and {len(there) - LISTED} more: ctx session list {place.name}{place.option}")
    return CommandOutcome(lines)


def _resume(place: ChatPlace, argument: str) -> CommandOutcome:
    if place.scope == "temp":
        raise Fault("EINVAL", _NONE["temp"])
    there = [one.session for one in place.sessions()]
    if argument and requests.check_session(argument) not in there:
        raise Fault(
            "ENOENT", f"there is no session {argument!r}; see /sessions, or begin it: /new {argument}"
        )
    others = [name for name in (place.before, *there) if name and name != place.session]
    name = argument or next(iter(others), None)
    if name is None:
        raise Fault("ENOENT", "there is no other session; begin one with /new")
    return CommandOutcome([], name)


def _pin(place: ChatPlace, argument: str) -> CommandOutcome:
    if not place.is_agents:
        raise Fault("EINVAL", f"agents keep pins, and {place.name} is none; say it as part of a message")
    if not argument:
        raise Fault("EINVAL", "say what is to be kept in mind: /pin TEXT")
    return CommandOutcome([], message=f"/pin {argument}")


_WHOSE = {
    "private": "session {}",
    "shared": "shared session {}",
    "temp": "temp session {}, kept nowhere",
}
_NONE = {
    "private": "there are no sessions yet: what you say begins one",
    "shared": "there are no shared sessions yet: what you say begins one",
    "temp": "temp sessions are not kept: they end with their chat",
}
_ORDERS: dict[str, Callable[[ChatPlace, str], CommandOutcome]] = {
    "/help": _help,
    "/new": _new,
    "/sessions": _sessions,
    "/resume": _resume,
    "/pin": _pin,
}
