"""Decide about runs: fold the tree, decide, append, and on a lost race do it again from a fresh fold."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock, RLock

import msgspec

from ..domain.event import Draft, Fact
from ..domain.fold import replay
from ..domain.rejected import Busy, RunNotFound
from ..domain.run import Run, deletion_stream, plan_stream
from ..domain.topology import with_topology
from .caller import Answer, Caller
from .log_port import Conflict, EventLog
from .ports import Clock

#: How often a decision is taken again because others changed what it was based on.
MAX_ATTEMPTS = 8
#: How many runs are kept folded; others are folded from the log when they are asked for.
MAX_KEPT = 512
PAGE = 500

Decision = Callable[[Run], Sequence[Draft]]
Answering = Callable[[Run, Sequence[Draft]], Answer]


class _Kept:
    """A run as far as it is folded, and the lock under which it is decided about."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.run = Run()


class RunLog:
    """The coordinator runs of the log, each folded as it is needed and kept in memory from then on."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()

    def run(self, root: str) -> Run:
        """Return the run as the log has it now. Raises RunNotFound."""
        kept = self._keep(root)
        with kept.lock:
            run = self._fold(root, kept)
        if not run.exists:
            raise RunNotFound
        return run

    def root_of(self, run_id: str) -> str:
        """Return the coordinator run of a coordinator or child run. Raises RunNotFound."""
        first = self.log.read_run(run_id, limit=1)
        if not first or first[0].root is None:
            raise RunNotFound
        return first[0].root

    def decide(self, root: str, decision: Decision, by: Caller, answer: Answering | None = None) -> Sequence[Fact]:
        """
        Append what *decision* makes of the run; on return it is durable. A decision for nothing appends nothing.

        Decisions about one tree are taken one after the other in this process; against other processes the
        expected versions decide, and the loser decides again.

        Raises:
            RunNotFound: there is no such run.
            Busy: others won MAX_ATTEMPTS times.
            AlreadyAnswered: the caller's idempotency key was used before.
        """
        kept = self._keep(root)
        with kept.lock:
            for _ in range(MAX_ATTEMPTS):
                run = self._fold(root, kept)
                if not run.exists or (run.deleted and not by.is_service):
                    raise RunNotFound
                drafts = with_topology(run, decision(run))
                if not drafts:
                    return ()
                told = answer(run, drafts) if answer else None
                append = by.append(drafts, expected_versions(run, drafts), self.clock.now(), told)
                try:
                    return self.log.append(append)
                except Conflict:
                    continue
        raise Busy

    def forget(self, root: str) -> None:
        """Let go of a run whose words are erased: the next fold is from the log, and finds none."""
        with self._lock:
            self._kept.pop(root, None)

    def _keep(self, root: str) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(root, _Kept())
            self._kept.move_to_end(root)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return kept

    def _fold(self, root: str, kept: _Kept) -> Run:
        # Until nothing comes: a page also ends before a fact that cannot be decoded, and the next read says so.
        while facts := self.log.read_tree(root, kept.run.root_sequence, PAGE):
            kept.run = replay(facts, kept.run)
        return kept.run


def expected_versions(run: Run, drafts: Sequence[Draft]) -> dict[str, int]:
    """
    Return the versions that an append of these drafts rests on.

    Besides the streams that it writes, every decision has read the coordinator's and the plan's.
    """
    streams = {draft.stream for draft in drafts if not draft.event.OUTPUT}
    if run.exists:
        # Every decision has also read that the run is not deleted: of a deletion and anything else one comes first.
        streams |= {run.stream, deletion_stream(run.run_id)}
        if run.plan is not None:
            streams.add(plan_stream(run.plan.work_plan_id))
    return {stream: run.versions.get(stream, 0) for stream in sorted(streams)}


def encoded(status: int, body: object) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status=status, body=msgspec.json.encode(body))
