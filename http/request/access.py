"""What a principal may see and change: the roles of the project that a run belongs to, read from the log."""

import re
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import msgspec

from ...application.ports.log import EventLog, Undecodable
from ...domain.event import Fact
from ...domain.facts.run import CoordinatorStarted, deletion_stream
from ...domain.projects.project import Project, evolve, project_stream
from ...domain.rejected import Forbidden, Invalid, ProjectNotFound, RunNotFound
from .given import Principal

Kept = TypeVar("Kept")

PAGE = 500
#: How many projects, and how many runs' places, are remembered.
MAX_KEPT = 4_096
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class InvalidRunId(Invalid):
    """A run id is a UUID, such as f36800fd-f2f8-418c-958e-aae3e4921ba6."""

    code = "invalid_run_id"


class InvalidProjectId(Invalid):
    """A project id is a UUID, such as a1b2c3d4-f2f8-418c-958e-aae3e4921ba6."""

    code = "invalid_project_id"


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was started, and where it belongs; neither ever changes."""

    run_id: str
    root: str
    project_id: str

    @property
    def is_coordinator(self) -> bool:
        """Whether the run is at the top of its tree."""
        return self.run_id == self.root


class Access:
    """
    The gate before every resource. It goes by the log, not by a view, so what was just created is there at once,
    and what was just taken away is gone.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = Lock()
        self._projects = OrderedDict[str, Project]()
        self._places = OrderedDict[str, RunPlace]()

    def project(self, principal: Principal, project_id: str, *, change: bool = False, own: bool = False) -> Project:
        """Return a project that the principal may see, change, or dispose of. Raises ProjectNotFound, Forbidden."""
        project = self.known(project_id)
        role = project.roles.get(principal.user)
        if role is None:
            raise ProjectNotFound
        if (change or own) and (role == "viewer" or principal.scope != "operator"):
            raise Forbidden(_why_not(principal))
        if own and role != "owner":
            raise Forbidden("Only an owner of this project may do that.")
        return project

    def operator(self, principal: Principal) -> None:
        """Let only a token with the scope `operator` pass. Raises Forbidden."""
        if principal.scope != "operator":
            raise Forbidden(_why_not(principal))

    def run(self, principal: Principal, run_id: str, *, change: bool = False, hides: bool = False) -> RunPlace:
        """
        Return the place of a run that the principal may see, or change.

        Raises:
            InvalidRunId: that is no run id.
            RunNotFound: there is no such run; with *hides* also when it is somebody else's.
            Forbidden: the run is somebody else's, or is only to be looked at.
        """
        place = self.place(run_id.lower())
        try:
            project = self.known(place.project_id)
        except ProjectNotFound as gone:
            raise RunNotFound from gone
        check_role(principal, project, change=change, hides=hides)
        return place

    def seeing(self, principal: Principal) -> Callable[[Fact], bool]:
        """
        Return a function that says whether a fact is the principal's to see: it belongs to one of their projects,
        or to none. It looks each project up once, so take a new one for each page of facts.
        """
        decided: dict[str, bool] = {}

        def sees(fact: Fact) -> bool:
            owner = fact.root or fact.stream
            if owner not in decided:
                decided[owner] = self._sees(principal, fact)
            return decided[owner]

        return sees

    def _sees(self, principal: Principal, fact: Fact) -> bool:
        try:
            if fact.root is not None:
                return principal.user in self.known(self.place(fact.root).project_id).roles
            kind, _, rest = fact.stream.partition("/")
            project_id = rest.partition("/")[0]
            return kind != "project" or principal.user in self.known(project_id).roles
        except (InvalidRunId, RunNotFound, ProjectNotFound, Undecodable):
            return False

    def may_see(self, principal: Principal, run_id: str) -> bool:
        """Return whether the principal would be shown a run: it exists, and they have a role in its project."""
        try:
            self.run(principal, run_id, hides=True)
        except (Forbidden, RunNotFound):
            return False
        return True

    def known(self, project_id: str) -> Project:
        """Return the project as the log has it now, whoever asks. Raises ProjectNotFound."""
        with self._lock:
            project = self._projects.get(project_id, Project())
        while facts := self._log.read_stream(project_stream(project_id), project.version, PAGE):
            for fact in facts:
                project = evolve(project, fact)
            if len(facts) < PAGE:
                break
        if project.version == 0 or project.state == "deleted":
            raise ProjectNotFound
        with self._lock:
            _keep(self._projects, project_id, project)
        return project

    def place(self, run_id: str) -> RunPlace:
        """Return the place of a run, whoever asks. Raises InvalidRunId, RunNotFound: also when it is deleted."""
        if not is_uuid(run_id):
            raise InvalidRunId
        with self._lock:
            place = self._places.get(run_id)
        if place is None:
            place = self._look_up(run_id)
            with self._lock:
                _keep(self._places, run_id, place)
        if self._log.read_stream(deletion_stream(place.root), limit=1):
            raise RunNotFound
        return place

    def placed(self, run_id: str) -> RunPlace | None:
        """Return the place of a run that was asked for before; whether it is deleted meanwhile is not said. Never blocks."""
        return self._places.get(run_id)

    def _look_up(self, run_id: str) -> RunPlace:
        first = self._log.read_run(run_id, limit=1)
        if not first or first[0].root is None:
            raise RunNotFound
        root = first[0].root
        started = first if root == run_id else self._log.read_run(root, limit=1)
        if not started or not isinstance(started[0].event, CoordinatorStarted):
            raise RunNotFound
        return RunPlace(run_id=run_id, root=root, project_id=started[0].event.project_id)


def check_role(principal: Principal, project: Project, *, change: bool, hides: bool) -> None:
    """Return if the principal may see, or change, the runs of a project; see Access. Raises RunNotFound, Forbidden."""
    role = None if project.state == "deleted" else project.roles.get(principal.user)
    if role is None and hides:
        raise RunNotFound
    if role is None:
        raise Forbidden("This run belongs to a project in which you have no role.")
    if change and (role == "viewer" or principal.scope != "operator"):
        raise Forbidden(_why_not(principal))


def is_uuid(given: str) -> bool:
    """Return whether this is a UUID in its usual spelling."""
    return _UUID.fullmatch(given) is not None


def _why_not(principal: Principal) -> str:
    if principal.scope != "operator":
        return "This token only looks. Use one with the scope `operator`."
    return "You may look at this project, and change nothing in it."


def _keep(kept: OrderedDict[str, Kept], key: str, value: Kept) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MAX_KEPT:
        kept.popitem(last=False)
