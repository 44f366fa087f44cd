"""Look into a repository on behalf of somebody who waits for the answer."""

from collections.abc import Callable
from typing import TypeVar

import structlog

from ...domain.rejected import Rejected
from ..ports.git import WorktreeBusy, WorktreeGone
from ..ports.log import LogUnavailable, Undecodable
from ..ports.tenure import LeaseLost
from .cause import UNEXPECTED, advice, cause_of

T = TypeVar("T")

log = structlog.get_logger(__name__)


class WorkspaceUnavailable(Rejected):
    """The project's working directory cannot be used now."""

    code = "workspace_unavailable"

    @property
    def reason(self) -> str:
        """The kind of cause."""
        return str(self.details.get("reason", UNEXPECTED))


def looked(look: Callable[[], T]) -> T:
    """
    Return what a look into a repository gives.

    Raises WorkspaceUnavailable for whatever stands in its way, with the kind of cause as `reason`, who can mend it and how.
    That a worktree is gone, or changes too fast, is told as it is: there is something else to look at then.
    """
    try:
        return look()
    except (Rejected, WorktreeGone, WorktreeBusy, LogUnavailable, Undecodable, LeaseLost):
        raise
    except Exception as error:
        cause = cause_of(error)
        log.warning(
            "a repository could not be looked at",
            error_code=cause.error_code,
            waits_for=cause.waits_for,
            error=cause.message,
            # Where it happened matters only to whoever mends the program.
            exc_info=cause.waits_for == "release",
        )
        # The words of the system may name files that are nobody's business: they are in the service's log.
        what = f"{WorkspaceUnavailable.__doc__} {advice(cause.error_code, cause.waits_for)}"
        raise WorkspaceUnavailable(what, reason=cause.error_code, waits_for=cause.waits_for) from error
