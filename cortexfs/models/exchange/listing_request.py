"""Asking a provider which models it has: one plain HTTPS request, for commands and not for the daemon.

Rules: nothing of a vendor's is needed for it. No redirection is followed, as the key goes with the
request. What comes back is bounded; what fails is a Fault as for an answer.
This file must never know where a listing is kept.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from cortexfs.core.errors import Fault
from cortexfs.models.exchange import failures
from cortexfs.models.providers.listing import MAX_BODY, MAX_MODELS, ListedModel, decode
from cortexfs.models.providers.provider import Provider, is_loopback

SECONDS = 20.0
ANTHROPIC = "2023-06-01"
PAGE = 1000


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        return None


def models(name: str, provider: Provider, key: str) -> list[ListedModel]:
    """All models that a provider lists."""
    if provider.needs_key and not key:
        raise Fault(*failures.no_key(name)[:2])
    found: list[ListedModel] = []
    after = ""
    while True:
        page, after_next = decode(_get(name, _address(provider, after), _headers(provider, key), key))
        found += page
        if not after_next or after_next == after or not page or len(found) >= MAX_MODELS:
            return found[:MAX_MODELS]
        after = after_next


def _address(provider: Provider, after: str) -> str:
    if provider.format != "anthropic.messages":
        return f"{provider.base_url.rstrip('/')}/models"
    base = provider.base_url.rstrip("/").removesuffix("/v1")
    return f"{base}/v1/models?limit={PAGE}" + (f"&after_id={quote(after)}" if after else "")


def _headers(provider: Provider, key: str) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": "cortexfs"} | provider.headers
    if provider.format == "anthropic.messages":
        headers |= {"Anthropic-Version": ANTHROPIC} | ({"X-Api-Key": key} if key else {})
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _get(name: str, url: str, headers: dict[str, str], key: str) -> bytes:
    handlers: list[Any] = [_NoRedirection()]
    if is_loopback(url):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=SECONDS) as response:
            data: bytes = response.read(MAX_BODY + 1)
    except urllib.error.HTTPError as refused:
        with refused:
            body = refused.read(failures.MAX_BODY)
        failure = failures.of_status(name, refused.code, dict(refused.headers), body, key, time.time())
        raise Fault(failure.code, failure.message) from None
    except (OSError, http.client.HTTPException) as problem:
        raise Fault(*failures.unreachable(name, _why(problem))[:2]) from None
    if len(data) > MAX_BODY:
        raise Fault("EREMOTEIO", f"the listing of {name} is over {MAX_BODY >> 20} MiB")
    return data


def _why(problem: BaseException) -> str:
    """Why no connection came about; never the request's own words."""
    reason = getattr(problem, "reason", problem)
    if isinstance(reason, TimeoutError):
        return f"no answer within {SECONDS:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {reason.verify_message}"
    if isinstance(reason, socket.gaierror):
        return "its name is not known"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return "the connection failed"
