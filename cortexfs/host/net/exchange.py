"""A request to an address that a user has chosen as a provider, in a host that acts as this user.

    {"method", "url", "headers", "body", "connect"}  ->  {"status", "headers"} on a line, then the body

Rules: the body is passed on as it arrives, each byte as the character of its number. No redirection is
followed, as the key goes with the request. This host stays closed to other processes of its user
(host/start.py): the key is in its memory, and tools of agents may be among those processes.
This file must never know models, nor what is asked.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Any

import msgspec

from cortexfs import sdk
from cortexfs.net import web

CHUNK = 64 << 10
# The error codes of failures that another try may mend, and of those that no try mends.
PASSING, LASTING = "EHOSTDOWN", "EINVAL"


class ProviderExchange(sdk.Tool):
    name = "exchange"
    description = "Asks a provider; the daemon alone calls it."
    input_schema = {"type": "object"}  # noqa: RUF012

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> str:
        request = web.WebRequest(input["method"], input["url"], input["headers"], input["body"].encode())
        try:
            with web.begun(request, input["connect"], runtime.on_cancel) as response:
                headers = {name.lower(): value for name, value in response.getheaders()}
                head = msgspec.json.encode({"status": response.status, "headers": headers})
                runtime.emit(head.decode() + "\n")
                while data := response.read1(CHUNK):
                    runtime.emit(data.decode("latin-1"))
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
        except web.FAILURES as problem:
            code = LASTING if isinstance(problem, ssl.SSLError) else PASSING
            raise sdk.ExecutionFailed(web.why_not(problem), code) from None
        return ""
