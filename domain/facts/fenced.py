"""Find the JSON in what an agent says: its fenced blocks, however long their fences are."""

import re
from collections.abc import Iterator

import msgspec

#: A longer fence may hold a shorter one, as Markdown has it.
_BLOCK = re.compile(r"(?ms)^ {0,3}(?P<fence>`{3,}|~{3,})(?:json)?[ \t]*\n(?P<body>.*?)^ {0,3}(?P=fence)[`~]*[ \t]*$")


def json_blocks(answer: str) -> Iterator[object]:
    """Yield what the fenced blocks of an answer hold, the last one first; a block that is no JSON is passed over."""
    for match in reversed(list(_BLOCK.finditer(answer))):
        try:
            yield msgspec.json.decode(match["body"].encode(errors="replace"))
        except (msgspec.DecodeError, RecursionError):
            continue
