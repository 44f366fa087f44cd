"""The runs and projects that a process keeps folded: values, so a batch that fails leaves them as they were."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from threading import Lock
from typing import Protocol

from ...domain.event import Fact
from ...domain.facts.fold import evolve, replay
from ...domain.facts.run import CoordinatorRun
from ...domain.projects.project import Project, project_stream, spending_stream
from ...domain.projects.project import evolve as evolve_project
from ..ports.log import Append, EventLog, Undecodable

#: How many runs are kept folded; others are folded from the log when they are asked for.
MAX_KEPT = 512
PAGE = 500
#: How many steps follow from one batch in one run.
MAX_STEPS = 1_024

Read = Callable[[int], Iterator[Sequence[Fact]]]


class Following(Protocol):
    """What follows from a run's state alone, for whoever drives the run."""

    def drives(self, root: str) -> bool:
        """Whether this process drives the run, under a lease where there are others."""
        ...

    def next(self, run: CoordinatorRun, now: datetime) -> Append | None:
        """Return the next facts that follow; None: nothing does, or not here."""
        ...


class States:
    """The States of one process, over one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        #: Decides what follows, once somebody drives runs here.
        self.following: Following | None = None
        self._lock = Lock()
        #: Every run that is kept has all of its facts up to `_position`; it may have later ones.
        self._kept = OrderedDict[str, CoordinatorRun]()
        self._position = 0
        #: The projects of these runs, in the same way.
        self._projects: dict[str, Project] = {}
        #: What the batch that is being decided has made of them.
        self._batch: dict[str, CoordinatorRun] = {}
        self._project_batch: dict[str, Project] = {}
        #: How far facts of the batch went in runs that were not kept: whoever reads one meanwhile may have read too early.
        self._passed_by: dict[str, int] = {}

    def read(self, root: str) -> CoordinatorRun:
        """Return the run as the log has it now, whoever asks. Raises Undecodable, LogUnavailable."""
        with self._lock:
            if self._is_empty():
                self._position = self._log.head()
            # Before the head is asked for: what is kept then has everything up to that head.
            run, position = self._kept.get(root), self._position
        if run is not None and self._log.head() == position:
            return run
        run = self._folded(root, run)
        with self._lock:
            kept = self._kept.get(root)
            # It may be ahead of the position; behind it, it must not be.
            if (kept is None and self._position == position) or (kept and kept.root_sequence < run.root_sequence):
                self._keep(root, run)
        return run

    def kept(self, root: str) -> CoordinatorRun | None:
        """Return the run as this process last saw it, if it is kept. Never blocks."""
        return self._kept.get(root)

    def forget(self, root: str) -> None:
        """Let go of a run whose words are erased: the next fold is from the log, and finds none."""
        with self._lock:
            self._kept.pop(root, None)

    def now(self, root: str) -> CoordinatorRun | None:
        """Return the run as the batch that is being decided has it; None: it is not kept. For decisions alone."""
        return self._batch.get(root) or self._kept.get(root)

    def project(self, project_id: str) -> Project:
        """Return a project that a run belongs to as the batch has it. For decisions alone."""
        return self._project_batch.get(project_id) or self._projects.get(project_id) or Project()

    # What the writer calls

    def load(self, root: str) -> None:
        """On return the run is kept, as far as it was stored when this was called. Raises Undecodable, LogUnavailable."""
        with self._lock:
            if self._is_empty():
                self._position = self._log.head()
            run, position = self._kept.get(root), self._position
            if run is not None and run.project_id in self._projects:
                self._kept.move_to_end(root)
                return
        run = run or self._folded(root, None)
        project = self._projects.get(run.project_id) or self._folded_project(run.project_id)
        with self._lock:
            # A reader who found nothing kept may have skipped what others stored since: these have all up to here.
            self._position = min(self._position, position)
            self._keep(root, run)
            self._projects[run.project_id] = project

    def meet(self, position: int, read: Read, limit: int | None = None) -> bool:
        """On True what is kept is as of the head; see States of the port."""
        with self._lock:
            if self._is_empty():
                self._position = position
        if position > self._position:
            if limit is not None and position - self._position > limit:
                return False
            try:
                for facts in read(self._position):
                    self.add(facts)
            except Undecodable:
                # Whoever asks for its run is told; the others are folded anew.
                self._forget_all()
        if position < self._position:
            self._forget_all()  # the store was put back
        self.settle(position)
        return True

    def add(self, facts: Sequence[Fact]) -> None:
        """Take note of what the batch is about to store, all of it or, if that raises, nothing."""
        changed: dict[str, CoordinatorRun] = {}
        projects: dict[str, Project] = {}
        for fact in facts:
            root = fact.root
            if root is None:
                kind, _, rest = fact.stream.partition("/")
                project_id, _, of = rest.partition("/")
                project = (
                    projects.get(project_id) or self._project_batch.get(project_id) or self._projects.get(project_id)
                )
                if kind == "project" and project is not None:
                    known = project.spending_version if of else project.version
                    if known < fact.version:
                        projects[project_id] = evolve_project(project, fact)
                continue
            if fact.root_sequence is None or fact.event.OUTPUT:
                continue
            run = changed.get(root) or self.now(root)
            if run is None:
                self._passed_by[root] = fact.root_sequence
            elif run.root_sequence < fact.root_sequence:
                changed[root] = evolve(run, fact)
        self._batch.update(changed)
        self._project_batch.update(projects)

    def leased(self, roots: Iterable[str]) -> Sequence[str]:
        """Return those of the runs whose leases `follow` rests on."""
        return () if self.following is None else [root for root in roots if self.following.drives(root)]

    def follow(self, now: datetime) -> Iterator[Append]:
        """Return what follows from the states that the batch has changed."""
        if self.following is None:
            return
        for root in list(self._batch):
            yield from self._follow(self.following, root, now)

    def _follow(self, following: Following, root: str, now: datetime) -> Iterator[Append]:
        for _ in range(MAX_STEPS):  # what is left the driver does
            before = self._batch[root]
            append = following.next(before, now)
            if append is None:
                return
            yield append
            if self._batch[root] is before:
                return

    def settle(self, position: int | None) -> None:
        """Keep what the batch has made of the states; None: nobody knows, so keep nothing at all."""
        batch, self._batch = self._batch, {}
        projects, self._project_batch = self._project_batch, {}
        passed_by, self._passed_by = self._passed_by, {}
        if position is None:
            self._forget_all()
            return
        with self._lock:
            for root, run in batch.items():
                if root in self._kept:
                    self._keep(root, run)
            for root, root_sequence in passed_by.items():
                run = self._kept.get(root)
                if run is not None and run.root_sequence < root_sequence:
                    del self._kept[root]
            self._projects.update(projects)
            self._position = position
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            if len(self._projects) > MAX_KEPT:
                self._projects.clear()

    def _is_empty(self) -> bool:
        """Whether nothing is kept that would have to be taken to the head."""
        return not (self._kept or self._projects)

    def _keep(self, root: str, run: CoordinatorRun) -> None:
        if run.exists:
            self._kept[root] = run
            self._kept.move_to_end(root)

    def _forget_all(self) -> None:
        with self._lock:
            self._kept.clear()
            self._projects.clear()
            self._batch, self._project_batch = {}, {}

    def _folded_project(self, project_id: str) -> Project:
        project = Project()
        while facts := self._log.read_stream(project_stream(project_id), project.version, PAGE):
            project = reduce(evolve_project, facts, project)
        while facts := self._log.read_stream(spending_stream(project_id), project.spending_version, PAGE):
            project = reduce(evolve_project, facts, project)
        return project

    def _folded(self, root: str, run: CoordinatorRun | None) -> CoordinatorRun:
        run = run or CoordinatorRun()
        # Until nothing comes: a page also ends before a fact that cannot be decoded, and the next read says so.
        while facts := self._log.read_tree(root, run.root_sequence, PAGE):
            run = replay(facts, run)
        return run
