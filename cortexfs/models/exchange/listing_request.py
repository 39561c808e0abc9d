"""Requests the list of a provider's models: one plain HTTPS request, for commands and not for the daemon.

Rules: it needs no library of a vendor. No redirection is followed, as the key goes with the request. The
answer is bounded, and a failure is the same Fault as for a model's answer.
This file must never know where a listing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias
from urllib.parse import quote

from cortexfs.core.errors import Fault
from cortexfs.models.exchange import failures
from cortexfs.models.exchange.endpoint import authorisation
from cortexfs.models.providers.listing import MAX_BODY, MAX_MODELS, ListedModel, decode
from cortexfs.models.providers.provider import Provider
from cortexfs.net import web

SECONDS = 20.0
PAGE = 1000


# Raises one of web.FAILURES.
Get: TypeAlias = Callable[[str, dict[str, str]], web.WebAnswer]


def web_page(url: str, headers: dict[str, str]) -> web.WebAnswer:
    return web.get(url, headers, web.Bounds(MAX_BODY + 1, SECONDS, redirects=0))


def models(name: str, provider: Provider, key: str, get: Get = web_page) -> list[ListedModel]:
    """Returns all models that a provider lists."""
    if provider.needs_key and not key:
        raise failures.no_key(name)
    rows: list[ListedModel] = []
    after = ""
    headers = {"Accept": "application/json"} | provider.headers | authorisation(key, provider.format)
    while True:
        page, after_next = decode(_body(name, key, partial(get, _address(provider, after), headers)))
        rows += page
        if not after_next or after_next == after or not page or len(rows) >= MAX_MODELS:
            return rows[:MAX_MODELS]
        after = after_next


def _address(provider: Provider, after: str) -> str:
    if provider.format != "anthropic.messages":
        return f"{provider.base_url.rstrip('/')}/models"
    base = provider.base_url.rstrip("/").removesuffix("/v1")
    return f"{base}/v1/models?limit={PAGE}" + (f"&after_id={quote(after)}" if after else "")


def _body(name: str, key: str, get: Callable[[], web.WebAnswer]) -> bytes:
    try:
        answer = get()
    except web.FAILURES as problem:
        raise failures.unreachable(name, web.why_not(problem), again=False) from None
    if not 200 <= answer.status < 300:
        raise failures.of_status(name, answer.status, answer.headers, answer.body, key, time.time())
    if len(answer.body) > MAX_BODY:
        raise Fault("EREMOTEIO", f"the listing of {name} is over {MAX_BODY >> 20} MiB")
    return answer.body
