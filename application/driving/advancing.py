"""What follows from a run's state alone is decided by whoever drives the run, in the commit of what it follows from."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import structlog

from ...domain.event import Draft
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.topology import with_topology
from ...domain.process.dispatch import advance
from ...domain.projects.project import Project
from ...domain.projects.team import Member
from ..effects.workshop import Workshop
from ..ports.log import Append
from ..ports.tenure import LeaseLost
from ..writer.caller import service
from ..writer.randomness import RANDOMNESS
from ..writer.run_log import written_versions

log = structlog.get_logger(__name__)


class Advancing:
    """The Following of a process that drives runs."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop

    def drives(self, root: str) -> bool:
        """Whether this process drives the run now."""
        return self._shop.tenure.holds(root)

    def next(self, run: CoordinatorRun, now: datetime) -> Append | None:
        """Return the next facts that follow; None: nothing does, the run is driven elsewhere, or a fault is in the way."""
        if not self.drives(run.run_id):
            return None
        try:
            drafts = with_topology(run, self.drafts(run, now))
            if not drafts:
                return None
            by = service(RANDOMNESS.new_id(), self._shop.tenure.fence(run.run_id))
            return by.append(drafts, written_versions(run, drafts), now)
        except LeaseLost:
            return None
        except Exception:
            # The driver meets it, too, and holds the run with its cause. Whoever gave the command has their receipt.
            log.exception("what follows from a command could not be decided", run=run.run_id)
            return None

    def drafts(self, run: CoordinatorRun, now: datetime) -> Sequence[Draft]:
        """Return the next step."""
        # Only a correction that the decision table looks at can need to know who else is on the team.
        needs_team = any(not directive.direct for directive in run.pending_directives())
        waits_for_project = run.out_of is not None and run.out_of.scope == "project"
        project = self._shop.project(run) if needs_team or waits_for_project else Project()
        return advance(run, now, self._team(project) if needs_team else (), project)

    def _team(self, project: Project) -> tuple[Member, ...]:
        """Return who can take over in a run, each with the full id of the model that they would work with."""
        team = project.team
        resolve = self._shop.agents.resolve
        return tuple(
            msgspec.structs.replace(member, model_id=resolve(member.model_id) if member.model_id else None)
            for member in team
        )
