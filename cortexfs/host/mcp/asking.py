"""The questions of an MCP server: to the client of a session, or to the person for whom a call is made.

Main path: the SDK's client calls one of `callbacks`. The question is sent with a number (`put`), and waits
for `answer`. In a session a run of its own brings the answer. Elsewhere the call's thread passes the question
to the daemon (`of_call`), which answers only for the person of the call.

Rules: a question without a listener is refused with a sentence, and so is one of a session that ends. Nothing
here judges an answer: the server that asked has a schema for it.
This file must never know how a message reaches the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

from mcp.client.session import ClientRequestContext
from mcp_types import (
    INVALID_REQUEST,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Result,
)
from pydantic import BaseModel, ValidationError

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import ToolQuestion
from cortexfs.core.mcp_session import (
    ELICITATION,
    HANDSHAKE,
    QUESTIONS,
    ROOTS,
    SAMPLING,
    McpSession,
    ServerAnswer,
    ServerError,
    ServerMessage,
)
from cortexfs.core.safe_text import misfits
from cortexfs.host.call.runtime import Runtime

MAX_OPEN = 100  # questions at a time
MAX_MESSAGE = 8 << 10  # characters that a person has to read
LOOK_SECONDS = 1.0  # between two checks that the call which passes the question on still runs
OF_CALLS = frozenset({"elicitation"})  # asked in calls that belong to no session
_GONE = "no client or person can answer this question now"
R = TypeVar("R", bound=Result)


class Asking:
    """The questions of one connection."""

    def __init__(
        self,
        session: McpSession | None,
        put: Callable[[ServerMessage], bool],
        is_heard: Callable[[], bool],
        can: frozenset[str] = frozenset(),
    ) -> None:
        """`can` are the questions that policy allows the server in an agent's calls."""
        self._can = session.can if session else OF_CALLS | {HANDSHAKE} | can
        self._put = put
        self._is_heard = is_heard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[int, asyncio.Future[ServerAnswer]] = {}
        self._last = 0

    @property
    def answered(self) -> frozenset[str]:
        return frozenset(QUESTIONS[each] for each in QUESTIONS if each in self._can)

    def callbacks(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's client that declare which questions it answers."""
        self._loop = asyncio.get_running_loop()
        handlers = {
            "elicitation": ("elicitation_callback", self._elicit),
            "sampling": ("sampling_callback", self._sample),
            "roots": ("list_roots_callback", self._roots),
        }
        return dict(handlers[each] for each in handlers if each in self._can)

    @property
    def mode(self) -> Literal["legacy", "auto"]:
        """Returns the version to try first: by the newer one a server cannot ask on its own, as most do."""
        return "legacy" if HANDSHAKE in self._can else "auto"

    def answer(self, number: int, answer: ServerAnswer) -> None:
        """Called by the thread of a run."""

        def settle() -> None:
            if (future := self._open.get(number)) is not None and not future.done():
                future.set_result(answer)

        if number not in self._open or self._loop is None:
            raise Fault("ENOENT", f"no question {number} is open")
        self._loop.call_soon_threadsafe(settle)

    def of_call(self, server: str, message: ServerMessage, runtime: sdk.ToolRuntime) -> None:
        """Have this call's person answer. Runs in the call's thread, which may be cancelled."""
        answer = ServerAnswer(error=ServerError(INVALID_REQUEST, _GONE))
        try:
            answer = _answer_of_person(server, message, runtime)
        finally:
            with suppress(Fault):  # the server does not wait for an answer any more
                self.answer(message.id, answer)

    async def _elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return await self._request(ELICITATION, params, ElicitResult)

    async def _sample(
        self, _: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        answer = await self._request(SAMPLING, params, CreateMessageResultWithTools)
        if isinstance(answer, ErrorData) or isinstance(answer.content, list):
            return answer
        return CreateMessageResult.model_validate(answer.model_dump(by_alias=True), by_name=False)

    async def _roots(self, _: ClientRequestContext) -> ListRootsResult | ErrorData:
        return await self._request(ROOTS, None, ListRootsResult)

    async def _request(self, method: str, params: BaseModel | None, kind: type[R]) -> R | ErrorData:
        if len(self._open) >= MAX_OPEN:
            return ErrorData(code=INVALID_REQUEST, message=f"{MAX_OPEN} questions are open already")
        self._last += 1
        number = self._last
        future = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            fields = params.model_dump(by_alias=True, mode="json", exclude_none=True) if params else {}
            if not self._put(ServerMessage(method, fields, number)):
                return ErrorData(code=INVALID_REQUEST, message=_GONE)
            while not (await asyncio.wait([future], timeout=LOOK_SECONDS))[0]:
                if not self._is_heard():
                    return ErrorData(code=INVALID_REQUEST, message=_GONE)
            answer = future.result()
        finally:
            del self._open[number]
        if answer.error is not None:
            return ErrorData(code=answer.error.code, message=answer.error.message, data=answer.error.data)
        try:
            return kind.model_validate(answer.result or {}, by_name=False)
        except ValidationError as wrong:
            why = f"the client's answer is wrong: {misfits(wrong.errors())}"
            return ErrorData(code=INVALID_REQUEST, message=why)


def _answer_of_person(server: str, message: ServerMessage, runtime: sdk.ToolRuntime) -> ServerAnswer:
    params = message.params
    schema, url = params.get("requestedSchema"), params.get("url")
    question = ToolQuestion(method=message.method, params=params)
    if message.method == ELICITATION:
        question = ToolQuestion(str(params.get("message", ""))[:MAX_MESSAGE], schema, str(url) if url else "")
    try:
        answer = runtime.question(question) if isinstance(runtime, Runtime) else None
    except Fault as fault:
        return ServerAnswer(error=ServerError(INVALID_REQUEST, fault.message))
    if answer is None:
        where = f"ctx chat and ctx ask with an agent, or ctx mcp call {server}, on a terminal"
        why = f"this run of the tool cannot ask a person; to answer its questions, use {where}"
        return ServerAnswer(error=ServerError(INVALID_REQUEST, why))
    if answer.refused:
        return ServerAnswer(error=ServerError(INVALID_REQUEST, answer.refused))
    if message.method != ELICITATION:
        return ServerAnswer(answer.content)
    if answer.content is None:
        return ServerAnswer({"action": "decline"})
    return ServerAnswer({"action": "accept"} | ({} if url else {"content": answer.content}))
