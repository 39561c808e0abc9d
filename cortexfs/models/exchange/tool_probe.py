"""Asks a model to call a tool, if neither its provider's listing nor its file tells that it can.

Main path: `able` sends one small request to each of the few models with unknown abilities, and `completed`
adds the results to the listing.

Rules: for commands and not for the daemon. Only servers with the most common format are asked, and only if
few models are unknown, as each request costs money or loads a model. A failed request proves nothing, and is
no failure. Answers are bounded.
This file must never know where a listing is kept.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from cortexfs.models.exchange.endpoint import authorisation
from cortexfs.models.providers.listing import BASIC, NATIVE, ListedModel
from cortexfs.models.providers.provider import Provider
from cortexfs.net import web

MOST = 3  # models
SECONDS = 60.0  # for each model, as a server may have to load it
MAX_BODY = 1 << 20
_FORMAT = "openai.chat"
_NAME = "current_time"
_ASKED = {
    "messages": [{"role": "user", "content": "What time is it? Call the tool, and say nothing else."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": _NAME,
                "description": "Says what time it is.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ],
    "max_tokens": 256,
    "temperature": 0,
}

# Raises one of web.FAILURES.
Post: TypeAlias = Callable[[str, dict[str, str], bytes], web.WebAnswer]


class _Function(msgspec.Struct):
    name: str


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def posted(url: str, headers: dict[str, str], body: bytes) -> web.WebAnswer:
    bounds = web.Bounds(MAX_BODY, SECONDS, redirects=0)
    answer = web.fetch(web.WebRequest("POST", url, headers, body), bounds, queue.SimpleQueue())
    assert answer is not None  # only a second holder of the queue could end the fetch
    return answer


def able(provider: Provider, key: str, found: Sequence[ListedModel], post: Post = posted) -> list[str]:
    """Returns the ids of models, listed or declared, that have called a tool."""
    abilities = {each.id: each.cap for each in found}
    every = dict.fromkeys((*provider.models, *abilities))
    unknown = [id_ for id_ in every if abilities.get(id_, BASIC) == BASIC]
    if provider.tools or provider.format != _FORMAT or len(unknown) > MOST:
        return []
    return [id_ for id_ in unknown if _calls(provider, key, id_, post)]


def completed(found: Sequence[ListedModel], able: Sequence[str]) -> list[ListedModel]:
    declared = [ListedModel(id_) for id_ in able if id_ not in {each.id for each in found}]
    return [
        replace(each, cap=(*each.cap, NATIVE)) if each.id in able else each for each in (*declared, *found)
    ]


def _calls(provider: Provider, key: str, model: str, post: Post) -> bool:
    headers = {"Content-Type": "application/json"} | provider.headers | authorisation(key, provider.format)
    url = f"{provider.base_url.rstrip('/')}/chat/completions"
    try:
        answer = post(url, headers, msgspec.json.encode({"model": model, **_ASKED}))
        reply = msgspec.json.decode(answer.body, type=_Reply)
    except (*web.FAILURES, RecursionError):
        return False
    called = [call.function.name for choice in reply.choices for call in choice.message.tool_calls or ()]
    return answer.status == 200 and _NAME in called
