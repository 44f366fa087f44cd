"""The facts of a run's record after, or besides, its work: put aside by its owner, deleted for good, erased."""

from typing import ClassVar

from ..event import Event


class RunArchived(Event, frozen=True, kw_only=True):
    """Somebody put the run aside; it is listed as archived and otherwise as it was."""

    TOPIC: ClassVar[str] = "run.archived"

    run_id: str
    archived_by: str


class RunDeleted(Event, frozen=True, kw_only=True):
    """
    Nobody is answered anything about this run any more. One fact for the coordinator and one for each of its children,
    stored together; ending what is at work and forgetting every word of it follow.
    """

    TOPIC: ClassVar[str] = "run.deleted"

    run_id: str
    deleted_by: str


class RunErased(Event, frozen=True, kw_only=True):
    """No word of a deleted tree is kept, and nothing of it is in its repository. Its facts, and their proofs, stay."""

    TOPIC: ClassVar[str] = "run.erased"

    run_id: str
    #: How many texts were forgotten now; a repetition after a crash finds fewer.
    texts: int
    #: The agents that keep what was said to them: they offer no way to have it deleted, or failed at it.
    kept_by_agents: tuple[str, ...] = ()
