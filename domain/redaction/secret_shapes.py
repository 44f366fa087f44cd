"""Replace what looks like a credential before words are stored. Every pattern runs in linear time."""

import re
from collections.abc import Callable
from re import Match, Pattern
from typing import NamedTuple

REDACTED = "[redacted]"


class Shape(NamedTuple):
    """A known form of secret: marks in lower case, one of which every match contains, and what to put in its place."""

    marks: tuple[str, ...]
    pattern: Pattern[str]
    replacement: str | Callable[[Match[str]], str]


# Words come plain, or inside JSON strings, which may stand in JSON strings again: tool arguments are kept as the agent
# sent them. There a quote has backslashes before it, and a line ends with `\n`, whose letter is no part of the next word.
# Quantifiers are bounded, or possessive on a run that no other match can start in: that keeps each pass linear.
_ESCAPED = r"(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})"
_START = rf"(?:(?<![A-Za-z0-9])|{_ESCAPED})"
_WORD = rf"(?:\b|{_ESCAPED})"
_QUOTE = r"\\{0,7}[\"']"
_NEW = r"(?!\[redacted)"
#: What a value without quotes is made of: no quote, no end of a line, nothing that code goes on with.
_BACKSLASHES = r"\\++(?![nrtbf\"'])"
_BARE = rf"(?:[^\s\"'\\,;&()\[\]{{}}<>]|{_BACKSLASHES})"
_HEADER = rf"(?:[^\s\"'\\,;]|{_BACKSLASHES})"
_USER = r"[^\s/?#@:\"'<>\\]"
_NAME = (
    rf"(?:passw(?:or)?d|passphrase|(?:(?<![a-z])|{_ESCAPED})pass|pwd|secret|token|credential"
    rf"|(?:api|access|secret|private|signing|encryption|account)[_-]?key)(?:{_QUOTE})?[ \t]{{0,4}}"
)
_IS = r"(?:=(?!=)|:)[ \t]{0,4}"
_KEY_BODY = r"[A-Za-z0-9+/=\s:,\\-]"
_KEY_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"


def _unless_called(match: Match[str]) -> str:
    """A call or an index is code that fetches a secret, not the secret."""
    # It is matched all the same: who looked on from the next name in it would read the rest again each time.
    return match[0] if match["call"] else match["name"] + REDACTED


SHAPES: tuple[Shape, ...] = (
    Shape(
        ("private key",),
        # A block that lost its end (output is cut into pieces) is removed as far as it looks like one.
        re.compile(rf"-----BEGIN {_KEY_LABEL}(?:{_KEY_BODY}*?-----END {_KEY_LABEL}|{_KEY_BODY}*+)"),
        REDACTED,
    ),
    # Our own: with one an agent could do what its owner may.
    Shape(("steersman_",), re.compile(rf"{_START}steersman_[\w-]{{40,}}+", re.ASCII), REDACTED),
    Shape(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(rf"{_START}(?:gh[pousr]_[A-Za-z0-9]{{20,255}}|github_pat_[A-Za-z0-9_]{{20,255}})"),
        REDACTED,
    ),
    Shape(
        ("npm_", "hf_", "_live_", "_test_", "whsec_"),
        re.compile(rf"{_START}(?:(?:npm|hf)_[A-Za-z0-9]{{30,}}+|(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9+/=]{{16,}}+)"),
        REDACTED,
    ),
    Shape(
        ("glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glsoat-", "pypi-"),
        re.compile(rf"{_START}(?:gl(?:pat|ptt|dt|rt|cbt|soat)-[\w-]{{20,}}+|pypi-[\w-]{{40,}}+)", re.ASCII),
        REDACTED,
    ),
    Shape(
        ("sk-",),
        # A part in which letters and digits are mixed keeps words such as sk-learn-2024 apart.
        re.compile(
            rf"{_START}sk-(?:ant-[\w-]{{16,}}+|(?=(?:[A-Za-z0-9]{{1,40}}[_-]{{1,2}}){{0,8}}"
            r"(?=[A-Za-z]{0,40}[0-9])(?=[0-9]{0,40}[A-Za-z])[A-Za-z0-9]{8})[\w-]{20,}+)",
            re.ASCII,
        ),
        REDACTED,
    ),
    Shape(("akia", "asia"), re.compile(rf"{_START}(?:AKIA|ASIA)[0-9A-Z]{{16}}(?![0-9A-Za-z])"), REDACTED),
    Shape(("xox", "xapp-"), re.compile(rf"{_START}(?:xox[a-z]|xapp)-[A-Za-z0-9-]{{10,}}+"), REDACTED),
    Shape(("aiza",), re.compile(rf"{_START}AIza[\w-]{{35}}", re.ASCII), REDACTED),
    Shape(
        ("eyj",),
        re.compile(rf"(?:(?<![\w-])|{_ESCAPED})eyJ[\w-]{{8,}}+\.[\w-]{{8,}}+\.[\w-]*+", re.ASCII),
        REDACTED,
    ),
    Shape(
        ("hooks.slack.com", "/api/webhooks/"),
        re.compile(r"(hooks\.slack\.com/[a-z]{1,20}/|/api/webhooks/)[A-Za-z0-9][\w/-]{15,}+", re.ASCII),
        rf"\1{REDACTED}",
    ),
    Shape(
        ("bearer", "authorization"),
        re.compile(
            rf"({_WORD}authorization(?:{_QUOTE})?[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_QUOTE})?(?:[a-z]{{1,20}}[ \t]{{1,4}})?+"
            rf"|{_WORD}bearer[ \t]{{1,4}}(?={_HEADER}{{16}})){_NEW}{_HEADER}{{6,}}+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    Shape(
        ("://",),
        # A password may hold an @ or a slash that should have been escaped; digits before a slash are a port. A user
        # without a password is only a name, unless it is as long as a token.
        re.compile(
            rf"(://)(?:{_USER}{{0,256}}:(?![0-9]{{1,5}}/)[^\s@\"'<>\\]{{1,512}}@(?:{_USER}{{1,256}}@){{0,4}}"
            rf"|(?={_USER}{{0,64}}[0-9]){_USER}{{16,512}}@)"
        ),
        rf"\1{REDACTED}@",
    ),
    Shape(
        ("pass", "pwd", "secret", "token", "key", "credential"),
        # name="value", to the quote that closes it: one that is escaped as often as the one that opened it. A value
        # that everything ends in was cut off. Only a JSON string goes on behind a line's end.
        re.compile(
            rf"({_NAME}{_IS})(?:(\"){_NEW}(?:[^\"\\\r\n]|\\[^\r\n]){{4,}}+(?=\")"
            rf"|('){_NEW}(?:[^'\\\r\n]|\\[^nr\r\n]){{4,}}+(?=')"
            rf"|(?P<quote>\\{{1,7}}[\"']){_NEW}(?:[^\"\\\r\n]|\\++(?![nr\"'])|(?!(?P=quote))\\++[\"']){{4,}}+(?=(?P=quote))"
            rf"|({_QUOTE}){_NEW}{_BARE}{{6,}}+\\?\Z)",
            re.IGNORECASE,
        ),
        rf"\1\2\3\4\5{REDACTED}",
    ),
    Shape(
        ("pass", "pwd", "secret", "token", "key", "credential"),
        # name=value; name: value only with a digit, for prose and type annotations use the colon too.
        re.compile(
            rf"(?P<name>{_NAME}(?:=(?!=)|:(?=[ \t]{{0,4}}(?:[^\s0-9\"'\\]|{_BACKSLASHES}){{0,64}}[0-9]))[ \t]{{0,4}})"
            rf"{_NEW}{_BARE}{{6,}}+(?P<call>[(\[]?)",
            re.IGNORECASE,
        ),
        _unless_called,
    ),
)


def redact(text: str) -> str:
    """Return *text* with every known secret shape replaced by `[redacted]`; what is not one stays as it is."""
    if not text:
        return text
    lowered = text.lower()
    for shape in SHAPES:
        for mark in shape.marks:
            if mark in lowered:
                text = shape.pattern.sub(shape.replacement, text)
                break
    return text
