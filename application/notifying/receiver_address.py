"""What may be the address of a receiver of notices, as far as its letters tell. Where it leads is looked at when it is used."""

from urllib.parse import SplitResult, urlsplit

PORTS = {"https": 443, "http": 80}
MAX_URL_CHARACTERS = 2_000


class AddressRefused(Exception):
    """Nothing is sent there; the message says why."""


def read_receiver(url: str) -> tuple[SplitResult, str, int]:
    """Return an address in its parts, its host and its port. Raises AddressRefused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused("That is no address.") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL_CHARACTERS
    if parts.scheme not in PORTS or not parts.hostname or not is_plain or parts.fragment or port == 0:
        raise AddressRefused(
            "A receiver's address begins with https://, has a host and no fragment, and is ASCII only."
        )
    if parts.username is not None or parts.password is not None:
        raise AddressRefused("A receiver's address holds no user and no password.")
    return parts, parts.hostname, PORTS[parts.scheme] if port is None else port


def origin_of(url: str) -> str:
    """Return what of an address may be shown: scheme, host and port. Its path may open doors. Raises AddressRefused."""
    parts, _, _ = read_receiver(url)
    return f"{parts.scheme}://{parts.netloc}"
