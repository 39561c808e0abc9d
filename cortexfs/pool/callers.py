"""The callers of the daemon, and its end of the looker. The looker is a program that looks up where callers
are (runner/cortexfs-looker.c), while the daemon reads their requests.

    look = Look(looker, connection, sandboxed)    as soon as a process has connected
    caller = await look.caller()                  when the caller has to be known
    look.close()

Rules: the caller's powers are read before its place. A process that was seen here may enter a user namespace,
in which /proc shows powers that do not count here. An answer has mostly arrived when it is wanted. The code
that wants an answer reads all that come before it; a task reads late answers. A waiting conversation is
called back, as another may read its answer. The channel is as old as the daemon, and a new looker gets the
questions that the last one has not answered.
This file must never know frames, policy, or the object of a call.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import trio

from cortexfs.core.errors import Fault, bare
from cortexfs.core.starts import LOOKER
from cortexfs.linux import syscalls
from cortexfs.peers import place
from cortexfs.peers.ancestry import KnownHost
from cortexfs.peers.caller import Caller, Peer, credentials, gone_fault, nobody
from cortexfs.peers.place import HERE, SeenPlace
from cortexfs.peers.prompt import notify
from cortexfs.pool.starter import Child, Starter

# The loop waits too, but at most for PROMPT_MS, and not again for PAUSE when that was not enough.
PROMPT_MS = 1
PAUSE = 0.1
AGAIN = 0.1  # seconds from the end of one looker to the start of another

_QUESTION = struct.Struct("=II")  # number, pid
# number, errno; mount and inode of the root; namespaces
_ANSWER = struct.Struct(f"=IIQQ{len(syscalls.NAMESPACES)}Q")
_RIGHTS = socket.CMSG_LEN(4)  # room for one descriptor

log = logging.getLogger("cortexfs")


class LookQuestion(msgspec.Struct, eq=False):
    number: int
    pid: int
    answer: SeenPlace | OSError | None = None
    notify: Callable[[], object] | None = None  # set while a conversation waits for it


class Looker:
    def __init__(self, starter: Starter, hosts: Mapping[int, KnownHost]) -> None:
        """`hosts` are the live hosts, by pid."""
        self._starter = starter
        self.hosts = hosts
        self._channel = starter.looks
        self._channel.setblocking(False)
        try:
            self._child = _alone(starter.start_now(LOOKER))
        except OSError as error:
            why = f"cortexfs-looker cannot be started: {error.strerror}; install the package again"
            raise Fault("EHOSTDOWN", why) from None
        self._here = place.here()
        self._ready = select.poll()
        self._ready.register(self._channel, select.POLLIN)
        self._number = 0
        self._questions: dict[int, LookQuestion] = {}
        self._unsent: deque[LookQuestion] = deque()
        self._late: set[int] = set()  # the numbers of questions whose answers the task reads
        self._is_late = trio.Event()
        self._waits_from = 0.0  # by Trio's clock

    async def run(self) -> None:
        """Read late answers, and start another looker when one has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self._replace()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        """Read late answers only: for each of the others this task would cost a turn of the loop."""
        while True:
            if not self._late:
                self._is_late = trio.Event()
                await self._is_late.wait()
            await trio.lowlevel.wait_readable(self._channel)
            if not self._hear(None):
                return

    async def _replace(self) -> None:
        while True:
            await self._child.ended.wait()
            log.error("cortexfs-looker has ended, and is started again")
            await trio.sleep(AGAIN)
            try:
                self._child = _alone(await self._starter.start(LOOKER))
            except OSError as error:
                log.error("cortexfs-looker cannot be started: %s", error.strerror)
                return
            # It may get a question twice. The second answer is ignored.
            self._unsent = deque(self._questions.values())
            self._late &= self._questions.keys()
            self._send()

    def ask(self, pid: int) -> LookQuestion:
        self._number = self._number + 1 & 0xFFFFFFFF
        question = self._questions[self._number] = LookQuestion(self._number, pid)
        if self._unsent or not self._try_send(question):
            self._unsent.append(question)
        return question

    def _try_send(self, question: LookQuestion) -> bool:
        try:
            self._channel.send(_QUESTION.pack(question.number, question.pid))
        except OSError:
            return False
        return True

    def _send(self) -> None:
        """Send as many questions as the channel takes. The others follow when there are answers."""
        while self._unsent and self._try_send(self._unsent[0]):
            self._unsent.popleft()

    async def place_of(self, question: LookQuestion) -> SeenPlace:
        """Returns the place of the process. Raises OSError if it is gone, or hidden from the daemon."""
        if not self._comes_soon(question):
            await notify(partial(self._call_back, question))
        if isinstance(question.answer, OSError):
            raise question.answer
        assert question.answer is not None
        return question.answer

    def _comes_soon(self, question: LookQuestion) -> bool:
        """Block for a moment, and the loop with it, as two turns of the loop would take longer."""
        self._hear(question)
        if question.answer is None and (now := trio.current_time()) >= self._waits_from:
            self._ready.poll(PROMPT_MS)
            self._hear(question)
            if question.answer is None:
                self._waits_from = now + PAUSE
        return question.answer is not None

    def _hear(self, awaited: LookQuestion | None) -> bool:
        """Take the answers that are there, up to the awaited one. Returns False at the end of the channel."""
        with suppress(OSError):
            while awaited is None or awaited.answer is None:
                data, ancillary, _, _ = self._channel.recvmsg(_ANSWER.size, _RIGHTS, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    return False
                self._take(data, array("i", ancillary[0][2]) if ancillary else ())
        if self._unsent:
            self._send()
        return True

    def _call_back(self, question: LookQuestion, notify: Callable[[], object]) -> None:
        if question.answer is not None:
            notify()
            return
        question.notify = notify
        self._note_late(question)

    def _note_late(self, question: LookQuestion) -> None:
        self._late.add(question.number)
        self._is_late.set()

    def _take(self, data: bytes, rights: Sequence[int]) -> None:
        number, error, *numbers = _ANSWER.unpack(data)
        question = self._questions.pop(number, None)
        self._late.discard(number)
        if question is None:
            _close(rights)
        elif error:
            question.answer = OSError(error, os.strerror(error))
        else:
            mount, inode, *namespaces = numbers
            is_here = (*numbers,) == self._here
            where = HERE if is_here else place.of((*namespaces,), (mount, inode))
            question.answer = SeenPlace(where, rights[0] if rights else None)
        if question is not None and question.notify is not None:
            question.notify()

    def forget(self, question: LookQuestion) -> None:
        """Drop the question. Its answer holds a directory, so it is taken, and closed, now if that can be."""
        if question.answer is None and not self._comes_soon(question):
            self._note_late(question)
        self._questions.pop(question.number, None)
        if isinstance(question.answer, SeenPlace):
            question.answer.close()


class Look:
    def __init__(
        self, looker: Looker, connection: socket.socket, sandboxed: Callable[[int], bool] = nobody
    ) -> None:
        self._looker = looker
        self._peer: Peer | Fault
        self._question: LookQuestion | None = None
        try:
            self._peer = Peer(connection, credentials(connection), looker.hosts, sandboxed)
            self._question = looker.ask(self._peer.pid)
        except Fault as fault:
            self._peer = bare(fault)
        except OSError as error:
            self._peer = gone_fault(error)

    def close(self) -> None:
        if self._question:
            self._looker.forget(self._question)
        if isinstance(self._peer, Peer):
            self._peer.close()

    async def caller(self) -> Caller:
        """Returns the caller. Raises Fault EACCES or ESRCH if it is not admitted or not known for certain."""
        if isinstance(self._peer, Fault):
            raise self._peer
        assert self._question
        try:
            seen_place = await self._looker.place_of(self._question)
            self._question = None
            return self._peer.caller(seen_place)
        except OSError as error:
            raise gone_fault(error) from error


def _alone(child_and_rights: tuple[Child, list[int]]) -> Child:
    """Returns the child. It prints nothing, so its rights are closed."""
    child, rights = child_and_rights
    _close(rights)
    return child


def _close(rights: Iterable[int]) -> None:
    for fd in rights:
        os.close(fd)
