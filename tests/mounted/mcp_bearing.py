"""A proxy that adds the bearer token of `ctx mcp serve --http`, for clients that take no token.

    python mcp_bearing.py URL TOKEN      prints its own URL

All other data is passed on unchanged, host names included.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import httpx2
import uvicorn
from starlette.types import Receive, Scope, Send

KEPT = (b"transfer-encoding", b"connection", b"content-length")


class Bearing:
    def __init__(self, url: str, token: str) -> None:
        self._base = url.rsplit("/", 1)[0]
        self._token = token.encode()
        self._client = httpx2.AsyncClient(timeout=None, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (part := await receive())["type"] == "http.request":
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = [pair for pair in scope["headers"] if pair[0] not in KEPT]
        headers.append((b"authorization", b"Bearer " + self._token))
        request = self._client.build_request(
            scope["method"], self._base + scope["path"], headers=headers, content=body
        )
        answer = asyncio.create_task(self._answer(request, send))
        left = asyncio.create_task(_has_left(receive))
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        left.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)

    async def _answer(self, request: httpx2.Request, send: Send) -> None:
        response = await self._client.send(request, stream=True)
        try:
            kept = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in KEPT]
            await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
            async for data in response.aiter_raw():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def main(url: str, token: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(Bearing(url, token), log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
