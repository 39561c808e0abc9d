"""The addresses that are public, and the addresses that an IPv6 address stands for."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address

from cortexfs.core import networks
from tests.tables import each_of


@each_of(
    ("address", "is_public"),
    [
        ("8.8.8.8", True),
        ("9.255.255.255", True),
        ("10.0.0.0", False),
        ("11.0.0.0", True),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("2606:4700::1111", True),
        ("2001:db8::1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("64:ff9b::8.8.8.8", True),
        ("64:ff9b::10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:127.0.0.1", False),
        ("2002:808:808::", True),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert networks.may_reach(address, ()) == is_public


def test_a_closed_address_is_reached_where_it_is_granted() -> None:
    granted = networks.granted(["10.1.2.3/16", "fd00::/64"])
    assert networks.may_reach("10.1.255.255", granted)
    assert networks.may_reach("::ffff:10.1.0.0", granted)
    assert networks.may_reach("fd00::1", granted)
    assert not networks.may_reach("10.2.0.0", granted)
    assert networks.may_reach("8.8.8.8", granted)


def test_what_an_address_stands_for() -> None:
    for text in ("64:ff9b::1.2.3.4", "::ffff:1.2.3.4", "2002:102:304::"):
        assert networks.stands_for(ip_address(text)) == ip_address("1.2.3.4")
    assert networks.stands_for(ip_address("2606::1")) == ip_address("2606::1")


@each_of(
    ("host", "is_so"),
    [
        ("localhost", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("::ffff:127.3.2.1", True),
        ("::ffff:8.8.8.8", False),
        ("64:ff9b::7f00:1", False),  # of a translator (NAT64), so it leads elsewhere
        ("2002:7f00:1::", False),
        ("8.8.8.8", False),
        ("a.org", False),
        (None, False),
    ],
)
def test_this_machine(host: str | None, is_so: bool) -> None:
    assert networks.is_loopback(host) == is_so


def test_closed_ranges_leave_out_what_is_granted() -> None:
    assert networks.closed_4([]) == [*networks.NOT_PUBLIC_4]
    ten = IPv4Network("10.0.0.0/8")
    assert networks.closed_4(networks.granted(["10.0.0.0/8"])) == [
        each for each in networks.NOT_PUBLIC_4 if each != ten
    ]
    half = networks.closed_4(networks.granted(["10.128.0.0/9", "fd00::/8"]))
    assert {*half} - {*networks.NOT_PUBLIC_4} == {IPv4Network("10.0.0.0/9")}
