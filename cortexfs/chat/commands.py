"""The meaning of a typed line, which is a message or an order to the chat itself, and the effects of orders.

Rules: only a single line whose first word is a slash and letters is an order, so a pasted path or program is
sent as it is. An unknown order is never sent to the model, as it is a slip of the fingers. An order changes
the current session and returns lines to show; the connection and the screen follow. A session's name is
checked before the chat goes to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from cortexfs.chat import said as said_before
from cortexfs.chat import sessions as stored
from cortexfs.chat.calls import Show, Surroundings
from cortexfs.chat.sessions import StoredSession
from cortexfs.chat.state import Deed, Talk
from cortexfs.client import Conversation, new_id
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.names import check_session
from cortexfs.core.safe_text import counted
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Input, Scope

LISTED = 20
KEYS = {
    "Enter": "send",
    "Alt-Enter": "begin a new line; so does a backslash before Enter",
    "Ctrl-C": "cancel what runs; again: leave",
    "Ctrl-D": "leave",
    "Up, Ctrl-R": "earlier messages; search in them",
    "Ctrl-X Ctrl-E": "write in your editor",
    "Tab": "complete orders, sessions after /resume, and files after /attach and /save",
    "y, n, a, e": "answer a question: yes, this once; no; always in this session; edit the call first",
}
_ORDER = re.compile(r"(/[A-Za-z]+)(?:[ \t]+(.*))?", re.ASCII)


class TypedText(NamedTuple):
    text: str


class TypedCommand(NamedTuple):
    name: str
    argument: str


def meaning(text: str) -> TypedText | TypedCommand | None:
    """Returns the meaning of a line, or None if it is empty. Raises a Fault that lists all orders if the
    order is unknown."""
    text = text.rstrip()
    if not text.strip():
        return None
    found = _ORDER.fullmatch(text)
    if not found:
        return TypedText(fit(text))
    name, argument = found[1].lower(), (found[2] or "").strip()
    if name not in ORDERS:
        near = get_close_matches(name, list(ORDERS), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        mend = f"{hint}there are {', '.join(ORDERS)}. A text that begins with a slash needs a space before it"
        raise Fault("EINVAL", f"there is no {found[1]}; {mend}")
    if argument and not ORDERS[name].argument:
        raise Fault("EINVAL", f"{name} takes no argument")
    return TypedCommand(name, argument)


def fit(text: str) -> str:
    """Returns `text` as it can be sent, with non-UTF-8 bytes replaced. Raises EMSGSIZE if it is too long."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    _check_fits(text)
    return text


def goes_on(text: str) -> bool:
    """Returns True if a line ends in a backslash that asks for another line."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def help_lines() -> list[str]:
    rows = {f"{name} {order.argument}".rstrip(): order.summary for name, order in ORDERS.items()} | KEYS
    width = max(map(len, rows))
    return [f"{row:{width}}  {summary}" for row, summary in rows.items()]


class Outside(NamedTuple):
    """The functions of the command around the chat: `read` reads a file, `find` finds an object."""

    read: Callable[[str], tuple[str, bytes]]
    find: Callable[[str], tuple[str, str]]


class Along:
    """The part of a chat's messages that is not typed: a system prompt, and files for the next message. A
    file is read, or refused, when it is named. Files of a message that is too long stay for the next one."""

    def __init__(self) -> None:
        self.system = ""
        self.names: list[str] = []
        self._parts: list[dict[str, Any]] = []

    def attach(self, name: str, parts: list[dict[str, Any]]) -> None:
        self._parts += parts
        self.names.append(name)

    def with_text(self, text: str) -> Input:
        """Returns the whole message and forgets its files. If it is too long, raises EMSGSIZE; they stay."""
        if not (self._parts or self.system):
            return text
        input_: dict[str, Any] = {"content": [{"type": "text", "text": text}, *self._parts]}
        if self.system:
            input_["system"] = self.system
        _check_fits(input_)
        self._parts, self.names = [], []
        return input_


def _check_fits(input_: Input) -> None:
    """Raises EMSGSIZE if the input is too long to be sent. The check uses the longest id and names, so that
    an input that fits here fits later too."""
    longest = "x" * requests.MAX_ID
    try:
        requests.encode(requests.Send(id=longest, session=longest, cwd="x" * requests.MAX_CWD, input=input_))
    except Fault:
        why = "a message has at most 1 MiB, and this one is longer"
        raise Fault("EMSGSIZE", f"{why}; write the text into a file and name the file") from None


class ChatPlace:
    """An object, and the session in which the person talks with it."""

    def __init__(
        self, root: str, path: str, whole: str, scope: Scope, sight: Surroundings, outside: Outside
    ) -> None:
        self.root, self.path, self.whole = root, path, whole  # model/debug/echo
        self.scope: Scope = scope
        self.along, self.outside = Along(), outside
        self.session = ""
        self.before: str | None = None  # the session that was left last
        self._sight = sight

    @property
    def name(self) -> str:
        """Returns the object's name as error lines of exec have it."""
        return self.whole.partition("/")[2]

    @property
    def is_agents(self) -> bool:
        return self.whole.startswith("agent/")

    @property
    def kept_by(self) -> str:
        """Returns a sentence about the other machine that keeps the sessions, and has an agent's files; empty
        if this machine does."""
        return stored.kept_by(self.path, self.whole)

    def connect(self) -> Conversation:
        return Conversation(self.path)

    def sessions(self) -> list[StoredSession]:
        return [] if self.scope == "temp" else [*stored.each(self.root, self.whole, self.scope)]

    @property
    def greeting(self) -> str:
        return f"{self.name}, {_WHOSE[self.scope].format(self.session)}; /help says what you can do"

    @property
    def option(self) -> str:
        """Returns the command's option for the scope; empty for the default scope."""
        return "" if self.scope == "private" else f" --scope {self.scope}"

    def enter(self, session: str, cwd: str | None = None) -> tuple[Talk, list[Deed]]:
        """Go to a session. Returns its talk, and what to show of its past."""
        where = stored.place(self.root, self.whole, self.scope, session)
        past = [] if self.scope == "temp" else said_before.tail(where)
        cwd = cwd or (self.beginning(session) if self.is_agents else None)
        talk = Talk(self.name, session, self.scope, new_id, cwd, self.sight(session, cwd))
        frames, is_cut = said_before.recent(past)
        deeds = talk.recall(frames)
        if is_cut and deeds:
            command = f"ctx session show {self.whole} {session}{self.option}"
            deeds.insert(0, Show("note", f"what was said before: {command}"))
        if session != self.session:
            self.before, self.session = self.session or None, session
        return talk, deeds

    def beginning(self, session: str) -> str | None:
        """Returns the directory for a new session: the current one. Returns None for an existing session,
        which keeps its own, and for agents of other machines, which have none here."""
        if self.kept_by:
            return None
        if self.scope != "temp" and stored.place(self.root, self.whole, self.scope, session).exists():
            return None
        with contextlib.suppress(FileNotFoundError):  # the directory may have been removed
            return os.getcwd()
        return None

    def sight(self, session: str, cwd: str | None) -> Surroundings:
        """Returns the surroundings in which the calls of a session find their files."""
        if self.kept_by:
            return Surroundings(rows=self._sight.rows)
        return self._sight._replace(
            read=lambda path: self._sight.read(os.path.join(self._working(session, cwd), path))
        )

    def _working(self, session: str, cwd: str | None) -> str:
        if self.scope != "temp":  # a temp session has no files in the mount
            own = stored.text(stored.place(self.root, self.whole, self.scope, session) / "cwd")
            cwd = own if own not in ("", "/") else cwd  # "/" may also mean no directory
        return cwd or stored.text(Path(f"{os.path.realpath(self.path)}.d/cwd")) or "/"


class CommandOutcome(NamedTuple):
    lines: list[str]
    session: str | None = None
    message: str = ""


def carry_out(place: ChatPlace, order: TypedCommand) -> CommandOutcome:
    """Returns the lines to show, the session to go to, and the message to send in it. /quit has none."""
    return ORDERS[order.name].do(place, order.argument)


def _new(place: ChatPlace, argument: str) -> CommandOutcome:
    sessions = {session.session for session in place.sessions()}
    if argument and check_session(argument) in sessions:
        raise Fault("EEXIST", f"there is a session {argument!r}; go on with it: /resume {argument}")
    now = time.strftime("%Y-%m-%d-%H%M%S")
    names = itertools.chain([argument or now], (f"{now}-{number}" for number in itertools.count(2)))
    return CommandOutcome([], next(name for name in names if name not in sessions))


def _sessions(place: ChatPlace, argument: str) -> CommandOutcome:
    sessions = place.sessions()
    if not sessions:
        return CommandOutcome([place.kept_by or _NONE[place.scope]])
    width = max(len(session.session) for session in sessions[:LISTED])
    lines = [
        f"{'*' if session.session == place.session else ' '} {session.session:{width}}  {session.state},"
        f" {counted(session.messages, 'message')},"
        f" {time.strftime('%Y-%m-%d %H:%M', time.localtime(session.updated))}"
        for session in sessions[:LISTED]
    ]
    if len(sessions) > LISTED:
        lines.append(f"  and {len(sessions) - LISTED} more: ctx session list {place.name}{place.option}")
    return CommandOutcome(lines)


def _resume(place: ChatPlace, argument: str) -> CommandOutcome:
    if place.scope == "temp":
        raise Fault("EINVAL", _NONE["temp"])
    sessions = [session.session for session in place.sessions()]
    if argument and check_session(argument) not in sessions and not place.kept_by:
        mend = f"see /sessions, or begin it: /new {argument}"
        raise Fault("ENOENT", f"there is no session {argument!r}; {mend}")
    others = [name for name in (place.before, *sessions) if name and name != place.session]
    name = argument or next(iter(others), None)
    if name is None:
        raise Fault("ENOENT", "there is no other session; begin one with /new")
    return CommandOutcome([], name)


def _pin(place: ChatPlace, argument: str) -> CommandOutcome:
    if not place.is_agents:
        raise Fault("EINVAL", f"only agents keep pins, and {place.name} is a model; say it in a message")
    if not argument:
        raise Fault("EINVAL", "say what the agent must keep in mind: /pin TEXT")
    return CommandOutcome([], message=f"/pin {argument}")


def _model(place: ChatPlace, argument: str) -> CommandOutcome:
    if place.is_agents:
        raise Fault("EINVAL", f"{place.name} is an agent, whose model is the file model in its .d/")
    if not argument:
        return CommandOutcome([f"{place.name} answers; talk with another: /model NAME, of ctx ls model"])
    path, name = place.outside.find(argument)
    if not name.startswith("model/"):
        raise Fault("EINVAL", f"{name} is no model; see: ctx ls model")
    place.path, place.whole = path, name
    return _new(place, "")


def _system(place: ChatPlace, argument: str) -> CommandOutcome:
    if place.is_agents:
        raise Fault("EINVAL", f"{place.name} is an agent, whose system prompt is system.md in its .d/")
    if argument:
        place.along.system = "" if argument == "-" else argument
    text = place.along.system
    none = "no system prompt is set; set one with /system TEXT, remove it with /system -"
    return CommandOutcome([f"system prompt: {text}" if text else none])


def _attach(place: ChatPlace, argument: str) -> CommandOutcome:
    if argument:
        name, data = place.outside.read(argument)
        from cortexfs.client import attaching  # a slow import that only /attach needs

        can = attaching.abilities(place.root, place.path)
        place.along.attach(name, attaching.parts(name, data, can))
    names = ", ".join(place.along.names)
    return CommandOutcome([f"attached to your next message: {names or 'nothing; /attach FILE'}"])


def _save(place: ChatPlace, argument: str) -> CommandOutcome:
    if not argument:
        raise Fault("EINVAL", "name a new file for the conversation: /save FILE")
    if place.scope == "temp":
        raise Fault("EINVAL", _NONE["temp"])
    if place.kept_by:
        raise Fault("EINVAL", f"{place.kept_by}; save it there")
    path = os.path.abspath(os.path.expanduser(argument))
    with os_faults("nothing has been said yet in this session"):
        messages = [*said_before.messages(stored.place(place.root, place.whole, place.scope, place.session))]
    whose = {"user": "You", "assistant": place.name}
    with os_faults(f"{path} cannot be written"), open(path, "x", encoding="utf-8") as file:
        for message in messages:
            text = "".join(part.text for part in message.content)
            file.write(f"## {whose.get(message.role, message.role)}\n\n{text.strip()}\n\n")
    return CommandOutcome([f"saved {counted(len(messages), 'message')} in {path}"])


_WHOSE = {
    "private": "session {}",
    "shared": "shared session {}",
    "temp": "temp session {}, kept nowhere",
}
_NONE = {
    "private": "there are no sessions yet: your first message begins one",
    "shared": "there are no shared sessions yet: your first message begins one",
    "temp": "temp sessions are not kept: they end with their chat",
}


class Order(NamedTuple):
    argument: str
    summary: str
    do: Callable[[ChatPlace, str], CommandOutcome]


ORDERS = {
    "/help": Order("", "show this", lambda place, argument: CommandOutcome(help_lines())),
    "/new": Order("[NAME]", "begin another session", _new),
    "/sessions": Order("", "list the sessions of this object", _sessions),
    "/resume": Order("[NAME]", "go on with a session; without a name, the one before this", _resume),
    "/model": Order("[NAME]", "talk with another model, in a session of its own", _model),
    "/system": Order("[TEXT]", "set the model's system prompt; - removes it", _system),
    "/attach": Order("[FILE]", "attach a text, a picture or a PDF to your next message", _attach),
    "/save": Order("FILE", "write the conversation into a new file", _save),
    "/pin": Order("TEXT", "have an agent keep this in mind, whatever else it forgets", _pin),
    "/quit": Order("", "leave, as Ctrl-D does", lambda place, argument: CommandOutcome([])),
}
