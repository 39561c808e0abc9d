"""The table of active runs, their ids, and one log line for each run that has ended.

Every way to run an object (exec, sockets, agents) opens an `ObjectRun` here and closes it once.
"""

from __future__ import annotations

import os
import time

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import ENDS, Usage
from cortexfs.core.registry import is_own
from cortexfs.linux.subordinates import person_of
from cortexfs.state.run_logs import Logs

SOCKET = "socket"  # the source of a run that is a message in a session

_encode = msgspec.json.Encoder().encode


class RunLogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an object's log. It never holds inputs, outputs or secrets (abi.md 3.18)."""

    ts: str
    run: str
    uid: int
    source: str
    status: str
    ms: int
    bytes_in: int
    bytes_out: int
    code: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


_lines = msgspec.json.Decoder(RunLogLine)


class ObjectRun(msgspec.Struct, eq=False):
    """One run, from its first frame to its last."""

    id: str
    class_: str
    name: str
    uid: int
    source: str
    person: int  # for the limits of each user
    began: float = msgspec.field(default_factory=time.monotonic)
    bytes_in: int = 0
    bytes_out: int = 0
    usage: Usage | None = None

    def count(self, usage: Usage) -> None:
        """Add used tokens."""
        before = self.usage or Usage(input_tokens=0, output_tokens=0)
        self.usage = Usage(
            input_tokens=before.input_tokens + usage.input_tokens,
            output_tokens=before.output_tokens + usage.output_tokens,
        )


class Clock:
    """Returns the time in the format of logs. It keeps the part that stays the same for a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def text(self) -> str:
        now = time.time_ns()
        second, rest = divmod(now, 10**9)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{rest // 10**6:03}Z"


class Runs:
    def __init__(self, logs: Logs, per_user: int, messages_per_user: int | None = None) -> None:
        self._logs = logs
        # The limits: for calls, each a process or a thread, and for messages, each a task.
        self._most = {False: per_user, True: messages_per_user or per_user}
        # Unique for ever (abi.md 5.20): the start of the daemon, its pid, and the number of the run.
        self._prefix = f"r{time.time_ns() // 1000:x}-{os.getpid():x}"
        self._by_user: dict[tuple[int, bool], int] = {}
        self.active: dict[str, ObjectRun] = {}
        self.total = 0
        self.last_error = ""
        self._closing = False
        self._idle = trio.Event()
        self._clock = Clock()

    def new_id(self) -> str:
        self.total += 1
        return f"{self._prefix}-{self.total:x}"

    def open(self, class_: str, name: str, uid: int, source: str, id_: str | None = None) -> ObjectRun:
        if self._closing and source != SOCKET:  # a message that has begun is ended by its session
            raise Fault("EHOSTDOWN", "the daemon is shutting down and takes no new runs")
        key = (person := person_of(uid), source == SOCKET)
        count, most = self._by_user.get(key, 0), self._most[key[1]]
        if count >= most:
            raise Fault("EAGAIN", f"uid {uid} has {most} runs at once, which is the limit; try again")
        self._by_user[key] = count + 1
        run = ObjectRun(id_ or self.new_id(), class_, name, uid, source, person)
        self.active[run.id] = run
        return run

    async def has_ended(self, class_: str, name: str, uid: int, id_: str) -> bool:
        """Returns True if this user's log of the object has that run."""
        self._logs.flush()
        part = b'"run":' + _encode(id_)
        own = None if is_own((class_, name)) else uid
        line = await trio.to_thread.run_sync(self._logs.find, class_, name, part, own)
        return line is not None and _lines.decode(line).uid == uid

    async def drained(self) -> None:
        """Take no more runs, and wait until none is active."""
        self._closing = True
        if self.active:
            await self._idle.wait()

    def close(self, run: ObjectRun, fault: Fault | None = None) -> None:
        del self.active[run.id]
        key = (run.person, run.source == SOCKET)
        count = self._by_user[key] - 1
        if count:
            self._by_user[key] = count
        else:
            del self._by_user[key]
        if self._closing and not self.active:
            self._idle.set()
        code = fault.code if fault else None
        if fault and fault.code == "EPROTO":
            # All users can read this. Which object a user has run, and when, is private.
            self.last_error = "a run ended with EPROTO; the log of its object says which"
        line = RunLogLine(
            ts=self._clock.text(),
            run=run.id,
            uid=run.uid,
            source=run.source,
            status=ENDS.get(code, "error"),
            code=code,
            ms=round((time.monotonic() - run.began) * 1000),
            bytes_in=run.bytes_in,
            bytes_out=run.bytes_out,
            input_tokens=run.usage.input_tokens if run.usage else None,
            output_tokens=run.usage.output_tokens if run.usage else None,
        )
        data = _encode(line) + b"\n"
        self._logs.append(run.class_, run.name, data)
        if not is_own((run.class_, run.name)):  # the log of a user's own agent belongs to that user already
            self._logs.append(run.class_, run.name, data, run.uid)
