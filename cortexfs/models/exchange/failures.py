"""The failures of providers: statuses and bodies become codes, and tell if another try may succeed.

    400, 422  EINVAL, or EMSGSIZE when the context overflows    429  EAGAIN; EDQUOT when the money has run out
    401, 403  EACCES                                            404  ENOENT
    402       EDQUOT                                            5xx, 408, 409, 425  EREMOTEIO

Rules: each sentence names the provider and the remedy. The provider's own words come last, on one line,
clipped, and always without the key. For a refused key they are left out.
This file must never know connections or clocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.safe_text import misfits, one_line

MAX_WORDS = 300  # characters of a provider's own words
MAX_BODY = 64 << 10  # bytes of an error's body

HIDDEN = "[key]"

_RETRIED = frozenset((408, 409, 425))
_ABOUT_CONTEXT = re.compile(
    r"context.{0,20}(length|window|size|exceed)|maximum context|prompt is too long|too many (input )?tokens"
    r"|input token count|tokens exceed|exceed_context_size|token limit|input is too long",
    re.IGNORECASE,
)
_ABOUT_MONEY = re.compile(
    r"insufficient_quota|insufficient.{0,12}(balance|credit)|billing|credit balance", re.I
)
_MOST = (
    re.compile(r"(?:maximum|max)[^.;]{0,60}?(?:is|of|allowed|:)\D{0,12}(\d[\d,]*)", re.IGNORECASE),
    re.compile(r">\s*(\d[\d,]*)"),
    re.compile(r"context (?:size|length|window)\D{0,12}(\d[\d,]*)", re.IGNORECASE),
    re.compile(r"limit\D{0,12}(\d[\d,]*)", re.IGNORECASE),
)
_NUMBER = re.compile(r"\d[\d,]{2,}")


class ProviderFailure(Fault):
    """The failure of one request to a provider."""

    def __init__(
        self,
        code: str,
        message: str,
        again: bool = False,
        delay: float | None = None,
        hop: bool = False,
        most: int | None = None,
    ) -> None:
        super().__init__(code, message)
        self.again = again  # the same request may succeed in a moment
        self.delay = delay  # seconds to wait, if the server asks for that
        self.hop = hop  # another model may succeed
        self.most = most  # most tokens of an input, after an overflow


class _Body(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None


def of_status(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, key: str, now: float
) -> ProviderFailure:
    """Returns the failure in an error response. `now` is the time since the epoch, for dates in headers."""
    body = body[:MAX_BODY]
    detail = words(body, key)
    if status == 401 or (status == 403 and not detail):
        return _denied(provider, status, key)
    if status == 403:
        return ProviderFailure("EACCES", _sentence(f"{provider} does not let its key do this (403)", detail))
    if status == 429:
        return _limited(provider, body, detail, _delay(headers, now))
    if status == 402:
        return ProviderFailure(
            "EDQUOT", _sentence(f"{provider} requires payment first (402)", detail), hop=True
        )
    if status == 413 or (status in (400, 422) and _ABOUT_CONTEXT.search(body.decode("utf-8", "replace"))):
        return _overflow(provider, body, detail)
    if status == 404:
        mend = f"see which models it has: ctx provider models {provider}"
        why = f"{provider} does not know this model or address (404); {mend}"
        return ProviderFailure("ENOENT", _sentence(f"{why}; it says", detail) if detail else why)
    if status >= 500 or status in _RETRIED:
        return ProviderFailure(
            "EREMOTEIO", _sentence(f"{provider} failed ({status})", detail), True, _delay(headers, now), True
        )
    if 300 <= status < 400:
        mend = "write the final address into its base_url"
        return ProviderFailure("EREMOTEIO", f"{provider} answered with a redirection ({status}); {mend}")
    return ProviderFailure("EINVAL", _sentence(f"{provider} refuses the request ({status})", detail))


def in_stream(provider: str, body: bytes, key: str) -> ProviderFailure:
    """Returns the failure in an error within a stream. If the error has no status, one is guessed by its
    words, and the sentence does not show it."""
    code = _error_in(body).get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return of_status(provider, code, {}, body, key, 0)
    text = body.decode("utf-8", "replace").lower()
    statuses = (
        ("rate_limit", 429), ("insufficient_quota", 429), ("authentication", 401), ("permission", 403),
        ("invalid_request", 400), ("context_length", 400), ("exceed_context", 400), ("not_found", 404),
    )  # fmt: skip
    status = next((number for word, number in statuses if word in text), 500)
    failure = of_status(provider, status, {}, body, key, 0)
    failure.message = failure.message.replace(f" ({status})", "", 1)
    return failure


def _decoded(body: bytes) -> _Body | None:
    try:
        return msgspec.json.decode(body, type=_Body)
    except UNREADABLE:
        return None


def _error_in(body: bytes) -> dict[str, Any]:
    """Returns the body's `error` if it is an object, or else an empty one."""
    fields = _decoded(body)
    return fields.error if fields and isinstance(fields.error, dict) else {}


def no_key(provider: str) -> ProviderFailure:
    return ProviderFailure(
        "EACCES", f"{provider} has no key; set one with: ctx provider secret set {provider}"
    )


def unreachable(provider: str, why: str, again: bool) -> ProviderFailure:
    mend = f"see: ctx provider test {provider}"
    return ProviderFailure("EHOSTDOWN", f"{provider} cannot be reached: {why}; {mend}", again, hop=True)


def slow(provider: str, seconds: float, is_begun: bool) -> ProviderFailure:
    why = "sent nothing more" if is_begun else "did not begin to answer"
    return ProviderFailure("ETIMEDOUT", f"{provider} {why} within {seconds:g} s", hop=True)


def broken(provider: str, why: str, again: bool) -> ProviderFailure:
    """Returns the failure of a provider whose answer cannot be used."""
    return ProviderFailure("EREMOTEIO", f"{provider}: {why}", again, hop=True)


def no_stream(provider: str, content_type: str, body: bytes, key: str) -> ProviderFailure:
    """Returns the failure of a response with a good status and no stream. Its body may be an error."""
    if (fields := _decoded(body)) and fields.error:
        return in_stream(provider, body, key)
    kind = one_line(content_type)[:60] or "nothing"
    why = f"{provider} answered with {kind}, not with a stream of events; is its base_url right?"
    return ProviderFailure("EREMOTEIO", why)


def _denied(provider: str, status: int, key: str) -> ProviderFailure:
    if not key:
        return no_key(provider)
    mend = f"set another with: ctx provider secret set {provider}"
    return ProviderFailure("EACCES", f"{provider} refuses its key ({status}); {mend}")


def _limited(provider: str, body: bytes, detail: str, delay: float | None) -> ProviderFailure:
    if _ABOUT_MONEY.search(body.decode("utf-8", "replace")):
        return ProviderFailure(
            "EDQUOT", _sentence(f"the quota at {provider} is used up (429)", detail), hop=True
        )
    later = f"; it says to wait {delay:g} s" if delay else ""
    return ProviderFailure(
        "EAGAIN", _sentence(f"{provider} limits the rate (429){later}", detail), True, delay, True
    )


def _overflow(provider: str, body: bytes, detail: str) -> ProviderFailure:
    size, most = numbers(body)
    if size and most:
        why = f"the input is {size} tokens and {provider} takes {most}"
        return ProviderFailure(
            "EMSGSIZE", f"{why}; send less, or choose a model with a larger limit", most=most
        )
    return ProviderFailure("EMSGSIZE", _sentence(f"the input is too long for {provider}", detail), most=most)


def numbers(body: bytes) -> tuple[int | None, int | None]:
    """Returns the size of the input and the provider's limit, each None if the error does not have it."""
    error = _error_in(body)
    fields = error.get("n_prompt_tokens"), error.get("n_ctx")  # the fields of llama.cpp
    if all(type(each) is int and each for each in fields):
        return fields
    text = one_line(body.decode("utf-8", "replace"))
    most = next((_int(found[1]) for each in _MOST if (found := each.search(text))), None)
    sizes = [number for each in _NUMBER.findall(text) if (number := _int(each)) != most]
    size = max((each for each in sizes if most is None or each > most), default=None)
    return size, most


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def words(body: bytes, key: str) -> str:
    """Returns a provider's own words as one line, clipped, without the key."""
    text = _message_in(body)
    text = one_line(scrubbed(text, key)).strip()
    return text if len(text) <= MAX_WORDS else text[:MAX_WORDS] + "..."


def _message_in(body: bytes) -> str:
    if (fields := _decoded(body)) is None:
        # A page of HTML is dropped. A gateway's plain text is kept, as its first words are better than none.
        return "" if b"<" in body[:100] else body.decode("utf-8", "replace")
    for value in (fields.error, fields.message, fields.detail):
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
        if isinstance(value, list) and (wrong := [each for each in value if _is_misfit(each)]):
            return misfits(wrong)
        if isinstance(value, str):
            return value
    return ""


def _is_misfit(each: Any) -> bool:
    """Returns True for a part of FastAPI's `detail`."""
    return isinstance(each, dict) and isinstance(each.get("loc"), list) and isinstance(each.get("msg"), str)


def scrubbed(text: str, key: str) -> str:
    """Returns a text without the key, and without the long parts of the key that providers show as a hint."""
    if not key:
        return text
    text = text.replace(key, HIDDEN)
    for size in range(len(key) - 1, max(7, len(key) // 4), -1):
        text = text.replace(key[:size], HIDDEN).replace(key[-size:], HIDDEN)
    return text


def _sentence(why: str, detail: str) -> str:
    return f"{why}: {detail}" if detail else why


def _delay(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the server's wait in seconds (RFC 9110, 10.2.3; OpenAI has a header in milliseconds)."""
    fields = {name.lower(): value for name, value in headers.items()}
    if (number := _number(fields.get("retry-after-ms"))) is not None:
        return number / 1000
    after = fields.get("retry-after", "")
    if (number := _number(after)) is not None:
        return number
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()) else None
