"""The gate of the page: which requests are served, and what a browser may do with the answers.

    gate = Gate("http", LOOPBACK)
    gate.judge(headers)        raises a Refusal unless host and origin are those of this page
    gate.ticket()              a ticket, for a link that works once
    gate.enter(ticket)         the token of this process, in exchange for a ticket
    gate.knows(headers)        True if the request shows the token
    gate.proof(nonce)          a proof of this process for a tab, before the tab shows the token

Rules: there is no cookie, as a browser would send it to every port of this machine. A browser that was lured
to another name of this address shows another Host, and another site shows another Origin. Nothing is logged.
This file must never know what a request wants.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping

from cortexfs.core.errors import Fault

SECRET_BYTES = 32
FRAMES = "/frames/"  # the folder of frames' files
OPAQUE = "null"  # the origin that browsers send for a page in a frame
MAX_TICKETS = 16  # unused ones; the oldest goes first
# The names of the machine itself, at any port: it may be the near end of `ssh -L`.
LOOPBACK = re.compile(r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
# Any valid host, as the browser has compared it with the certificate.
CERTIFIED = re.compile(r"[a-z0-9.-]+(?::\d{1,5})?|\[[0-9a-f:.]+\](?::\d{1,5})?", re.IGNORECASE)

# Only our files are scripts, nothing comes from elsewhere, no text becomes markup, and no page frames us.
# A frame that navigates can only go to our own addresses, and gets nothing there.
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
# The headers for a frame's page: its origin is opaque, so ours is another one. panels.py has its policy.
_APART = ("Content-Security-Policy", "X-Frame-Options", "Cross-Origin-Opener-Policy")
FRAMED = {name: value for name, value in HEADERS.items() if name not in _APART} | {
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-DNS-Prefetch-Control": "off",
    # Against WebRTC and other ways that no policy names; only some browsers know this header.
    "Connection-Allowlist": "(response-origin)",
}


class Refusal(Fault):
    """A request that is refused with an HTTP status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code, message)
        self.status = status


class Gate:
    """The secrets of one process, and its rules about hosts."""

    def __init__(self, scheme: str, hosts: re.Pattern[str]) -> None:
        self._scheme = scheme
        self._hosts = hosts
        self._token = secrets.token_urlsafe(SECRET_BYTES)
        self._tickets: list[str] = []
        # A tab encrypts by this the data that it stores. The next process at this port does not get the key.
        self.keeping = secrets.token_hex(SECRET_BYTES)

    def ticket(self) -> str:
        """Returns a new ticket, which works once."""
        self._tickets = [*self._tickets[1 - MAX_TICKETS :], secrets.token_urlsafe(SECRET_BYTES)]
        return self._tickets[-1]

    def enter(self, ticket: str) -> str:
        """Returns the token for a ticket, and uses the ticket up."""
        found = [each for each in self._tickets if hmac.compare_digest(each.encode(), ticket.encode())]
        if not found:
            raise Refusal(
                403, "EACCES", "this link was used before, or is of an earlier ctx web; run ctx web again"
            )
        self._tickets.remove(found[0])
        return self._token

    def proof(self, nonce: str) -> str:
        """Returns the proof for a nonce. Only this process can make it, and not the next one at its port."""
        return hmac.digest(self._token.encode(), nonce.encode(), "sha256").hex()

    def judge(self, headers: Mapping[str, str], target: str = "") -> None:
        """Raises a Refusal unless the request names our host and, if a page sent it, our own page did. A page
        with an opaque origin may request files of frames, as their addresses are secrets."""
        if not self._hosts.fullmatch(headers.get("host", "")):
            raise Refusal(421, "EACCES", "this page is not served under that name; open the link of ctx web")
        origin = headers.get("origin")
        if origin == OPAQUE and target.startswith(FRAMES):
            return
        if origin is not None and origin.lower() != self.origin(headers).lower():
            raise Refusal(403, "EACCES", "this request comes from a page of another site")

    def origin(self, headers: Mapping[str, str]) -> str:
        """Returns the origin of our page, under the name that the request used."""
        return f"{self._scheme}://{headers.get('host', '')}"

    def knows(self, headers: Mapping[str, str]) -> bool:
        header = headers.get("authorization", "")
        return hmac.compare_digest(header.encode(errors="replace"), f"Bearer {self._token}".encode())
