"""A session of an MCP client with a server whose tools are in the mount. `ctx mcp serve` and hosts use these
values between them.

A program that runs the server's objects names the session in VARIABLE: a token, then the abilities of its
client. Each session has its own connection to the server. In a session, an object's output is the server's
unchanged answer (`ServerAnswer`), and notes of SOURCE are the server's messages.

Rules: a caller with a label has no session, as only a person may answer a server's questions. The object
`SERVER.mcp` takes a method of the protocol and its parameters. Two methods are ours: LISTEN runs until it is
cancelled, and passes on the server's messages outside of calls; ANSWER carries a client's answers.
This file must never know which caller runs which object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from cortexfs.core.errors import Fault

VARIABLE = "CTX_MCP_SESSION"
SOURCE = "mcp"
OBJECT = "mcp"  # as in SERVER.mcp
LISTEN, ANSWER, GREETING = "listen", "answer", "initialize"

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
QUESTIONS = {"elicitation": ELICITATION, "sampling": SAMPLING, "roots": ROOTS}
HANDSHAKE = "handshake"  # the client speaks a version of the protocol that begins with a handshake
CALL, LIST, GET_PROMPT = "tools/call", "tools/list", "prompts/get"
COMPLETE = "completion/complete"
# The methods that a client may call beside tools, with the capability that a server declares for each.
METHODS = {
    "ping": "",
    LIST: "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "resources/subscribe": "resources",
    "resources/unsubscribe": "resources",
    "prompts/list": "prompts",
    GET_PROMPT: "prompts",
    COMPLETE: "completions",
    "logging/setLevel": "logging",
}
NAME_KEY = "cortexfs/object"  # in the _meta of a listed tool: the name of its object
_MISFIT = "structured content"  # in the SDK's message for an output that breaks its schema
_FORM = re.compile(r"([A-Za-z0-9_-]{16,64}):([a-z]*(?:,[a-z]+)*)", re.ASCII)


class McpSession(NamedTuple):
    token: str
    can: frozenset[str]  # keys of QUESTIONS, and HANDSHAKE

    def __str__(self) -> str:
        return f"{self.token}:{','.join(sorted(self.can))}"


def session_of(text: str) -> McpSession | None:
    """Returns the session that the value of VARIABLE names, or None for an empty value."""
    if not text:
        return None
    if not (found := _FORM.fullmatch(text)):
        raise Fault("EINVAL", f"{VARIABLE} has a value that ctx mcp serve never sets; unset it")
    return McpSession(found[1], frozenset(found[2].split(",")) & {*QUESTIONS, HANDSHAKE})


def refuse_agents(label: str, environment: Mapping[bytes, bytes]) -> None:
    """Refuse a session to a caller with a label."""
    if label and VARIABLE.encode() in environment:
        raise Fault("EACCES", f"an agent has no session with an MCP server; unset {VARIABLE}")


def of_output(error: BaseException) -> str:
    """Returns the end of a sentence if the SDK reports a break of the tool's output schema, else nothing."""
    if _MISFIT not in str(error):
        return ""
    first = str(error).partition("\n")[0]
    return f"breaks its tool's output schema: {first.partition(': ')[2] or first}"


class ListedPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt of a server. The schema of the server's object lists its prompts as `prompts`."""

    name: str
    description: str = ""
    required: tuple[str, ...] = ()  # arguments
    optional: tuple[str, ...] = ()


class ServerError(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class ServerAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a session's run."""

    result: dict[str, Any] | None = None
    error: ServerError | None = None


class ServerMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question or a notification of the server. The answer to a question has the same `id`."""

    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    id: int = 0
