"""Replace what looks like a credential before words are stored. Every pattern runs in linear time."""

import re
from re import Pattern
from typing import NamedTuple

REDACTED = "[redacted]"


class Shape(NamedTuple):
    """A known form of secret: marks in lower case, one of which every match contains, and what to put in its place."""

    marks: tuple[str, ...]
    pattern: Pattern[str]
    replacement: str


# Quantifiers are bounded, or possessive on a run that no other match can start in: that keeps each pass linear.
_NAME = r"(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|credential)"
_KEY_BODY = r"[A-Za-z0-9+/=\s:,\\-]"
_KEY_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

SHAPES: tuple[Shape, ...] = (
    Shape(
        ("private key",),
        # A block that lost its end (output is cut into pieces) is removed as far as it looks like one.
        re.compile(rf"-----BEGIN {_KEY_LABEL}(?:{_KEY_BODY}*?-----END {_KEY_LABEL}|{_KEY_BODY}*+)"),
        REDACTED,
    ),
    Shape(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255})"),
        REDACTED,
    ),
    Shape(
        ("sk-",),
        # The digit keeps words such as sk-learn apart.
        re.compile(r"(?<![A-Za-z0-9])sk-(?:ant-[\w-]{16,}+|(?=[A-Za-z_-]{0,100}[0-9])[\w-]{20,}+)", re.ASCII),
        REDACTED,
    ),
    Shape(("akia", "asia"), re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"), REDACTED),
    Shape(("xox", "xapp-"), re.compile(r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}+"), REDACTED),
    Shape(("aiza",), re.compile(r"(?<![A-Za-z0-9])AIza[\w-]{35}", re.ASCII), REDACTED),
    Shape(("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+", re.ASCII), REDACTED),
    Shape(
        ("bearer", "authorization"),
        re.compile(
            r"(\bauthorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:[a-z]{1,20}[ \t]{1,4})?+|\bbearer[ \t]{1,4}(?=[^\s\"',;]{16}))"
            r"(?!\[redacted)[^\s\"',;]{6,}+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    Shape(
        ("://",),
        re.compile(r"(://)(?!git@)[^\s/@\"'<>]{1,512}@"),
        rf"\1{REDACTED}@",
    ),
    Shape(
        ("passw", "pwd", "secret", "token", "key", "credential"),
        # name=value, name="value", name: "value"; name: value only with a digit, for prose and type annotations
        # use the colon too. A call or an index is code that fetches a secret, not the secret.
        re.compile(
            rf"({_NAME}[\"']?[ \t]{{0,4}}(?:=(?!=)|:)[ \t]{{0,4}}[\"'])(?!\[redacted)[^\"'\r\n]{{4,512}}(?=[\"'])"
            rf"|({_NAME}[\"']?[ \t]{{0,4}}(?:=(?!=)|:(?=[ \t]{{0,4}}[^\s0-9]{{0,64}}[0-9]))[ \t]{{0,4}})"
            r"(?!\[redacted)[^\s\"',;&()\[\]{}<>]{6,}+(?![(\[])",
            re.IGNORECASE,
        ),
        rf"\1\2{REDACTED}",
    ),
)


def redact(text: str) -> str:
    """Return *text* with every known secret shape replaced by `[redacted]`; what is not one stays as it is."""
    lowered = text.lower()
    for shape in SHAPES:
        if any(mark in lowered for mark in shape.marks):
            text = shape.pattern.sub(shape.replacement, text)
    return text
