"""Decide about runs: what waits is decided by the writer, on the runs as the log has them at that moment."""

from collections.abc import Callable, Sequence

import msgspec

from ...domain.event import Draft, Fact
from ...domain.facts.run import CoordinatorRun, deletion_stream, plan_stream
from ...domain.facts.topology import with_topology
from ...domain.projects.project import spending_stream
from ...domain.rejected import Busy, RunNotFound
from ..ports.log import Append, ConcurrencyConflict, EventLog, Fence, Tell
from ..ports.outside import Clock
from .caller import Answer, Caller
from .states import States

#: How often somebody looks again, because what a decision rests on had changed meanwhile.
MAX_ATTEMPTS = 8

#: Pure, as it is called while nobody else can write. Raises ConcurrencyConflict to be called again once somebody has looked.
Decision = Callable[[CoordinatorRun], Sequence[Draft]]
Answering = Callable[[CoordinatorRun, Sequence[Draft]], Answer]


class Deciding:
    """A Proposal about one run."""

    def __init__(
        self,
        root: str,
        decision: Decision,
        by: Caller,
        states: States,
        clock: Clock,
        answer: Answering | None,
        *,
        is_first_try: bool = False,
    ) -> None:
        self.root = root
        self.is_first_try = is_first_try
        self.states = states
        self.by = by
        self._decision = decision
        self._clock = clock
        self._answer = answer

    @property
    def command_id(self) -> str:
        """The caller's."""
        return self.by.command_id

    @property
    def fence(self) -> Fence | None:
        """What entitles a driver to it."""
        return self.by.fence

    @property
    def key(self) -> tuple[str, str, str, str] | None:
        """The identity of the request, if it has an idempotency key and there is an answer to be kept for it."""
        key = self.by.key
        return None if key is None or self._answer is None else (self.by.principal, key.method, key.path, key.key)

    def decide(self) -> Append | None:
        """Return what is to be stored. Raises RunNotFound, ConcurrencyConflict, and what the decision raises."""
        run = self.states.now(self.root)
        if run is None or not run.exists or (run.deleted and not self.by.is_service):
            raise RunNotFound
        drafts = with_topology(run, self._decision(run))
        if not drafts:
            return None
        told = self._answer(run, drafts) if self._answer else None
        expected = written_versions(run, drafts)
        if any(draft.root is None for draft in drafts):
            expected[spending_stream(run.project_id)] = self.states.project(run.project_id).spending_version
        return self.by.append(drafts, expected, self._clock.now(), told)


class RunLog:
    """The coordinator runs of the log, each folded as it is needed and kept in memory from then on."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self.states = States(log)

    def run(self, root: str) -> CoordinatorRun:
        """Return the run as the log has it now. Raises RunNotFound."""
        run = self.states.read(root)
        if not run.exists:
            raise RunNotFound
        return run

    def root_of(self, run_id: str) -> str:
        """Return the coordinator run of a coordinator or child run. Raises RunNotFound."""
        first = self.log.read_run(run_id, limit=1)
        if not first or first[0].root is None:
            raise RunNotFound
        return first[0].root

    def decide(
        self,
        root: str,
        decision: Decision,
        by: Caller,
        answer: Answering | None = None,
        look: Callable[[], object] | None = None,
    ) -> Sequence[Fact]:
        """
        Append what *decision* makes of the run; on return it is durable. A decision for nothing appends nothing.

        *look* is called whenever the decision found that what was looked up outside is no longer so; then it is taken again.

        Raises:
            RunNotFound: there is no such run.
            Busy: that was so MAX_ATTEMPTS times.
            AlreadyAnswered: the caller's idempotency key was used before.
        """
        for _ in range(MAX_ATTEMPTS):
            try:
                return self.log.append(Deciding(root, decision, by, self.states, self.clock, answer))
            except ConcurrencyConflict:
                if look is not None:
                    look()
        raise Busy

    def submit(self, root: str, decision: Decision, by: Caller, tell: Tell, answer: Answering | None = None) -> None:
        """
        Do the same for somebody who must not be kept waiting, and rests on nothing outside; see the log.

        The caller's command id was made for this call, and is not used again.
        """
        self.log.submit(Deciding(root, decision, by, self.states, self.clock, answer, is_first_try=True), tell)

    def forget(self, root: str) -> None:
        """Let go of a run whose words are erased: the next fold is from the log, and finds none."""
        self.states.forget(root)


def written_versions(run: CoordinatorRun, drafts: Sequence[Draft]) -> dict[str, int]:
    """
    Return the versions of the streams that these drafts are written to.

    What the decision has read besides is as of the head, which the writer holds. What is counted for the run's project is
    none of the run's.
    """
    of_run = (draft for draft in drafts if not draft.event.OUTPUT and draft.root is not None)
    return {draft.stream: run.versions.get(draft.stream, 0) for draft in of_run}


def read_versions(run: CoordinatorRun) -> dict[str, int]:
    """Return the versions on which rests what is decided about the run elsewhere: its own, its plan's, its deletion's."""
    streams = [run.stream, deletion_stream(run.run_id)]
    if run.plan is not None:
        streams.append(plan_stream(run.plan.work_plan_id))
    return {stream: run.versions.get(stream, 0) for stream in streams}


def encoded(status: int, body: object) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status=status, body=msgspec.json.encode(body))
