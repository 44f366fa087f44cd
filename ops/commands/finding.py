"""What a person means who names a run, or something that waits, by the beginning of its id or not at all."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from ..refused import Refused
from .client import Client, path_part

#: What an id can begin with: shorter than a whole one.
_BEGINNING = re.compile(r"[0-9a-fA-F-]{1,35}")
#: How many candidates are named.
MAX_NAMED = 5


def run_path(run_id: str) -> str:
    """Return where a run is."""
    return f"/api/runs/{path_part(run_id)}"


def waiting_items(client: Client, **query: str | None) -> list[dict[str, Any]]:
    """Return everything that waits for somebody and fits the query, the oldest first. Raises Refused."""
    asked = urlencode({name: value for name, value in query.items() if value is not None})
    return [*client.pages("/api/waiting" + (f"?{asked}" if asked else ""))]


def find_run(client: Client, word: str) -> str:
    """Return the id of the run that is named, wholly or by its beginning. Raises Refused: none is, or several are."""
    if not _BEGINNING.fullmatch(word):
        return word  # the service says what is wrong with it, if anything is
    found = [run["execution_id"] for run in client.pages("/api/runs") if run["execution_id"].startswith(word.lower())]
    if not found:
        raise Refused(
            f"No run that you may see has an id that begins with {word!r}. They are listed by: steersman runs ls"
        )
    if len(found) > 1:
        raise Refused(f"Several runs have an id that begins with {word!r}: {_listed(found)}")
    return found[0]


def find_item(client: Client, word: str | None, kinds: Sequence[str], what: str) -> dict[str, Any]:
    """
    Return the one thing that waits, is of one of these kinds, and is named: by its own id, by that of its run or child
    run, or by the beginning of one of these; without a word it is the only one there is. *what* it is, is said in words.

    Raises Refused: nothing is meant, or several things are; nothing was changed.
    """
    meant = [item for item in waiting_items(client) if _is_meant(item, word)]
    found = [item for item in meant if item["kind"] in kinds]
    if len(found) == 1:
        return found[0]
    named = "" if word is None else f" by {word!r}"
    if not found:
        others = f" It has: {', '.join(dict.fromkeys(item['kind'] for item in meant))}." if word and meant else ""
        raise Refused(f"No {what} that waits is named{named}.{others} What waits is listed by: steersman waiting")
    lines = "\n".join(f"  {item['id']}  of run {item['run_id']}: {item['summary']}" for item in found[:MAX_NAMED])
    raise Refused(f"{len(found)} of what waits may be meant{named}; name one by its id:\n{lines}")


def _is_meant(item: dict[str, Any], word: str | None) -> bool:
    return word is None or any(
        str(item[name] or "").startswith(word.lower()) for name in ("id", "run_id", "child_run_id")
    )


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + more
