"""Which addresses a call that a tenant asks for may go to: the public internet, nothing behind our walls.

Python 3.11's `is_global` calls several embedded private addresses global (6to4, NAT64, mapped CGNAT,
fec0::/10), so the networks are named here: of IPv4 what is not to be called, of IPv6 the one block that is,
less its exceptions.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_DENIED: Final = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared (carrier-grade NAT)": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    # The cloud's own, at an address that looks public. Others' lie in link-local, shared or private networks.
    "a metadata service": ("168.63.129.16/32",),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "2001::/23", "100::/64"),
    "for documentation": (
        "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20",
    ),
    # Of these, too, an IPv4 address is the real goal, whatever the prefix says.
    "a relay of 6to4": ("192.88.99.0/24", "2002::/16"),
    "an IPv4 address in another form": ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96"),
    "a translated IPv4 address (NAT64)": ("64:ff9b::/96", "64:ff9b:1::/48"),
}  # fmt: skip

_BY_NETWORK: Final[list[tuple[Network, str]]] = [
    (ip_network(text), kind) for kind, texts in _DENIED.items() for text in texts
]
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")


def refusal(address: str, allowed: Iterable[Network] = ()) -> str | None:
    """Why nothing may be sent to this numeric address; None: it may be.

    `allowed`: networks that the operator has opened. A zone (`fe80::1%eth0`) changes nothing.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "is no address"
    if any(found in network for network in allowed):
        return None
    for network, kind in _BY_NETWORK:
        if found in network:
            return f"is {kind}"
    if isinstance(found, IPv6Address) and found not in _GLOBAL_UNICAST:
        return "is not of the public internet"
    return None if found.is_global else "is not of the public internet"


def networks_of(text: str) -> tuple[Network, ...]:
    """From `10.1.0.0/16, fd00::/8`. Raises ValueError for what is no network, host bits included."""
    return tuple(ip_network(piece.strip()) for piece in text.split(",") if piece.strip())
