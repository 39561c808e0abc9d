"""A session of the team as its stream tells it: one pass over the pieces, in the stream's order.

    log = TeamLog(key)
    log.take(machine, piece, key_of, stamp)     raises a Fault where the piece changes nothing

All machines make the same pass over the same pieces, so all know the same owner and the same bytes, whatever
any machine puts into the stream.

Rules: a piece begins where the one before it ends, and is its owner's. Another machine's begins with a line
that makes it the owner from there on, and that it has signed. The first line of all says who may. A log that
begins anew (the stream was lost) is anybody's who may be its owner.
This file must never know how pieces come.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.team import keys, messages, session_messages
from cortexfs.team.mapping import fits
from cortexfs.team.nats_wire import token, untoken
from cortexfs.team.session_messages import MOST, OwnerLine, origin_of, owner_of, owners_in

REMOVED = -1  # where the piece begins that ends a session
MAX_MAY = 256  # patterns of who may take a session


class LogKey(NamedTuple):
    """A session, as all machines name it: `user` is a name where it was begun."""

    user: str
    class_: str
    object: str
    session: str

    @property
    def origin(self) -> str:
        return origin_of(self.session)

    @property
    def words(self) -> str:
        return ".".join(map(token, (f"{self.user}@{self.origin}", self.class_, self.object, self.session)))

    @property
    def filter(self) -> str:
        return f"ctx.log.*.{self.words}"

    def subject(self, machine: str) -> str:
        return f"ctx.log.{machine}.{self.words}"

    @staticmethod
    def of(subject: str) -> tuple[str, LogKey]:
        """The machine that has said it, and the session; EPROTO where it is none."""
        words = subject.split(".")
        if len(words) != 7:
            raise Fault("EPROTO", "it is about no session")
        user, _, origin = untoken(words[3]).rpartition("@")
        key = LogKey(user, *map(untoken, words[4:]))
        if not user or key.origin != messages.check_machine(origin) or key.subject(words[2]) != subject:
            raise Fault("EPROTO", "it is about no session of the team")
        return words[2], key


class StreamPiece(msgspec.Struct, frozen=True, array_like=True):
    start: int  # in bytes of the log
    data: bytes


_pieces = msgspec.msgpack.Decoder(StreamPiece)


def piece_of(data: bytes) -> StreamPiece:
    return messages.decoded(_pieces, data, "it is no piece of a session")


def is_allowed(may: Sequence[str], user: str, machine: str) -> bool:
    """The first that fits counts."""
    for pattern in may:
        if fits(pattern.removeprefix("!"), user, machine):
            return not pattern.startswith("!")
    return False


class TeamLog:
    """Its attributes are what the pieces up to `sequence` have made of it."""

    def __init__(self, key: LogKey) -> None:
        self.key = key
        self.machine = ""  # whose it is
        self.epoch = 0
        self.may: list[str] = []
        self.size = 0
        self.last_id = 0
        self.sequence = 0  # in the stream, of the last message about it, whether it counted or not
        self._writer = ""  # who has said the last piece
        self.removed = 0  # when, in milliseconds, if it was

    def may_have(self, user: str, machine: str) -> bool:
        is_own = (user, machine) == (self.key.user, self.key.origin)
        return is_own or is_allowed(self.may, user, machine)

    def take(self, machine: str, piece: StreamPiece, key_of: Callable[[str], bytes], stamp: int) -> None:
        """`stamp` is the time at which that machine has signed it, in milliseconds."""
        if stamp <= self.removed:
            raise Fault("ESTALE", "it is of a session that was removed")
        if piece.start == REMOVED:
            if machine != self.machine:
                raise Fault("EACCES", "it is not that machine's to remove")
            self._begin_anew()
            self.removed = stamp
            return
        if piece.start != self.size or not piece.data or len(piece.data) > MOST:
            raise Fault("ESTALE", "it does not follow")
        if not piece.data.endswith(b"}\n"):
            raise Fault("EPROTO", "it does not end with an event")
        before = self.machine, self.epoch, self.may
        try:
            self._take_owners(machine, piece.data, key_of)
        except Fault:
            self.machine, self.epoch, self.may = before
            raise
        self.size += len(piece.data)
        self.last_id = session_messages.last_id(piece.data)
        self._writer = machine

    def _begin_anew(self) -> None:
        self.machine, self.epoch, self.size, self.last_id = "", 0, 0, 0  # `may` says who is told of that
        self._writer = ""

    def _take_owners(self, machine: str, data: bytes, key_of: Callable[[str], bytes]) -> None:
        first = owner_of(data[: data.index(b"\n")])
        if not self.size and first is None:
            raise Fault("EPROTO", "it does not begin with the line of its owner")
        is_new = first is not None and first.machine == machine
        if self.size and machine != self._writer and not is_new:
            raise Fault("EACCES", f"the session is on {self.machine}")
        for owner in owners_in(data):
            self._own(owner, key_of)
        if not self.may_have_machine(machine):
            raise Fault("EACCES", "that machine may not have it")

    def may_have_machine(self, machine: str) -> bool:
        """Whoever repairs a stream is one who may be the owner."""
        allowed = [each.rpartition("@")[2] for each in self.may if not each.startswith("!")]
        return machine in (self.key.origin, self.machine) or machine in allowed or "*" in allowed

    def _own(self, owner: OwnerLine, key_of: Callable[[str], bytes]) -> None:
        checked(owner, self.key, key_of(owner.machine))
        if owner.epoch != self.epoch + 1 or owner.user != self.key.user or len(owner.may) > MAX_MAY:
            raise Fault("EPROTO", "its owner does not follow the one before")
        if self.epoch == 0:
            if (owner.machine, owner.by) != (self.key.origin, self.key.user):
                raise Fault("EACCES", "it was not begun where its name says")
            self.may = owner.may
        elif not self.may_have(owner.by, owner.machine) or owner.may != self.may:
            raise Fault("EACCES", f"{owner.by}@{owner.machine} may not take it")
        self.machine, self.epoch = owner.machine, owner.epoch


def checked(owner: OwnerLine, key: LogKey, public: bytes) -> None:
    """EPROTO where that machine has not signed it for that session."""
    try:
        sealed = base64.b64decode(owner.proof, validate=True)
    except ValueError:  # also of a proof that is not ASCII, which is no binascii.Error
        raise Fault("EPROTO", "its owner has signed nothing") from None
    if keys.opened(public, key.filter, sealed) != owner.signed:
        raise Fault("EPROTO", "its owner has signed something else")


def owner_line(key: keys.Key, log: TeamLog, machine: str, by: str, may: list[str], id_: int) -> bytes:
    """The line that makes that machine the next owner."""
    line = OwnerLine(str(id_), machine, log.epoch + 1, log.key.user, by, may, "")
    proof = base64.b64encode(keys.seal(key, log.key.filter, line.signed)).decode()
    return msgspec.json.encode(msgspec.structs.replace(line, proof=proof)) + b"\n"
