"""The loop inside a host: take calls, turn them into inputs, run the tool, answer in messages.

The process is already the caller when this starts (host/confine/identity.py), so nothing here decides
permissions. Main path: `_work` takes a packet, and `_answer` runs one call. host/call/runtime.py is the
tool's view of the call.

Threads: the main thread only watches for callers that leave and for orphans that end. Every other thread is a
worker that waits for a call itself (leader and followers), so a call costs no hand-over. Each call has its
own working directory and umask, by unshare(CLONE_FS): a tool may use relative paths although other calls have
other directories.

Rules: a call is cancelled at most once, and never after `_dismiss`, so a cancellation hits its own call or
none. If a tool has closed or replaced the host's descriptors, the host ends itself.
This file must never know of FUSE, the tree, frames or policy.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls, jsontext, wire
from cortexfs.core.arguments import parse
from cortexfs.core.errors import Fault, code_of
from cortexfs.host import loaders
from cortexfs.host.call import bugs, dry_runs, wear
from cortexfs.host.call.runtime import (
    STEP,
    Runtime,
    ToolCancelled,
    aside,
    raise_again,
    sentence,
    shielded,
)
from cortexfs.host.call.validation import Validator
from cortexfs.linux import syscalls
from cortexfs.tools.support.locked import locked

SPARE_WORKERS = 4
USUAL_UMASK = 0o022  # for a describing host, which has no caller's
BUILTIN = "builtin"  # the plugin of the built-in tools; a thread waits for each of its children
_ROBBED = (errno.EBADF, errno.ENOTSOCK)
_WNOTHREAD = 0x20000000  # waitpid(2): no children of other threads
_CUT = int(socket.MSG_CTRUNC)  # a plain int: the operators of socket's flags are Python code
_DRAINED = 4096


def serve(control: socket.socket, plugin: hostcalls.Plugin) -> NoReturn:
    """Answer calls until the daemon closes the control socket, or a fault ends the process."""
    sys.setswitchinterval(0.001)  # a busy tool must not delay other calls' answers by 5 ms
    os.dup2(2, 1)  # a tool's prints are for its author, in the daemon's log
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper, as ours are
    sys.unraisablehook = raise_again
    host = _Host(control, plugin)
    host.start_worker()
    host.watch()


class _Host:
    def __init__(self, control: socket.socket, plugin: hostcalls.Plugin) -> None:
        self._control = control
        self._plugin = plugin
        self._lock = threading.Lock()
        self._waiting = 0
        self._calls: dict[int, Runtime] = {}
        self._leavers = select.epoll()
        # Another plugin may wait for its own children, as it likes.
        self._adopted = Adopted(self._leavers) if plugin.name == BUILTIN else None
        self._tools: dict[str, tuple[sdk.Tool, Validator]] | None = None
        self._trials = dry_runs.HostDryRuns()
        self._loading = threading.Lock()
        self._wear: wear.Wear | None = None  # since its tools were loaded

    # -- threads

    def start_worker(self) -> None:
        with self._lock:
            self._waiting += 1
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # no more threads: calls wait until a worker has ended its own
            with self._lock:
                self._waiting -= 1

    def watch(self) -> NoReturn:
        """Cancel each call whose caller has left or half-closed, and reap the orphans of this host."""
        while True:
            for number, _ in self._leavers.poll():
                if self._adopted is not None and number == self._adopted.number:
                    with self._lock:
                        self._adopted.reap()
                        self._end_orphans()
                    continue
                with self._lock:
                    runtime = self._calls.get(number)
                    # Meanwhile another call may have got the number.
                    has_left = runtime is not None and _has_left(number)
                if runtime is not None and has_left:
                    aside(runtime.interrupt)  # a plugin's callback may block, and other callers leave, too

    def _work(self) -> None:
        while True:
            rights, is_complete = self._next()
            with self._lock:
                self._waiting -= 1
                last = not self._waiting
            if last:
                self.start_worker()
            try:
                self._answer(rights, is_complete)
            except BaseException:  # a host short of a worker is broken: it logs why and ends
                traceback.print_exc()
                os._exit(os.EX_SOFTWARE)
            with self._lock:
                if self._waiting >= SPARE_WORKERS:
                    return
                self._waiting += 1

    def _next(self) -> tuple[list[int], bool]:
        """Returns the descriptors of the next call, and True if none was lost."""
        try:
            # Unshare from threads that an earlier call left behind, too. The directory is no caller's, as it
            # could then not be unmounted.
            syscalls.unshare(syscalls.CLONE_FS)
            os.chdir("/")
            data, rights, flags = syscalls.receive(self._control, 1, 2)
        except OSError:
            os._exit(os.EX_OSERR)
        if not data:
            loaders.leave()
        return list(rights), not flags & _CUT

    # -- one call

    def _answer(self, rights: list[int], is_complete: bool) -> None:
        """Run one call, and leave nothing of it behind: no descriptor, no directory, no cancellation."""
        if not rights:
            return  # no room for the call itself: the daemon sees it end
        runtime = Runtime(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, rights[0]))
        try:
            self._attempt(runtime, rights[1:], is_complete)
        except ToolCancelled:
            pass
        except OSError as error:  # the daemon has closed the call: nobody awaits an answer
            if error.errno in _ROBBED:
                raise
        finally:
            try:
                self._dismiss(runtime)
            except ToolCancelled:  # at most one comes, so it cannot come again
                self._dismiss(runtime)
            runtime.unwatch()
            runtime.close()
            for number in rights[1:]:
                os.close(number)

    def _attempt(self, runtime: Runtime, rights: list[int], is_complete: bool) -> None:
        try:
            if not is_complete:
                raise Fault("EMFILE", "the plugin's host has too many files open")
            self._admit(runtime)
            self._run(runtime, rights)
        except BaseException as error:  # a tool may raise anything, SystemExit too; its run ends with it
            runtime.fail(error, partial(bugs.log_bug, self._plugin, error))

    def _admit(self, runtime: Runtime) -> None:
        number = runtime.stream.fileno()
        locked(self._lock, partial(self._calls.__setitem__, number, runtime))
        runtime.unwatch = partial(self._unwatch, runtime)
        runtime.is_worn = partial(self._is_worn, runtime)
        self._leavers.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _is_worn(self, runtime: Runtime) -> bool:
        """Returns True if this host is worn after this call. A copy of the call's descriptor gets the lowest
        free number. It must not stay: the daemon would wait for the end of a call that has it open."""
        try:
            with shielded(runtime):
                os.close(lowest := os.dup(runtime.stream.fileno()))
            is_doubtful = lowest > wear.DESCRIPTORS or threading.active_count() > wear.THREADS
        except OSError:
            is_doubtful = True
        return self._wear is not None and self._wear.is_worn(len(self._calls) - 1, is_doubtful)

    def _unwatch(self, runtime: Runtime) -> None:
        with suppress(OSError):
            self._leavers.unregister(runtime.stream)
        runtime.unwatch = object

    def _dismiss(self, runtime: Runtime) -> None:
        """Forget the call, and any cancellation that was still on its way to this thread."""
        locked(self._lock, partial(self._forget, runtime.stream.fileno()))
        runtime.end()

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Leave no process of a built-in tool that has left its group (abi.md 4.22). Called with the lock."""
        if self._adopted is not None and not self._calls:
            self._adopted.kill()

    def _run(self, runtime: Runtime, rights: list[int]) -> None:
        request = runtime.request()
        if isinstance(request, hostcalls.CallRequest):
            return self._call(request, runtime, rights)
        if isinstance(request, hostcalls.Describe):
            os.umask(USUAL_UMASK)
            runtime.send(wire.message(wire.DESCRIPTORS, self._descriptions(request.unlike, runtime)))
        elif isinstance(request, hostcalls.Enter):
            _enter(request.path)
        elif isinstance(request, hostcalls.Reset):
            self._plugin = msgspec.structs.replace(self._plugin, target=request.target)
            loaders.reset(self._plugin)
        else:
            targets = [os.path.realpath(path) for path in request.paths]
            runtime.send(wire.message(wire.DESCRIPTORS, msgspec.json.encode(targets)))
        runtime.done()

    def _call(self, request: hostcalls.CallRequest, runtime: Runtime, rights: list[int]) -> None:
        os.umask(request.umask & 0o777)  # processes that its plugin starts may keep it
        if self._tools is None:
            loaders.begin(self._plugin, runtime.emit_progress)
        tool, validator = self._tool(request.invocation.tool_name, request.environment)
        _stand(rights, request)
        runtime.begin(request)
        if news := loaders.news(tool):
            runtime.send(wire.message(wire.DESCRIPTORS, news.encode()))
        dry = False
        if request.input is not None:
            value = jsontext.json_object(request.input)
        else:
            args, dry = dry_runs.parted(tool, validator.schema, request.args or ())
            value = parse.shaped_input(args, validator.shape, runtime.read_input)
        validator.check(value)
        if isinstance(request, hostcalls.ShownCallRequest):
            value = _changed_input(value, validator, runtime)
        if dry:
            runtime.invocation = runtime.invocation._replace(dry_run=True)
        else:
            self._trials.admit(tool, value)
        result = sdk.run(tool, value, runtime)
        if dry:
            self._trials.ended(tool, value, result)  # a client that sees the end may call at once
        runtime.done(result)

    def _descriptions(self, unlike: str, runtime: Runtime) -> bytes:
        while True:
            every = (tool for tool, _ in self._load_tools(None).values())
            tools = [loaders.described(tool) for tool in every if loaders.is_described(tool)]
            answer = b"[" + b",".join(tools) + b"]"
            if hostcalls.mark(answer) != unlike:
                return answer
            loaders.await_change(self._plugin, runtime)
            if runtime.cancelled:
                raise ToolCancelled

    def _tool(self, name: str, environment: dict[bytes, bytes]) -> tuple[sdk.Tool, Validator]:
        try:
            return self._load_tools(environment)[name]
        except KeyError:
            raise Fault("ENOENT", f"the plugin {self._plugin.name} no longer has a tool {name}") from None

    def _load_tools(self, environment: dict[bytes, bytes] | None) -> dict[str, tuple[sdk.Tool, Validator]]:
        if self._tools is None or loaders.has_changed(self._plugin):
            return locked(self._loading, partial(self._loaded_now, environment), STEP)
        return self._tools

    def _loaded_now(self, environment: dict[bytes, bytes] | None) -> dict[str, tuple[sdk.Tool, Validator]]:
        if self._tools is None or loaders.has_changed(self._plugin):
            self._tools = loaders.loaded(self._plugin, environment)
            self._wear = wear.Wear()
        return self._tools


def _changed_input(value: dict[str, Any], validator: Validator, runtime: Runtime) -> dict[str, Any]:
    """Returns the input as plugins changed it. Raises Fault if it is no valid input of this tool any more."""
    if (answer := runtime.show(value)) is None:
        return value
    plugin, data = answer
    try:
        changed = jsontext.json_object(data)
        validator.check(changed)
    except Fault as fault:
        raise Fault(fault.code, f"{fault.message} (the plugin {plugin} has changed the input)") from None
    return changed


def _has_left(number: int) -> bool:
    look = select.poll()
    look.register(number, select.POLLRDHUP)
    return bool(look.poll(0))


def _stand(rights: list[int], call: hostcalls.CallRequest) -> None:
    """Enter the caller's working directory, for this thread alone."""
    if call.directory:
        _enter(call.directory)
    else:
        try:
            os.fchdir(rights[0])
        except (OSError, IndexError):  # without rights, the caller could not open it either
            why = "you may not enter your working directory; change to another one"
            raise Fault("EACCES", why) from None


def _enter(path: str) -> None:
    try:
        os.chdir(path)
    except (OSError, ValueError) as error:
        code = code_of(error.errno) if isinstance(error, OSError) else "EINVAL"
        raise Fault(code, f"cwd: {sentence(error)}") from None


class Adopted:
    """Orphans that the kernel gives to a host, as their subreaper: they are reaped when they end, and killed
    when no call of the host goes on.

    If a command ends before its child, as it does when cancelled, the child goes to the command's host. Only
    the host waits for it, and a zombie counts among a host's processes. The kernel gives orphans to the main
    thread, and a tool's child belongs to the thread that started it. So the main thread, which alone may make
    and reap, reaps its own children and takes no tool's status away.
    """

    def __init__(self, poller: select.epoll) -> None:
        # A signal may interrupt any thread, but this pipe always wakes the main thread.
        self.number, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller.register(self.number, select.EPOLLIN)

    def reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.number, _DRAINED)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG | _WNOTHREAD)[0]:
                pass

    def kill(self) -> None:
        """Kill them. Their own children come to the host when these are reaped. May run in any thread."""
        with suppress(OSError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # fails if there is none: it is fast
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for pid in file.read().split():
                    with suppress(OSError):  # a process of another user stays
                        os.kill(int(pid), signal.SIGKILL)
