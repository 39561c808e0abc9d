"""The addresses that are public, and those that a plugin reaches only if an administrator grants it.

Rules: addresses in the registries of special addresses (IANA, RFC 6890) are not public, nor is multicast.
An IPv6 address that stands for an IPv4 address is treated as the IPv4 address.
This file must never know which plugin asks, or how a name became an address.
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
            "100.64.0.0/10",  # inside an Internet provider
            "127.0.0.0/8",
            "169.254.0.0/16",  # of a link; machines in clouds ask 169.254.169.254 for their credentials
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # relays to IPv6, which anybody may run
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, and reserved addresses
        ),
    )
)
# All but 2000::/3, from which public addresses are assigned, and the special addresses in 2000::/3.
NOT_PUBLIC_6 = tuple(
    map(IPv6Network, ("::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "3fff::/20"))
)
_NAT64 = IPv6Network("64:ff9b::/96")
_HOSTS = 256  # answers that are cached: a connection asks three times


def granted(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ip_network(each, strict=False) for each in texts)


def may_reach(text: str, networks: Iterable[Network]) -> bool:
    """Returns True if the address is public, or in one of these networks."""
    address = stands_for(ip_address(text.partition("%")[0]))
    closed: tuple[Network, ...] = NOT_PUBLIC_4 if address.version == 4 else NOT_PUBLIC_6
    return any(address in each for each in networks) or not any(address in each for each in closed)


def stands_for(address: Address) -> Address:
    """Returns the IPv4 address for which an IPv6 address stands, or the address itself."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


@lru_cache(_HOSTS)
def is_address(host: str) -> bool:
    """Returns True if `host` is an address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(_HOSTS)
def is_loopback(host: str | None) -> bool:
    """Returns True if a host is this machine itself, to which no proxy leads."""
    try:
        address = ip_address(host or "")
    except ValueError:
        return host == "localhost"
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None  # Python 3.11 ignores it
    return (inner or address).is_loopback


def closed_4(networks: Iterable[Network]) -> list[IPv4Network]:
    """Returns the ranges of IPv4 that are not public, except these networks."""
    closed = [*NOT_PUBLIC_4]
    for network in networks:
        if isinstance(network, IPv4Network):
            closed = [part for each in closed for part in _without(each, network)]
    return closed


def _without(network: IPv4Network, exempt: IPv4Network) -> list[IPv4Network]:
    if not network.overlaps(exempt):
        return [network]
    return [] if network.subnet_of(exempt) else list(network.address_exclude(exempt))
