"""The addresses that are public, and those that a plugin reaches only where an administrator grants it.

Rules: what the registries of special addresses set apart is not public (IANA, RFC 6890), multicast included.
An address of IPv6 that stands for one of IPv4 is that one.
This file must never know who asks, or how a name became an address.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this machine
            "10.0.0.0/8",
            "100.64.0.0/10",  # of a provider's own
            "127.0.0.0/8",
            "169.254.0.0/16",  # the link's; machines in clouds ask 169.254.169.254 for their credentials
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # to IPv6, by who knows whom
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, and what is reserved
        ),
    )
)
# All but 2000::/3, from which public addresses are given out, and in it what is set apart.
NOT_PUBLIC_6 = tuple(
    map(IPv6Network, ("::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "3fff::/20"))
)
_NAT64 = IPv6Network("64:ff9b::/96")
_HOSTS = 256  # that are remembered: a connection asks three times


def granted(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ip_network(each, strict=False) for each in texts)


def may_reach(text: str, networks: Iterable[Network]) -> bool:
    """Returns True if the address is public, or in one of these networks."""
    address = meant(ip_address(text.partition("%")[0]))
    closed: tuple[Network, ...] = NOT_PUBLIC_4 if address.version == 4 else NOT_PUBLIC_6
    return any(address in each for each in networks) or not any(address in each for each in closed)


def meant(address: Address) -> Address:
    """The address that one of IPv6 stands for, where it stands for one."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


@lru_cache(_HOSTS)
def is_address(host: str) -> bool:
    """Returns True if it is no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(_HOSTS)
def is_loopback(host: str | None) -> bool:
    """Returns True if a host is this machine itself, which no proxy leads to."""
    try:
        address = ip_address(host or "")
    except ValueError:
        return host == "localhost"
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None  # Python 3.11 does not look
    return (inner or address).is_loopback


def closed_4(networks: Iterable[Network]) -> list[IPv4Network]:
    """Returns the ranges of IPv4 that are not public, without these networks."""
    closed = [*NOT_PUBLIC_4]
    for given in networks:
        if isinstance(given, IPv4Network):
            closed = [part for each in closed for part in _without(each, given)]
    return closed


def _without(network: IPv4Network, given: IPv4Network) -> list[IPv4Network]:
    if not network.overlaps(given):
        return [network]
    return [] if network.subnet_of(given) else list(network.address_exclude(given))
