"""The gate of the page: who gets in, and what a browser may do with what it is given.

    gate = Gate("http", of_loopback)
    gate.judge(headers)        raises a Refusal unless host and origin are those of this page
    gate.ticket()              for a link that works once
    gate.enter(ticket)         the token of this process for it
    gate.knows(headers)        True for who shows the token
    gate.proof(nonce)          by which a tab knows this process before it shows the token

Rules: a cookie would go to every port of this machine, so there is none. Whoever was lured to a name that
leads here shows another Host, and another site shows another Origin. Nothing here is said to the log.
This file must never know what is asked for.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping

from cortexfs.core.errors import Fault

SECRET_BYTES = 32
FRAMES = "/frames/"  # below which files of frames are
OPAQUE = "null"  # the origin of a page in a frame, as browsers tell it
MAX_TICKETS = 16  # that wait to be used; the oldest goes first
_LOOPBACK = re.compile(r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9.-]+(?::\d{1,5})?|\[[0-9a-f:.]+\](?::\d{1,5})?", re.IGNORECASE)

# No script but our files, nothing from elsewhere, no text that becomes markup, and no frame around us.
# A frame that leads itself away stays with us, where it gets nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), display-capture=(), usb=()",
    "Cache-Control": "no-store",
}
# Of a frame's page, which has an opaque origin: to it we are another one. panels.py has its policy.
_APART = ("Content-Security-Policy", "X-Frame-Options", "Cross-Origin-Opener-Policy")
FRAMED = {name: value for name, value in HEADERS.items() if name not in _APART} | {
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-DNS-Prefetch-Control": "off",
    # WebRTC and whatever else a policy has no word for; to browsers that know the header.
    "Connection-Allowlist": "(response-origin)",
}


class Refusal(Fault):
    """A request that is refused with an HTTP status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code, message)
        self.status = status


def of_loopback(host: str) -> bool:
    """Returns True if this is a name of the machine itself; another port may be the near end of `ssh -L`."""
    return _LOOPBACK.fullmatch(host) is not None


def of_certificate(host: str) -> bool:
    """Returns True if it can be a host: which one it is, the browser has compared with the certificate."""
    return _HOST.fullmatch(host) is not None


class Gate:
    """The secrets of one process, and its rules about hosts."""

    def __init__(self, scheme: str, is_ours: Callable[[str], bool]) -> None:
        self._scheme = scheme
        self._is_ours = is_ours
        self._token = secrets.token_urlsafe(SECRET_BYTES)
        self._tickets: list[str] = []
        # A tab encrypts by this what it keeps. It is in no storage, so whoever has the port next lacks it.
        self.keeping = secrets.token_hex(SECRET_BYTES)

    def ticket(self) -> str:
        """Returns a ticket that works once."""
        self._tickets = [*self._tickets[1 - MAX_TICKETS :], secrets.token_urlsafe(SECRET_BYTES)]
        return self._tickets[-1]

    def enter(self, ticket: str) -> str:
        """Returns the token for a ticket, and uses the ticket up."""
        found = [each for each in self._tickets if hmac.compare_digest(each.encode(), ticket.encode())]
        if not found:
            raise Refusal(
                403, "EACCES", "this link was used, or is of an earlier ctx web; begin ctx web again"
            )
        self._tickets.remove(found[0])
        return self._token

    def proof(self, nonce: str) -> str:
        """Returns what only this process can say to a nonce: whoever has its port after it cannot."""
        return hmac.digest(self._token.encode(), nonce.encode(), "sha256").hex()

    def judge(self, headers: Mapping[str, str], target: str = "") -> None:
        """Raises a Refusal unless this was asked of our host, and by our own page where a page asked. A page
        with an opaque origin may ask for the files of frames, whose addresses are secrets."""
        if not self._is_ours(headers.get("host", "")):
            raise Refusal(421, "EACCES", "this is asked under a name that is not this page's")
        origin = headers.get("origin")
        if origin == OPAQUE and target.startswith(FRAMES):
            return
        if origin is not None and origin.lower() != self.origin(headers).lower():
            raise Refusal(403, "EACCES", "this is asked by a page of another site")

    def origin(self, headers: Mapping[str, str]) -> str:
        """The origin of our page, as whoever asks this sees it."""
        return f"{self._scheme}://{headers.get('host', '')}"

    def knows(self, headers: Mapping[str, str]) -> bool:
        shown = headers.get("authorization", "")
        return hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {self._token}".encode())
