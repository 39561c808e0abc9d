"""A session of an MCP client with a server whose tools are in the mount, as `ctx mcp serve` and hosts tell it
to each other.

A program that runs the server's objects names the session in VARIABLE: a word of its own, then what its
client can do. Each session has its own connection to the server. In it an object's output is the server's
answer as it is (`ServerAnswer`), and notes of SOURCE are the server's messages.

Rules: a caller with a label has no session, as the answers to a server's questions are a person's. The object
`SERVER.mcp` takes a method of the protocol and its parameters. Two are ours: LISTEN goes on
until it is cancelled, and has what the server says outside of calls; ANSWER has what a client answers.
This file must never know who runs what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from cortexfs.core.errors import Fault

VARIABLE = "CTX_MCP_SESSION"
SOURCE = "mcp"
OBJECT = "mcp"  # SERVER.mcp
LISTEN, ANSWER, GREETING = "listen", "answer", "initialize"

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
QUESTIONS = {"elicitation": ELICITATION, "sampling": SAMPLING, "roots": ROOTS}
HANDSHAKE = "handshake"  # the client speaks a version that begins with one
CALL, LIST, GET_PROMPT = "tools/call", "tools/list", "prompts/get"
COMPLETE = "completion/complete"
# What a client may ask of a server beside its tools, and the capability that a server of it declares.
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
NAME_KEY = "cortexfs/object"  # in the _meta of a listed tool: the object that it is
_MISFIT = "structured content"  # in what the SDK says of an output that breaks its schema
_SPELT = re.compile(r"([A-Za-z0-9_-]{16,64}):([a-z]*(?:,[a-z]+)*)", re.ASCII)


class McpSession(NamedTuple):
    token: str
    can: frozenset[str]  # keys of QUESTIONS, and HANDSHAKE

    def __str__(self) -> str:
        return f"{self.token}:{','.join(sorted(self.can))}"


def session_of(spelt: str) -> McpSession | None:
    """The session that VARIABLE names; None where it names none."""
    if not spelt:
        return None
    if not (found := _SPELT.fullmatch(spelt)):
        raise Fault("EINVAL", f"{VARIABLE} is not what ctx mcp serve sets it to; unset it")
    return McpSession(found[1], frozenset(found[2].split(",")) & {*QUESTIONS, HANDSHAKE})


def refuse_agents(label: str, environment: Mapping[bytes, bytes]) -> None:
    """Refuse a session to a caller with a label."""
    if label and VARIABLE.encode() in environment:
        raise Fault("EACCES", f"an agent has no session with an MCP server; unset {VARIABLE}")


def of_output(error: BaseException) -> str:
    """A sentence's end where the SDK says that an answer breaks its tool's output schema, else nothing."""
    if _MISFIT not in str(error):
        return ""
    first = str(error).partition("\n")[0]
    return f"breaks its tool's output schema: {first.partition(': ')[2] or first}"


class ListedPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt of a server, in the schema of its object, where `prompts` has them."""

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
    """A question of the server's, or what it tells. Of a question, `id` is for its answer."""

    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    id: int = 0
