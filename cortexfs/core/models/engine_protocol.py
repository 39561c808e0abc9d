"""The messages of the daemon and an engine, a line of JSON each:
`LoadRequest` down, `LoadReply` or `LoadFailure` up.

Rules: the socket between them carries nothing else, and its end is the end of the engine. The key
travels here and nowhere else, so that no command line, environment or log has it.
This file must never know what a model says.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

MAX_LINE = 64 << 10  # a path may take much of it; more is no line of ours
MAX_WHY = 1000


class LoadRequest(msgspec.Struct, frozen=True):
    """Serve this file."""

    weights: str  # an absolute path
    name: str  # what the model is called in answers, in place of that path
    context: int  # tokens that each stream may hold
    streams: int  # answers that are made at a time
    threads: int
    key: str


class LoadReply(msgspec.Struct, frozen=True, tag="loaded"):
    """It answers on this port of 127.0.0.1 to those who know the key."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class LoadFailure(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot, for a reason that is worth more than its exit status."""

    why: Annotated[str, Meta(max_length=MAX_WHY)]


Answer: TypeAlias = LoadReply | LoadFailure

decode_load = msgspec.json.Decoder(LoadRequest).decode
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
decode_answer = _answers.decode  # raises one of jsontext.UNREADABLE for what is neither


def encode(said: LoadRequest | Answer) -> bytes:
    return msgspec.json.encode(said) + b"\n"
