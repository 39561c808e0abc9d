"""One HTTP request on behalf of code that is not trusted (net/web.py), which always gets a status.

Rules: a refused or failed request is an answer, never an exception. Its body is the sentence with the reason.
This file must never know who asks.
"""

from __future__ import annotations

from http.client import InvalidURL
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.net import web

SECONDS = 30.0
MAX_BODY = 65528
MAX_REQUEST = 1 << 20
# Headers that frame the request: two readers of it must not see two requests.
_OURS = ("connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade")
_STATUS = {"EINVAL": 400, "EACCES": 403}


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    reached: bool = True  # a server answered, and this is not a failure of ours


def fetch(
    request: web.WebRequest,
    private: tuple[str, ...],
    wake: web.Wake,
    *,
    most: int = MAX_BODY,
    redirects: int = web.MAX_REDIRECTS,
) -> HttpAnswer | None:
    """Returns the answer; None if `wake`, which is for this request alone, reported its cancellation."""
    try:
        answer = web.fetch(request, web.Bounds(most, SECONDS, redirects, private=private), wake)
        return answer and HttpAnswer(answer.status, answer.body)
    except web.Private as refused:
        why = f"{refused.host[:200]} is a private address, which the plugin is not granted"
        return _failure(403, why)
    except Fault as refused:
        return _failure(_STATUS.get(refused.code, 500), refused.message)
    except TimeoutError:
        return _failure(408, "request timeout or failed")
    except (ValueError, InvalidURL):  # a method, address or header that HTTP cannot express
        return _failure(400, "the request cannot be written as HTTP")
    except web.FAILURES as problem:
        return _failure(500, f"request timeout or failed: {web.why_not(problem)}")
    except Exception:  # the guest waits for a status
        return _failure(500, "unexpected error in http_request")


def _failure(status: int, why: str) -> HttpAnswer:
    return HttpAnswer(status, f"host: {why}".encode(), False)


def headers_of(value: object) -> dict[str, str] | None:
    """Returns the headers that a request may have; None if the value is no object of strings."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        return None
    return {str(name): text for name, text in value.items() if str(name).lower() not in _OURS}
