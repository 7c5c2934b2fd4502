"""Which addresses a webhook may connect to: not those of the inside, where its sender has more rights than it should.

The name is resolved here and the connection goes to the address that was looked at. Looking first and letting the
client resolve again would be answered differently the second time by anyone who controls the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address

# Prefixes of IPv6 that carry an address of IPv4 inside: NAT64 at its end, 6to4 behind its first two bytes.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Tell whether an address is one of the public internet."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    inner = _inner(address)
    return address.is_global and not address.is_multicast and (inner is None or is_public(str(inner)))


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def literal(host: str) -> str | None:
    """Return the address that a host is itself, or None for a name."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return None


async def addresses_of(host: str, port: int) -> list[str]:
    """Resolve a name. Raises: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
