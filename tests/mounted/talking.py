"""A client of `.sock` as any author would write it: a plain socket, JSON in, JSON out. It uses no code of the
package, so the tests hold for clients in any language. Each wait has a deadline, so no test hangs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tests.mounted.ctx_mount import Ctx
from tests.mounted.spaces import Inside
from tests.waiting import PATIENCE

RELAY = Path(__file__).with_name("relay.py").read_text()
MAX_LINE = 1 << 20
ECHO = "model/debug/echo.sock"
SCRIPT = "model/debug/script.sock"

Frame: TypeAlias = dict[str, Any]


class Closed(Exception):
    """The server has closed the connection."""


class Talk:
    """One connection to a `.sock`."""

    def __init__(self, end: Path | socket.socket) -> None:
        self.socket = end if isinstance(end, socket.socket) else socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self._rest = bytearray()
        self._searched = 0
        if end is self.socket:
            return
        try:
            self.socket.connect(str(end))
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, op: str, **fields: object) -> None:
        self.raw(line(op, **fields))

    def send(self, input: object, **fields: object) -> None:
        self.ask("send", **fields, input=input)

    def play(self, *steps: Frame, **fields: object) -> None:
        """Send steps for debug/script to play."""
        self.send(json.dumps(steps), **fields)

    def no_more(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes:
        """Returns the next line as received, without its newline."""
        while (end := self._rest.find(b"\n", self._searched)) < 0:
            self._searched = len(self._rest)
            if not (data := self.socket.recv(1 << 16)):
                raise Closed
            self._rest += data
        found = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._searched = 0
        return found

    def frame(self) -> Frame:
        found = self.line()
        assert len(found) < MAX_LINE
        frame = json.loads(found)
        assert isinstance(frame, dict)
        return frame

    def until(self, type_: str, **fields: object) -> list[Frame]:
        """Returns the frames up to the first frame of type `type_` that has the values of `fields`."""
        found = []
        while True:
            found.append(self.frame())
            if found[-1]["type"] == type_ and fields.items() <= found[-1].items():
                return found

    def error(self) -> Frame:
        frame = self.frame()
        assert frame["type"] == "error", frame
        return frame

    def rest(self, torn: bool = False) -> list[Frame]:
        """Returns all frames up to the end of the connection. A killed server may leave a torn last line."""
        found = []
        with contextlib.suppress(Closed, ConnectionResetError):
            while True:
                found.append(self.frame())
        assert torn or not self._rest, "the last line has no end"
        return found

    def all(self) -> list[Frame]:
        """Stop sending, and return the remaining frames."""
        self.no_more()
        return self.rest()

    def is_alive(self) -> bool:
        self.ask("ping", id="alive?")
        return self.until("pong")[-1] == {"type": "pong", "request": "alive?"}


def line(op: str, **fields: object) -> bytes:
    return json.dumps({"op": op, **fields}).encode() + b"\n"


@contextlib.contextmanager
def talk(ctx: Ctx, path: str = ECHO, uid: int | None = None) -> Iterator[Talk]:
    """Connect as user `uid`. The kernel records the user at connect(2) (unix(7), SO_PEERCRED)."""
    uid = ctx.user if uid is None else uid
    if ctx.space:
        with _relayed(ctx, ctx.space, path, uid or 0) as talk:
            yield talk
        return
    if uid is None:
        talk = Talk(ctx.root / path)
    else:
        os.setegid(uid)
        os.seteuid(uid)
        try:
            talk = Talk(ctx.root / path)
        finally:
            os.seteuid(0)
            os.setegid(0)
    try:
        yield talk
    finally:
        talk.close()


@contextlib.contextmanager
def _relayed(ctx: Ctx, space: Inside, path: str, uid: int) -> Iterator[Talk]:
    """Connect by a relay program that runs inside of a space."""
    ours, theirs = socket.socketpair()
    program = [str(ctx.python), "-IS", "-c", RELAY, f"{ctx.root}/{path}"]
    words = [*space.words(uid, ctx.work), *program]
    with theirs:
        relay = subprocess.Popen(words, stdin=theirs.fileno(), env=ctx.environ, group=uid, extra_groups=())
    try:
        yield Talk(ours)
    finally:
        ours.close()
        relay.kill()
        relay.wait()


def is_refused(ctx: Ctx, path: str, uid: int | None = None) -> bool:
    """Returns True if connecting is refused, which begins right after the status reports the reason."""
    try:
        with talk(ctx, path, uid):
            return False
    except ConnectionRefusedError:
        return True


def said(ctx: Ctx, input: object, path: str = ECHO, **fields: object) -> list[Frame]:
    """Send one message, and return its frames up to `done`."""
    with talk(ctx, path) as client:
        client.send(input, **fields)
        return client.until("done")


def history(
    ctx: Ctx, session: str, path: str = ECHO, uid: int | None = None, **fields: object
) -> list[Frame]:
    """Returns the frames that a session holds now."""
    with talk(ctx, path, uid) as client:
        client.ask("resume", session=session, **fields)
        return client.all()


def ids(frames: list[Frame]) -> list[int]:
    """Returns the numbers of the events. A frame without a number is an answer and not an event."""
    found = [frame["id"] for frame in frames if "id" in frame]
    assert all(isinstance(each, str) and each.isdecimal() for each in found)
    return list(map(int, found))


def types(frames: list[Frame]) -> list[str]:
    return [str(frame["type"]) for frame in frames]


def text(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


def one_run(frames: list[Frame]) -> str:
    """Check that the frames are of one run (abi.md 5.13), and return its id."""
    assert types(frames)[0] == "start", frames
    assert types(frames).count("done") == 1
    assert frames[-1]["type"] == "done"
    assert len({frame["run"] for frame in frames}) == 1
    assert ids(frames) == sorted(set(ids(frames)))
    return str(frames[0]["run"])
