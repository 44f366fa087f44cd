"""
Where a secret in a stream of words may have begun that is not complete yet.

Agents send their words in pieces. Whoever stores a piece cut in the middle of a secret stores two halves, neither of
which looks like one.
"""

import re

#: A single word, or a line, that is longer is let go: no secret that we know is.
MAX_HELD = 4_096
MAX_HELD_KEY = 16_384
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_MARK = re.compile(
    # Tests that passed are no secret: pass alone has a colon or an equals sign behind it, or the end for now.
    r"pass(?:w|phr|[\\\"']{0,8}[ \t]{0,4}(?:[:=]|\Z))|pwd|secret|token|key|credential|bearer|authorization|://",
    re.IGNORECASE,
)


def unfinished(text: str) -> int:
    """Return where the part of *text* begins that is to be kept back until more is known; its length if nothing is."""
    first = max(0, len(text) - MAX_HELD)
    key = text.rfind("-----BEGIN ", max(0, len(text) - MAX_HELD_KEY))
    if key >= 0:
        end = _KEY_END.search(text, key)
        if end is None:
            return key
        first = max(first, end.end())
    word = _last_word(text, first, len(text))
    if word == first and first > 0 and key < 0:
        return len(text)
    mark = _MARK.search(text, max(first, text.rfind("\n", first) + 1))
    # From the word on that holds the mark: its beginning is part of what is known by it.
    return word if mark is None else _last_word(text, first, mark.start())


def _last_word(text: str, first: int, end: int) -> int:
    return max(first - 1, *(text.rfind(space, first, end) for space in " \n\t\r")) + 1
