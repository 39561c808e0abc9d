"""A session of the team, from its stream: one pass over the pieces, in the stream's order.

    log = TeamLog(key)
    log.take(machine, piece, key_of, stamp)     raises a Fault where the piece changes nothing

All machines make the same pass over the same pieces. So all get the same owner and the same bytes, whatever
any machine puts into the stream.

Rules: a piece begins where the one before it ends, and comes from the owner. A piece from another machine
begins with a line, signed by that machine, that makes it the new owner. The first line of all names the users
who may take the session. If the stream was lost, any machine that may own the session may begin the log anew.
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

REMOVED = -1  # the start of the piece that removes a session
MAX_MAY = 256  # patterns of users who may take a session


class LogKey(NamedTuple):
    """A session, as all machines name it: `user` is a name on the machine where it was begun."""

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
        """Returns the sending machine, and the session. Raises EPROTO if the subject has none."""
        words = subject.split(".")
        if len(words) != 7:
            raise Fault("EPROTO", "its subject names no session")
        user, _, origin = untoken(words[3]).rpartition("@")
        key = LogKey(user, *map(untoken, words[4:]))
        if not user or key.origin != messages.check_machine(origin) or key.subject(words[2]) != subject:
            raise Fault("EPROTO", "its subject names no session of the team")
        return words[2], key


class StreamPiece(msgspec.Struct, frozen=True, array_like=True):
    start: int  # in bytes of the log
    data: bytes


_pieces = msgspec.msgpack.Decoder(StreamPiece)


def piece_of(data: bytes) -> StreamPiece:
    return messages.decoded(_pieces, data, "it is not a valid piece of a session")


def is_allowed(may: Sequence[str], user: str, machine: str) -> bool:
    """Returns True if the user may take it. The first pattern that fits decides."""
    for pattern in may:
        if fits(pattern.removeprefix("!"), user, machine):
            return not pattern.startswith("!")
    return False


class TeamLog:
    """Its attributes are the state of the session after the pieces up to `sequence`."""

    def __init__(self, key: LogKey) -> None:
        self.key = key
        self.machine = ""  # its owner
        self.epoch = 0
        self.may: list[str] = []
        self.size = 0
        self.last_id = 0
        self.sequence = 0  # in the stream, of the last message about it, valid or not
        self._writer = ""  # the machine that sent the last piece
        self.removed = 0  # the time of its removal, in milliseconds, or 0

    def may_have(self, user: str, machine: str) -> bool:
        is_own = (user, machine) == (self.key.user, self.key.origin)
        return is_own or is_allowed(self.may, user, machine)

    def take(self, machine: str, piece: StreamPiece, key_of: Callable[[str], bytes], stamp: int) -> None:
        """Take in a piece. `stamp` is the time of its machine's signature, in milliseconds."""
        if stamp <= self.removed:
            raise Fault("ESTALE", "its session was removed after it was sent")
        if piece.start == REMOVED:
            if machine != self.machine:
                raise Fault("EACCES", "only the machine of the session may remove it")
            self._begin_anew()
            self.removed = stamp
            return
        if piece.start != self.size or not piece.data or len(piece.data) > MOST:
            raise Fault("ESTALE", "it does not continue the log")
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
        self.machine, self.epoch, self.size, self.last_id = "", 0, 0, 0  # `may` stays, for news of that
        self._writer = ""

    def _take_owners(self, machine: str, data: bytes, key_of: Callable[[str], bytes]) -> None:
        first = owner_of(data[: data.index(b"\n")])
        if not self.size and first is None:
            raise Fault("EPROTO", "it does not begin with an owner line")
        is_new = first is not None and first.machine == machine
        if self.size and machine != self._writer and not is_new:
            raise Fault("EACCES", f"the session is on {self.machine}")
        for owner in owners_in(data):
            self._own(owner, key_of)
        if not self.may_have_machine(machine):
            raise Fault("EACCES", "that machine may not have the session")

    def may_have_machine(self, machine: str) -> bool:
        """Returns True if this machine may be the owner, and so may repair a lost stream."""
        allowed = [each.rpartition("@")[2] for each in self.may if not each.startswith("!")]
        return machine in (self.key.origin, self.machine) or machine in allowed or "*" in allowed

    def _own(self, owner: OwnerLine, key_of: Callable[[str], bytes]) -> None:
        checked(owner, self.key, key_of(owner.machine))
        if owner.epoch != self.epoch + 1 or owner.user != self.key.user or len(owner.may) > MAX_MAY:
            raise Fault("EPROTO", "its owner line does not follow the line before")
        if self.epoch == 0:
            if (owner.machine, owner.by) != (self.key.origin, self.key.user):
                raise Fault("EACCES", "its first owner is not the user and machine of its name")
            self.may = owner.may
        elif not self.may_have(owner.by, owner.machine) or owner.may != self.may:
            raise Fault("EACCES", f"{owner.by}@{owner.machine} may not take the session")
        self.machine, self.epoch = owner.machine, owner.epoch


def checked(owner: OwnerLine, key: LogKey, public: bytes) -> None:
    """Raises EPROTO if that machine has not signed the line for that session."""
    try:
        sealed = base64.b64decode(owner.proof, validate=True)
    except ValueError:  # or a proof that is not ASCII, which is no binascii.Error
        raise Fault("EPROTO", "its owner line has no valid signature") from None
    if keys.opened(public, key.filter, sealed) != owner.signed:
        raise Fault("EPROTO", "the signature of its owner line is of another line")


def owner_line(key: keys.Key, log: TeamLog, machine: str, by: str, may: list[str], id_: int) -> bytes:
    """Returns the line that makes that machine the next owner."""
    line = OwnerLine(str(id_), machine, log.epoch + 1, log.key.user, by, may, "")
    proof = base64.b64encode(keys.seal(key, log.key.filter, line.signed)).decode()
    return msgspec.json.encode(msgspec.structs.replace(line, proof=proof)) + b"\n"
