"""Find what says who or where somebody is: e-mail and IP addresses. Every pattern runs in linear time."""

import re
from ipaddress import AddressValueError, IPv6Address
from re import Match

REDACTED = "[redacted]"

# Bounded, and only from where a name can begin: a long run of letters is looked at once.
_EMAIL = re.compile(r"(?<![\w.+-])(?!git@)[\w.+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8}", re.IGNORECASE)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?<![\w.]){_BYTE}(?:\.{_BYTE}){{3}}(?![\w]|\.[0-9])", re.ASCII)
_HOME = re.compile(r"(?<![\w.~-])(?:(?:/var|/usr)?/home/|/Users/)[^/\s\"':;,)\]}>]{1,255}|(?<![\w./~-])/root(?![\w.-])")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f:]{3,39}(?![\w:])", re.IGNORECASE | re.ASCII)


def redact_personal(text: str) -> str:
    """Return *text* with every e-mail and IP address replaced by `[redacted]`."""
    if "@" in text:
        text = _EMAIL.sub(REDACTED, text)
    if "." in text:
        text = _IPV4.sub(REDACTED, text)
    return _IPV6.sub(_if_address, text) if ":" in text else text


def without_homes(text: str) -> str:
    """Return *text* with `~` for every directory that is a person's home: its name is theirs, and often who they are."""
    return _HOME.sub("~", text) if "/home/" in text or "/Users/" in text or "/root" in text else text


def _if_address(found: Match[str]) -> str:
    # A time of day has colons, too, and `a::b` is a name in more than one language.
    words = found.group().rstrip(":") if not found.group().endswith("::") else found.group()
    if words.count(":") < 2 or not any(letter.isdigit() for letter in words):
        return found.group()
    try:
        IPv6Address(words)
    except AddressValueError:
        return found.group()
    return REDACTED + found.group()[len(words) :]
