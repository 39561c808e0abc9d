"""The protocol of NATS as bytes, without a socket: the messages of a client, and those of a server.

    data = publish("ctx.live.box", b"...")      bytes to send
    for said in Heard().feed(data): ...         a Delivery, or INFO, PING, PONG, OK, ERR

Rules: a server is untrusted until TLS has proved it, so lines and payloads are bounded. Names become parts of
subjects only by `token`, so that no foreign subject can be made.
This file must never know who is connected, or why.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from cortexfs.core.errors import Fault

MAX_PAYLOAD = 2 << 20  # the servers of a team allow as much
_MAX_LINE = 64 << 10  # an INFO
_MAX_HEADERS = 64 << 10
_VERSION = b"NATS/1.0"
_NAMES = 1024  # the number of cached names and tokens
_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Delivery(NamedTuple):
    """A message for a subscription."""

    subject: str
    number: str  # of the subscription
    reply: str
    status: str  # of a message that the server itself has made (503, 404), otherwise empty
    headers: dict[str, str]
    data: bytes


class Word(NamedTuple):
    """Any other message, with the rest of its line: INFO, PING, PONG, +OK, -ERR."""

    name: str
    text: bytes


Said: TypeAlias = Delivery | Word


@lru_cache(_NAMES)
def token(name: str) -> str:
    """Returns a name as one token of a subject."""
    return "".join(each if _PLAIN.fullmatch(each) else f"={ord(each):02X}" for each in name)


@lru_cache(_NAMES)
def untoken(text: str) -> str:
    """Returns the name of a token."""
    return re.sub("=([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)


def connect(options: bytes) -> bytes:
    return b"CONNECT " + options + b"\r\nPING\r\n"


def publish(subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bytes:
    if len(data) > MAX_PAYLOAD - (1 << 10):
        raise Fault("EMSGSIZE", f"a message to another machine is over {MAX_PAYLOAD >> 20} MiB; send less")
    target = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (target.encode(), len(data), data)
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
    head = _VERSION + b"\r\n" + lines + b"\r\n"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (target.encode(), len(head), len(head) + len(data), head, data)


def subscribe(subject: str, number: str) -> bytes:
    return f"SUB {subject} {number}\r\n".encode()


class Heard:
    """Decodes the bytes of a server into messages. Raises EPROTO if they are not NATS."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # The words of a message, and the sizes of its head and of all.
        self._pending: tuple[list[str], int, int] | None = None

    def feed(self, data: bytes) -> list[Said]:
        self._buffer += data
        items: list[Said] = []
        at = 0
        while True:
            if self._pending is None:
                end = self._buffer.find(b"\r\n", at)
                if end < 0:
                    break
                line, at = bytes(self._buffer[at:end]), end + 2
                if (word := self._line(line)) is not None:
                    items.append(word)
                continue
            words, head, size = self._pending
            if len(self._buffer) - at < size + 2:
                break
            message = bytes(self._buffer[at : at + size])
            items.append(_delivery(words, message[:head], message[head:]))
            at += size + 2
            self._pending = None
        del self._buffer[:at]
        if self._pending is None and len(self._buffer) > _MAX_LINE:
            raise Fault("EPROTO", "the server of the team has sent a line that is too long")
        return items

    def _line(self, line: bytes) -> Word | None:
        name, _, rest = line.partition(b" ")
        if name not in (b"MSG", b"HMSG"):
            return Word(name.decode("ascii", "replace").upper(), rest)
        words = rest.decode("ascii", "replace").split()
        try:
            size = int(words.pop())
            head = int(words.pop()) if name == b"HMSG" else 0
        except (ValueError, IndexError):
            raise Fault("EPROTO", "the server of the team does not speak NATS") from None
        if not (2 <= len(words) <= 3 and 0 <= head <= min(size, _MAX_HEADERS) and size <= 2 * MAX_PAYLOAD):
            raise Fault("EPROTO", "the server of the team has sent a message over the limit")
        self._pending = (words, head, size)
        return None


def _delivery(words: list[str], head: bytes, data: bytes) -> Delivery:
    subject, number, *reply = words
    first, *lines = head.decode("utf-8", "replace").split("\r\n") if head else [""]
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    status = first.removeprefix(_VERSION.decode()).strip().partition(" ")[0]
    return Delivery(subject, number, reply[0] if reply else "", status, headers, data)
