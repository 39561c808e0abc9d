"""The messages of the daemon and an engine, a line of JSON each: the daemon sends `LoadRequest`, and
the engine `LoadReply` or `LoadFailure`.

Rules: the socket between them carries nothing else, and the engine ends with it. The key is sent
nowhere else, so that no command line, environment or log has it.
This file must never know the output of a model.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

MAX_LINE = 64 << 10  # a path may take much of it; no message is longer
MAX_WHY = 1000


class LoadRequest(msgspec.Struct, frozen=True):
    """Serve this file."""

    weights: str  # an absolute path
    name: str  # the name of the model in answers, in place of that path
    context: int  # tokens that each stream may hold
    streams: int  # answers that are generated at a time
    threads: int
    key: str


class LoadReply(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine answers on this port of 127.0.0.1, to clients with the key."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class LoadFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot serve the file. The reason says more than its exit status."""

    why: Annotated[str, Meta(max_length=MAX_WHY)]


Answer: TypeAlias = LoadReply | LoadFailure

decode_load = msgspec.json.Decoder(LoadRequest).decode
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
decode_answer = _answers.decode  # raises one of jsontext.UNREADABLE for any other line


def encode(message: LoadRequest | Answer) -> bytes:
    return msgspec.json.encode(message) + b"\n"
