"""Where notices may be sent: to the public internet over https, and to the networks that the installation names."""

import ipaddress
import socket
from collections.abc import Sequence

from ...application.notifying.receiver_address import AddressRefused, read_receiver
from ..processes.proxy import Address, is_public

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
WHY_NOT = (
    "Notices go over https:// to addresses on the public internet, and neither to this machine nor to its own networks, "
    "unless the setting `webhook_networks` (STEERSMAN_WEBHOOK_NETWORKS) names the network."
)


def read_networks(entries: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks that are named, such as 127.0.0.0/8 or one address. Raises ValueError."""
    return tuple(ipaddress.ip_network(entry) for entry in entries)


def allowed_addresses(url: str, networks: Sequence[Network]) -> Sequence[str]:
    """
    Look the host up, and return the addresses that may be connected to: those, and no name, are to be used.

    Raises AddressRefused, OSError.
    """
    parts, host, port = read_receiver(url)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressRefused("That is no name of a host.") from None
    addresses = dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    allowed = [one for one in addresses if _is_allowed(one, parts.scheme, networks)]
    if not allowed:
        raise AddressRefused(WHY_NOT)
    return [str(one) for one in allowed]


def refusal(url: str, networks: Sequence[Network]) -> str | None:
    """Return why nothing would be sent to an address, as far as can be said without asking anybody; None: it is tried."""
    try:
        parts, host, _ = read_receiver(url)
    except AddressRefused as refused:
        return str(refused)
    if host == "localhost" or host.endswith(".localhost"):
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None if parts.scheme == "https" or networks else WHY_NOT
    return None if _is_allowed(address, parts.scheme, networks) else WHY_NOT


def _is_allowed(address: Address, scheme: str, networks: Sequence[Network]) -> bool:
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if any((inner or address) in network for network in networks):
        return True
    return scheme == "https" and is_public(address)
