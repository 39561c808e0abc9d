"""The limits of an MCP server, however it is reached.

Rules: a server is not trusted. An answer to no request ends it, and so do more messages outside of answers
than any client reads.
This file must never know transports, tools or calls.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import deque
from collections.abc import Collection

from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from cortexfs.core.manifest.mcp_server import login_at
from cortexfs.core.mcp_session import ELICITATION, ROOTS, SAMPLING

BURST, PER_SECOND = 2000, 500  # messages outside of answers
MAX_LATE = 1000  # cancelled requests that may still be answered
# The questions that servers ask clients which offer them, and the refusals when nobody answers.
QUESTIONS = {
    ELICITATION: "CortexFS cannot ask the user during this call; take the value as an input of the tool",
    SAMPLING: "CortexFS lets this server use no model, as no policy line allows sampling; return the text",
    ROOTS: "CortexFS lists no roots for this server, as no policy line allows it; take a path as an input",
}


FORBIDDEN = 403
_SCOPE = re.compile(r'error="?insufficient_scope.*scope="([\x21\x23-\x5b\x5d-\x7e ]{1,500})"|'
                    r'scope="([\x21\x23-\x5b\x5d-\x7e ]{1,500})".*error="?insufficient_scope')  # fmt: skip


class McpViolation(Exception):
    """The server broke a rule that every server keeps."""


class Judge:
    """Judges one connection. `why` is how it ended, once it has. `answered` are the questions that are
    answered."""

    def __init__(self, answered: Collection[str] = ()) -> None:
        self._answered = answered
        self.why = ""
        self.has_greeted = False
        self.has_exited = False  # a program, by itself
        self.refused = 0  # an HTTP status about the credentials
        self.challenge = ""  # and the header that says which ones the server wants
        self._requests: set[int | str] = set()
        self._late: deque[int | str | None] = deque(maxlen=MAX_LATE)
        self._allowance, self._at = float(BURST), time.monotonic()

    def sent(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            self._requests.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            number = (message.params or {}).get("requestId")  # it may be answered all the same
            if number in self._requests:
                self._requests.discard(number)
                self.gave_up(number)

    def gave_up(self, number: int | str | None) -> None:
        self._late.append(number)

    def refusal_of_credentials(self, server: str) -> str:
        """Returns the end of a sentence about an HTTP status, with the command that mends it."""
        login = login_at(server)
        if self.refused == FORBIDDEN and (match := _SCOPE.search(self.challenge)):
            scope = shlex.quote(match[1] or match[2])
            return f"wants more rights than your login has; run: {login} --scope {scope}"
        mend = f"log in ({login}), or check its headers and secrets"
        return f"answers HTTP {self.refused}; {mend}"

    def refusal(self, message: JSONRPCMessage) -> JSONRPCError | None:
        """Returns the refusal of a question that nobody here answers; None for any other message."""
        if not isinstance(message, JSONRPCRequest) or message.method in self._answered:
            return None
        if message.method not in QUESTIONS:
            return None
        error = ErrorData(code=INVALID_REQUEST, message=QUESTIONS[message.method])
        return JSONRPCError(jsonrpc="2.0", id=message.id, error=error)

    def is_wanted(self, message: JSONRPCMessage) -> bool:
        """Returns True if this message of the server's is passed on."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            self._pay()
            return True
        if message.id in self._requests:
            self._requests.discard(message.id)
            return True
        if message.id in self._late:
            return False
        raise McpViolation(f"answered the request {message.id!r}, which was never sent")

    def _pay(self) -> None:
        """Count a message outside of answers: their rate is limited."""
        now = time.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._at) * PER_SECOND) - 1
        self._at = now
        if self._allowance < 0:
            raise McpViolation("sends too many messages outside of answers")
