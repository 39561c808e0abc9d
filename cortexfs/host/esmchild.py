"""One Deno process of an ESM plugin: requests and answers in lines, told apart by ids, over two pipes.

Main path: `Process.ask` writes a request, in its caller's thread where the pipe takes it at once, and waits
for what is sorted by ids: by itself, or by the process's own thread (`_serve`), as leading.py has it.
esmjs/bootstrap.js is the other side and lists the lines.

Rules: a line counts only with the secret that the process was given before any of the plugin's code ran; a
plugin that writes to the channel itself ends its process. Whoever does not let go of a cancelled call within
LET_GO_SECONDS gets no new ones and is killed when its others have ended; those of which it has not even
heard, as its one thread is stuck, are told EAGAIN. Ids are never used again.
This file must never know what tools or hooks are, nor what a plugin may do.
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host import children, linux
from cortexfs.host.esmcalls import OUTPUT_BYTES, Call, Said
from cortexfs.host.esmstate import Refused
from cortexfs.host.leading import Leading
from cortexfs.host.process import status_text
from cortexfs.host.runtime import sentence, shielded

LET_GO_SECONDS = 0.5  # a cancelled run must end within one
_LINE = OUTPUT_BYTES + (64 << 10)
_ATOMIC = select.PIPE_BUF  # what a pipe takes whole or not at all
_BACKLOG = 64 << 20  # for a process that does not read
_END_SECONDS = 0.2  # from the end of its output to its own
_LAST_READS = 16  # what a pipe of 1 MiB holds, the largest that a user may have
_CLONE_FS = 0x200  # unshare(2)

Answer: TypeAlias = Callable[[str, tuple[Any, ...]], Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Said).decode


class Start(NamedTuple):
    """How the process comes to be. `confine` is what the thread that starts it gives up before."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    umask: int
    confine: Callable[[], None]


class Process:
    def __init__(self, start: Start, answer: Answer, who: str) -> None:
        self._how = start
        self._answer = answer
        self._who = who
        self._secret = secrets.token_hex(32).encode()
        self._lock = threading.Lock()
        self._running = self._closing = False
        self._calls: dict[int, Call] = {}
        self._owed: dict[int, float] = {}  # calls that nobody wants any more, and when they must have ended
        self._heard_of: set[int] = set()  # of these, those whose cancel was heard
        self._last = 0
        self._outbox = bytearray()
        self._inbox = bytearray()
        self._ignored = 0
        self._fatal = ""
        self._broken = ""  # why what it says is not read any more
        self._is_mute = False
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._child = children.Child(with_errors=False)
        self._look = select.epoll()
        self._leading = Leading(self._child.stdout, self._look, self._taken)
        self._ended = threading.Event()

    # -- from threads of calls, which a cancellation may strike at any instruction

    @property
    def is_open(self) -> bool:
        return self._running and not self._closing

    @property
    def is_idle(self) -> bool:
        return not self._calls

    def start(self) -> None:
        answer: queue.SimpleQueue[OSError | Fault | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(answer,), daemon=True).start()
        error = answer.get()
        if isinstance(error, Fault):
            raise error
        if error is not None:
            raise Fault("EHOSTDOWN", f"{self._who}: Deno does not start: {sentence(error)}")

    def close(self) -> None:
        """It ends when its calls have."""
        with self._lock:
            self._closing = True
            self._wake()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def ask(self, request: dict[str, Any], seconds: float, runtime: sdk.ToolRuntime | None = None) -> Any:
        """The result; `Failed` with what the plugin threw, `Fault` where there is no answer.

        None of it was done where that is EAGAIN.
        """
        until = time.monotonic() + seconds
        call = Call(self._leading.nudge)
        if runtime is not None:
            runtime.on_cancel(call.cancel)
        try:
            if runtime is None:  # the thread may be another call's, which is not to be shielded for this one
                self._begin(call, request)
            else:
                with shielded(runtime):
                    self._leading.lead(call.waits, until, partial(self._begin, call, request))
            return call.follow(runtime, until, self._leading)
        finally:
            try:
                self._leave(call)
            finally:
                self._leave(call)

    def send(self, message: dict[str, Any]) -> None:
        """What wants no answer."""
        with self._lock:
            if self.is_open:
                self._put(message)

    def _begin(self, call: Call, request: dict[str, Any]) -> None:
        with self._lock:
            if not self.is_open:
                raise Fault("EAGAIN", f"{self._who} ends")
            self._last += 1
            call.id = self._last
            self._calls[call.id] = call
            call.is_sent = True
            self._put({"id": call.id} | request)

    def _put(self, message: dict[str, Any]) -> None:
        line = _encode(message) + b"\n"
        if not self._outbox and len(line) <= _ATOMIC:
            try:
                os.write(self._child.stdin.fileno(), line)
            except BlockingIOError:
                pass
            except OSError:  # it ends, which its thread tells
                return
            else:
                return
        self._outbox += line
        self._wake()

    def _leave(self, call: Call) -> None:
        """The call is over for its caller. May be repeated."""
        with self._lock:
            if call.id not in self._calls:
                return
            if call.is_sent and not call.ended:
                self._owed[call.id] = time.monotonic() + LET_GO_SECONDS
                self._put({"cancel": call.id})
            if not call.ended or self._closing:
                self._wake()
            del self._calls[call.id]

    def _wake(self) -> None:
        if self._waker >= 0:
            os.eventfd_write(self._waker, 1)

    # -- the process's thread

    def _run(self, answer: queue.SimpleQueue[OSError | Fault | None]) -> None:
        started: list[OSError | Fault] = []
        thread = threading.Thread(target=self._spawn, args=(started,), daemon=True)
        thread.start()
        thread.join()
        if started:
            self._leading.stop()
            self._child.end()
            self._close_waker()
            self._ended.set()
            answer.put(started[0])
            return
        process = self._child.process
        assert process is not None
        for file in (self._child.stdout.fileno(), process.fileno(), self._waker):
            self._look.register(file, select.EPOLLIN)
        self._outbox += self._secret + b"\n"
        self._running = True
        answer.put(None)
        why = "ended"
        try:
            why = self._serve()
        except Fault as fault:
            why = fault.message
        except Exception as error:  # a bug of ours: it ends this process and its calls, not the host
            why = f"could not be served: {sentence(error)}"
        finally:
            self._end(why)

    def _spawn(self, started: list[OSError | Fault]) -> None:
        """In a thread of its own, as what it gives up is gone for good, and goes on to what it starts."""
        try:
            linux.unshare(_CLONE_FS)
            os.umask(self._how.umask)
            os.chdir(self._how.directory or "/")
            self._how.confine()
            self._child.start(self._how.argv, self._how.environment)
        except (OSError, Fault) as error:
            started.append(error)

    def _serve(self) -> str:
        """Sort what it says, until it is no more use; why that is."""
        while not self._broken:
            readable, gone = self._wait()
            if readable:
                self._leading.turn()
            if self._is_mute:
                return "ended" if gone or self._child.ends_within(_END_SECONDS) else "closed its output"
            if gone:
                self._leading.stop()
                for _ in range(_LAST_READS):
                    if not self._read():
                        break
                return "ended"
            with self._lock:
                self._write()
                self._look_for_the_overdue()
                if self._closing and not self._calls:
                    return "was not wanted any more"
        return self._broken

    def _wait(self) -> tuple[bool, bool]:
        process = self._child.process
        assert process is not None
        writable = self._child.stdin.fileno()
        with self._lock:
            waits = bool(self._outbox)
            due = min(self._owed.values(), default=None)
        if waits:
            self._look.register(writable, select.EPOLLOUT)
        left = None if due is None else max(0.0, due - time.monotonic()) + 0.001
        ready = {fd for fd, _ in self._look.poll(left)}
        if waits:
            self._look.unregister(writable)
        if self._waker in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._waker)
        return self._child.stdout.fileno() in ready, process.fileno() in ready

    def _write(self) -> None:
        """What it takes now."""
        if len(self._outbox) > _BACKLOG:
            raise Fault("EPROTO", "does not read what it is asked")
        try:
            while self._outbox:
                with memoryview(self._outbox) as view, view[: children.CHUNK] as some:
                    taken = os.write(self._child.stdin.fileno(), some)
                del self._outbox[:taken]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more; its end tells the calls
            self._outbox.clear()

    def _look_for_the_overdue(self) -> None:
        now = time.monotonic()
        overdue = [call for call, due in self._owed.items() if due <= now]
        if overdue:
            self._closing = True
            stuck = min((call for call in overdue if call not in self._heard_of), default=self._last)
            for call in self._calls.values():
                if call.id > stuck and not call.ended:  # lines are read in their order
                    call.ended = True
                    call.put(Fault("EAGAIN", f"{self._who} has not begun with it"))
            self._owed.clear()
            self._leading.nudge()

    def _taken(self) -> bool:
        """For whoever reads; what is wrong ends the process, and not him."""
        try:
            return self._read()
        except Fault as fault:
            self._broken = fault.message
        except Exception as error:  # a bug of ours: it ends this process and its calls, not the host
            self._broken = f"could not be served: {sentence(error)}"
        with self._lock:
            self._wake()
        return False

    def _read(self) -> bool:
        try:
            data = os.read(self._child.stdout.fileno(), children.CHUNK)
        except BlockingIOError:
            return False
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._hear(bytes(self._inbox) + line if self._inbox else line)
            self._inbox.clear()
        self._inbox += rest
        if len(self._inbox) > _LINE:
            raise Fault("EPROTO", f"said a line of over {OUTPUT_BYTES >> 20} MiB")
        self._is_mute = not data
        return bool(data)

    def _hear(self, line: bytes) -> None:
        if not line.startswith(self._secret):
            raise Fault("EPROTO", "wrote to the channel of its host")
        try:
            said = _decode(line[len(self._secret) :])
        except (ValueError, RecursionError) as error:
            raise Fault("EPROTO", f"said a line that is none: {sentence(error)}") from None
        if said.ask:
            self._reply(said)
        elif said.fatal is not None:
            self._fatal = said.fatal
        else:
            with self._lock:
                self._sort(said, len(line))

    def _sort(self, said: Said, size: int) -> None:
        if said.ack:
            self._heard_of |= {said.ack} & self._owed.keys()
            return
        call = self._calls.get(said.id)
        if call is not None and not call.ended:
            call.ended = said.is_last
            call.put(said, size)
        else:
            self._ignore(said, size)

    def _ignore(self, said: Said, size: int) -> None:
        """Words for a call that is over. While it has time to let go there may be any; later, no flood."""
        if said.id not in self._owed:
            self._ignored += size
        if said.is_last:
            self._owed.pop(said.id, None)
            self._heard_of.discard(said.id)
            if not self._owed:
                self._ignored = 0
        if self._ignored > _LINE:
            raise Fault("EPROTO", "goes on about calls that were cancelled")

    def _reply(self, said: Said) -> None:
        answer: dict[str, Any] = {"answer": said.ask}
        try:
            answer["value"] = self._answer(said.what, said.args)
        except Refused as refused:
            answer["error"] = str(refused)
        with self._lock:
            self._put(answer)

    def _end(self, why: str) -> None:
        self._child.kill()
        self._leading.stop()
        with self._lock:
            self._closing = True
            left, self._calls = [*self._calls.values()], {}
            self._child.end()
            self._close_waker()
        if why == "ended":
            status = self._child.status
            why = f"ended with {status_text(status) if status else 'exit status: 0'}"
        if self._fatal:
            why = f"{why}: {self._fatal}"
        for call in left:
            if not call.ended:
                call.put(Fault("EPROTO", f"{self._who} {why}"))
        if left or self._fatal:
            print(f"{self._who} {why}", file=sys.stderr)
        self._ended.set()

    def _close_waker(self) -> None:
        if self._waker >= 0:
            os.close(self._waker)
            self._look.close()
            self._waker = -1
