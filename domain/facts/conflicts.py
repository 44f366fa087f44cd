"""Where two authors changed the same place: whose version stands, and where the other one is kept."""

import msgspec

from ..event import Text


class Conflict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    On these paths two sides were changed in the same places. The version of `branch` stands there, that is the later
    one; what it replaced is kept at `ref`.
    """

    branch: str
    #: The subtask that the branch belongs to.
    subtask_id: int | None
    paths: tuple[Text, ...]
    ref: str
    #: The commit at `ref`, where that is known.
    replaced: str | None = None
