"""The verdict on whatever it is: a bundle, a store or a receipt."""

from collections.abc import Callable
from typing import Any

from .facts import Tampered
from .notes import Unreadable
from .trust import Verdict

EXITS = {"clean": 0, "steered": 10, "tampered": 20, "open": 30, "unchecked": 30}


def judged(verify: Callable[..., Verdict], *arguments: Any) -> Verdict:
    """What a check says of its arguments, also where it finds something."""
    try:
        return verify(*arguments)
    except Tampered as finding:
        return Verdict("tampered", finding.position, finding.what)
    except (Unreadable, OSError) as error:
        return Verdict("unchecked", what=str(error))
