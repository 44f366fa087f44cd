"""Let turns begin in the runs that a project's budget kept from it, once that was raised."""

from collections.abc import Iterable, Sequence
from uuid import uuid4

import structlog

from ...domain.event import Draft
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Rejected
from ...domain.work import budget
from ..ports.log import Undecodable
from ..writer.caller import service
from ..writer.run_log import RunLog

log = structlog.get_logger(__name__)


def let_begin(roots: Iterable[str], runs: RunLog) -> None:
    """On return turns may begin in each of these runs where nothing but its project's budget kept them from it."""

    def decision(run: CoordinatorRun) -> Sequence[Draft]:
        return budget.release(run, runs.states.project(run.project_id))

    for root in roots:
        try:
            runs.decide(root, decision, service(str(uuid4())))
        except (Rejected, Undecodable):
            # It is deleted, or stuck; and whoever drives it looks again at each sweep.
            log.info("a run was not told that its project's budget was raised", run=root)
