"""The addresses that this machine has; a container may have no IPv6."""

from __future__ import annotations

import socket


def has_ipv6() -> bool:
    """Returns True if this machine has the loopback address of IPv6."""
    if not socket.has_ipv6:
        return False
    with socket.socket(socket.AF_INET6) as tried:
        try:
            tried.bind(("::1", 0))
        except OSError:
            return False
    return True
