"""One connection to an MCP server, in a thread of its own that runs the SDK's client.

Main path: `Link.begin` starts it, and `Link.greeted` waits until the server has greeted and listed its tools.
A waiter that leaves does not end the start. `Link.call` asks a program from the tool's own thread. A call
over HTTP is passed to the connection's thread, and its messages are followed.

Rules: each failure is a Fault that names the server, and ends only the calls that it concerns. A session's
client may be asked the questions that it declares, and a call's person may be asked to fill a form
(asking.py).
This file must never know how a tool is called in the tree.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio
from mcp import Client, ClientSession, MCPError
from mcp_types import (
    CallToolResult,
    DiscoverResult,
    Implementation,
    InitializeResult,
    InputRequiredResult,
    ProgressNotification,
    ServerNotification,
    Tool,
    ToolListChangedNotification,
)

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import ListedPrompt, McpSession, ServerMessage
from cortexfs.host.mcp import direct, failures, http
from cortexfs.host.mcp.answers import PROGRESS, pass_on
from cortexfs.host.mcp.asking import Asking
from cortexfs.host.mcp.limits import Judge, McpViolation
from cortexfs.host.mcp.starting import ServerStart
from cortexfs.host.mcp.stdio import MAX_PROGRESS, Pipe
from cortexfs.linux import syscalls

CLOSE_SECONDS = 1.5
HEAR_SECONDS = 5.0  # to show that it still answers, when a call was given up
LOOK_SECONDS = 0.2  # the longest step of a wait that may be cancelled
LIST_PAUSE = 0.2  # between lists, for a server that changes all the time
T = TypeVar("T")


_Items: TypeAlias = "queue.SimpleQueue[ServerMessage | None]"  # None: no more come, or the call is cancelled
_Tell: TypeAlias = Callable[[ServerMessage], object]
_Work: TypeAlias = Callable[[Client, _Tell], Coroutine[Any, Any, T]]


class Link:
    """Open from `open` to `close`, or to the server's end.

    Its attributes are the SDK's client with its loop and thread, the way past them for short calls, and the
    receivers of the server's messages.
    """

    def __init__(
        self,
        target: McpTarget,
        changed: Callable[[list[Tool]], None],
        session: McpSession | None = None,
        umask: int = 0o077,
        can: frozenset[str] = frozenset(),
    ) -> None:
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # a server must not fill the daemon's log
        self.target = target
        self._info = Implementation(name="cortexfs", version=target.client)
        self._changed = changed
        self._umask = umask
        self._start = ServerStart()
        self.prompts: tuple[ListedPrompt, ...] = ()
        self._opened: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._is_session = session is not None
        self.asking = Asking(session, self._tell, self.is_heard, can)
        self._judge = Judge(self.asking.answered)
        self._pipe: Pipe | None = None
        self._direct: ClientSession | None = None
        self._closing, self._relist = asyncio.Event(), asyncio.Event()
        self._calls: list[_Items] = []  # the calls that run in the thread
        self._listener: _Items | None = None
        self._trial: Future[None] | None = None
        self.is_open = True
        self._thread = threading.Thread(target=self._run, daemon=True)

    # -- from the threads of calls

    def begin(self) -> None:
        self._thread.start()

    def greeted(self, tell: Callable[[str], object] = str) -> None:
        """Wait until the server has greeted; raises why it has not. `tell` gets its output meanwhile. Waits
        in short steps, so that a cancellation can strike."""
        line = ""
        while not self._opened.done():
            wait([self._opened], LOOK_SECONDS)
            if self._start.line != line and not self._opened.done():
                line = self._start.line
                tell(f"the MCP server {self.target.name} starts: {line}")
        self._opened.result()

    @property
    def has_greeted(self) -> bool:
        return self._opened.done() and self._opened.exception() is None

    def call(self, name: str, input: dict[str, Any], runtime: sdk.ToolRuntime) -> CallToolResult:
        state: str | None = None
        if self._direct is not None:
            first = self._direct_answer(
                self._direct.call_tool(name, input, allow_input_required=True), runtime
            )
            if not isinstance(first, InputRequiredResult):
                return first
            state = first.request_state  # the SDK's client answers its further questions

        def work(client: Client, tell: _Tell) -> Coroutine[Any, Any, CallToolResult]:
            async def progress(progress: float, total: float | None, message: str | None) -> None:
                fields = {"progress": progress, "total": total, "message": message}
                tell(
                    ServerMessage(
                        PROGRESS, {key: value for key, value in fields.items() if value is not None}
                    )
                )

            return client.call_tool(name, input, progress_callback=progress, request_state=state)

        return self._put(work, runtime)

    def request(self, method: str, params: dict[str, Any], runtime: sdk.ToolRuntime) -> dict[str, Any]:
        """Returns the answer to any other request of the protocol, unchanged."""
        request = direct.RawRequest(method=method, params=params)
        if self._direct is not None:
            result = self._direct_answer(self._direct.send_request(request, direct.RawResult), runtime)
        else:
            result = self._put(
                lambda client, _: client.session.send_request(request, direct.RawResult), runtime
            )
        return result.model_dump(by_alias=True, mode="json", exclude_unset=True)

    def listen(self, runtime: sdk.ToolRuntime) -> None:
        """Pass on the server's messages outside of calls, until the caller or the connection has gone."""
        items = self._listener = queue.SimpleQueue()
        runtime.on_cancel(lambda: items.put(None))
        while self.is_open and (message := items.get()) is not None:
            self._hear(runtime, message)

    @property
    def agreed(self) -> InitializeResult | DiscoverResult:
        """Returns what the server declared in its greeting."""
        assert self._client is not None
        agreed = self._client.session.initialize_result or self._client.session.discover_result
        assert agreed is not None
        return agreed

    def _direct_answer(self, work: Coroutine[Any, Any, T], runtime: sdk.ToolRuntime) -> T:
        """Returns a program's answer."""
        assert self._pipe is not None
        try:
            return direct.driven(work, partial(self._pipe.ask, runtime, partial(self._hear, runtime)))
        except sdk.ExecutionFailed:
            raise
        except Exception as error:  # the SDK may raise any class; the waiting call gets it
            raise self._failure(error) from None
        finally:
            # A program that hangs may be the reason why the call was given up.
            if runtime.cancelled and self._pipe is not None and self._loop is not None:
                with suppress(RuntimeError):
                    self._trial = asyncio.run_coroutine_threadsafe(self._try(), self._loop)

    def _put(self, work: _Work[T], runtime: sdk.ToolRuntime) -> T:
        items: _Items = queue.SimpleQueue()
        assert self._loop is not None
        try:
            going = asyncio.run_coroutine_threadsafe(self._call(work, items), self._loop)
        except RuntimeError:  # its loop has ended just now
            raise self.loss() from None
        runtime.on_cancel(lambda: items.put(None))
        going.add_done_callback(lambda _: items.put(None))
        try:
            while (message := items.get()) is not None:
                self._hear(runtime, message)
            if not going.done():
                raise sdk.ExecutionFailed("cancelled", "ECANCELED")
            return going.result()
        except CancelledError:  # by the end of the loop
            raise self.loss() from None
        finally:
            going.cancel()

    def _hear(self, runtime: sdk.ToolRuntime, message: ServerMessage) -> None:
        if message.id and not self._is_session:
            self.asking.of_call(self.target.name, message, runtime)
        else:
            pass_on(runtime, self.target.name, message, as_it_is=self._is_session)

    def is_heard(self) -> bool:
        return bool(self._calls or self._listener or (self._pipe and self._pipe.is_busy))

    def _tell(self, message: ServerMessage) -> bool:
        """Pass a message to a running call, or to the listener. Returns False if there is neither."""
        if self._pipe is not None and self._pipe.tell(message):
            return True
        items = self._calls[-1] if self._calls else self._listener
        if items is not None:
            _put_some(items, message)
        return items is not None

    def settle(self) -> None:
        """If in doubt, wait until it is known whether the server still answers."""
        if self._trial is not None:
            with suppress(TimeoutError, CancelledError):
                self._trial.result(HEAR_SECONDS + 1)

    def close(self) -> None:
        self.is_open = False
        if (items := self._listener) is not None:
            items.put(None)
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)

    def join(self) -> None:
        self._thread.join(CLOSE_SECONDS)

    # -- in the thread

    def _run(self) -> None:
        try:
            syscalls.unshare(syscalls.CLONE_FS)  # directory and umask are not those of the call that began it
            os.chdir("/")
            os.umask(self._umask)
            asyncio.run(self._main())
        except BaseException as error:  # no code above would report it to the callers
            self._refuse(error)
        finally:
            self.is_open = False
            if not self._opened.done():
                self._opened.set_exception(self.loss())
            if (items := self._listener) is not None:
                items.put(None)

    def _refuse(self, error: BaseException, *, is_fault: bool = False) -> None:
        """Report to waiters that there is no connection. It is closed first, or it would seem to be empty."""
        if not self._opened.done():
            self.is_open = False
            self._opened.set_exception(error if is_fault else self._failure(error))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve)
            tasks.start_soon(self._limit_start)
            if self.is_open:  # else it was closed before it had a loop
                await self._closing.wait()
            self.is_open = False
            tasks.cancel_scope.cancel()

    async def _limit_start(self) -> None:
        if why := await self._start.stalled():
            self._refuse(failures.fault_of(self.target.name, "EHOSTDOWN", why), is_fault=True)
            self._closing.set()

    async def _serve(self) -> None:
        try:
            try:
                await self._use(self.asking.mode)
            except Exception as error:  # as below
                if self._client is not None or not failures.is_refusal(error):
                    raise
                self._judge = Judge(self.asking.answered)
                await self._use("auto")  # the server speaks no version with a handshake
        except Exception as error:  # the SDK may raise any class; waiters for the connection get it
            self._refuse(error)
        finally:
            self._closing.set()

    async def _use(self, mode: str) -> None:
        self._pipe = Pipe(self.target, self._judge, self._start) if self.target.command else None
        transport = self._pipe or http.transport(self.target, self._judge, lambda: self.target.bearer)
        options = self.asking.callbacks() | {"mode": mode, "cache": None, "message_handler": self._take}
        if self._is_session:
            options["log_level"] = "debug"
        async with direct.HostClient(transport, client_info=self._info, **options) as client:
            self._client = client
            tools = await self._list(client)
            self.prompts = await direct.prompts(client)
            if self._pipe is not None:
                self._pipe.home.note_greeting()
            self._start.is_over = self._judge.has_greeted = True
            self._changed(tools)
            self._opened.set_result(None)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._follow, client)
                if client.protocol_version >= "2026":
                    tasks.start_soon(self._listen, client)
                if self._pipe is not None:
                    await self._pipe.ended.wait()
                    self.is_open = False
                    await asyncio.sleep(0)  # the calls learn of it first
                else:
                    await anyio.sleep_forever()
                tasks.cancel_scope.cancel()

    async def _list(self, client: Client) -> list[Tool]:
        pages = await direct.pages(client)
        if self._pipe is not None:
            self._direct = direct.session(self.agreed, self._info, pages, self.asking.callbacks())
        return [tool for page in pages for tool in page.tools]

    async def _take(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._relist.set()
        if isinstance(message, ServerNotification) and not isinstance(message, ProgressNotification):
            fields = message.model_dump(by_alias=True, mode="json", exclude_none=True)
            self._tell(ServerMessage(fields["method"], fields.get("params") or {}))

    async def _listen(self, client: Client) -> None:
        """From version 2026-07-28 on, a server reports changes only to clients that listen for them."""
        with suppress(Exception):  # a server without this feature never changes
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._relist.set()

    async def _follow(self, client: Client) -> None:
        while True:
            await self._relist.wait()
            self._relist.clear()
            with suppress(MCPError, McpViolation):  # the former list stays
                self._changed(await self._list(client))
            await asyncio.sleep(LIST_PAUSE)

    async def _call(self, work: _Work[T], items: _Items) -> T:
        assert self._client is not None
        self._calls.append(items)
        try:
            return await work(self._client, partial(_put_some, items))
        except Exception as error:  # the SDK may raise any class; the waiting call gets it
            raise self._failure(error) from None
        finally:
            self._calls.remove(items)

    async def _try(self) -> None:
        """End a server that does not answer any more, unless other calls may keep it busy."""
        assert self._client is not None
        with anyio.move_on_after(HEAR_SECONDS) as clock, suppress(Exception):  # any answer counts
            await self._client.list_tools()  # ping is gone from the protocol
        if clock.cancelled_caught and not (self._calls or (self._pipe and self._pipe.is_busy)):
            self._judge.why = "does not answer any more"
            self.is_open = False
            self._closing.set()

    # -- sentences

    def _failure(self, error: BaseException) -> Fault:
        fault, is_over = failures.failure(
            error, self.target.name, self._judge, is_program=self._pipe is not None
        )
        self.is_open = self.is_open and not is_over
        return fault

    def loss(self) -> Fault:
        self.is_open = False
        return failures.lost(self.target.name, self._judge, is_program=self._pipe is not None)


def _put_some(items: _Items, message: ServerMessage) -> None:
    """Queue a message. Questions are always queued; other messages only while there is room."""
    if message.id or items.qsize() < MAX_PROGRESS:
        items.put(message)
