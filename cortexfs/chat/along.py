"""The part of a chat's messages that is not typed with them: a system prompt, and files for the next one.

Rules: a file is read when it is named, by the command that the chat is of, and refused then. What does not
fit into a message is said before that is sent, and stays.
This file must never know which session is talked in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Input


def _unread(source: str) -> tuple[str, bytes]:
    raise Fault("EINVAL", f"{source} cannot be attached here")


def _unfound(name: str) -> tuple[str, str]:
    raise Fault("EINVAL", f"{name} cannot be looked for here")


class Outside(NamedTuple):
    """The command's part in its chat: it reads a file, and finds the path and whole name of an object."""

    read: Callable[[str], tuple[str, bytes]] = _unread
    find: Callable[[str], tuple[str, str]] = _unfound


class Along:
    def __init__(self) -> None:
        self.system = ""
        self.names: list[str] = []
        self._parts: list[dict[str, Any]] = []

    def attach(self, name: str, data: bytes, can: list[str]) -> None:
        from cortexfs.client import attaching  # only those who attach something pay for it

        self._parts += attaching.parts(name, data, can)
        self.names.append(name)

    def with_text(self, text: str) -> Input:
        """The whole message. The files are gone with it; EMSGSIZE where it is too long, and they stay."""
        if not (self._parts or self.system):
            return text
        said: dict[str, Any] = {"content": [{"type": "text", "text": text}, *self._parts]}
        if self.system:
            said["system"] = self.system
        fits(said)
        self._parts, self.names = [], []
        return said


def fits(said: Input) -> None:
    """Raises EMSGSIZE where it cannot be sent: with an id and names as long as they may be, so that what fits
    here fits later too."""
    longest = "x" * requests.MAX_ID
    try:
        requests.encode(requests.Send(id=longest, session=longest, cwd="x" * requests.MAX_CWD, input=said))
    except Fault:
        why = "a message may have 1 MiB and this one is longer"
        raise Fault("EMSGSIZE", f"{why}; say where to read it") from None
