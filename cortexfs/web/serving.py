"""The page's process: its address, the link to it, and its end.

    await serve(page, place, announce)      until a signal ends it

Rules: the process serves one user. On a loopback address it uses plain HTTP. Any other address needs a
certificate, as others could read the link and the token on their way.
This file must never know what the page shows.
"""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import trio

from cortexfs.core import networks
from cortexfs.core.errors import Fault, os_faults
from cortexfs.web import routes
from cortexfs.web.children import WebPlace
from cortexfs.web.gate import CERTIFIED, LOOPBACK, Gate
from cortexfs.web.http import Listener

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Page(NamedTuple):
    """The wanted address, with its certificate and key."""

    bind: str
    port: int
    cert: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raises EINVAL if the address is none, or needs a certificate."""
        if not networks.is_address(self.bind):
            raise Fault("EINVAL", f"--bind: {self.bind!r} is not an address such as 127.0.0.1 or ::1")
        if bool(self.cert) != bool(self.key):
            raise Fault("EINVAL", "--cert and --key go together; give both or neither")
        if not networks.is_loopback(self.bind) and not self.cert:
            mend = "give --cert and --key, or keep the default and use ssh -L"
            raise Fault("EINVAL", f"other machines reach {self.bind}, which needs encryption; {mend}")


async def serve(page: Page, place: WebPlace, announce: Callable[[str], None]) -> int:
    """Serve until a signal, and return its number. Calls `announce` with the link once it works."""
    context = _context(page)
    with os_faults(f"ctx web cannot listen at {page.bind} port {page.port}"):
        listeners = await trio.open_tcp_listeners(page.port, host=page.bind)
    port = listeners[0].socket.getsockname()[1]
    gate = Gate("https" if context else "http", CERTIFIED if context else LOOPBACK)
    host = f"[{page.bind}]" if ":" in page.bind else page.bind
    link = f"{'https' if context else 'http'}://{host}:{port}/"
    listening: list[trio.abc.Listener[Any]] = [*listeners]
    if context:
        listening = [trio.SSLListener(each, context, https_compatible=True) for each in listeners]
    async with trio.open_nursery() as nursery:
        answering = routes.Routes(gate, place, nursery)
        nursery.start_soon(partial(trio.serve_listeners, Listener(gate, answering.answer).serve, listening))
        with trio.open_signal_receiver(*ENDING) as signals:
            announce(f"{link}#ticket={gate.ticket()}")
            async for number in signals:
                nursery.cancel_scope.cancel()
                return number
    return 0


def _context(page: Page) -> ssl.SSLContext | None:
    if not page.cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for each in filter(None, (page.cert, page.key)):
        with os_faults(f"{each} cannot be read"):
            open(each, "rb").close()  # the error of the next call does not name the file
    try:
        context.load_cert_chain(page.cert, page.key)
    except ssl.SSLError:
        raise Fault("EINVAL", "--cert and --key must be a certificate and its key in PEM format") from None
    return context
