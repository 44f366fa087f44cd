"""The thread that keeps every view at the log's head, for as long as the process serves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Thread
from time import monotonic

import msgspec
import structlog

from ...projections import open_runs, project_view, run_list
from ...projections.catalogue import VIEWS
from ...projections.view import Row, View
from ..commands.delete_project import go_on
from ..ports.log import EventLog
from ..ports.outside import Views, Wakeups
from ..writer.run_log import RunLog
from .project_views import Batches, ReadModel, ViewStore, advance, prepare

#: How long a fact may wait for a wake-up that was lost.
POLL_SECONDS = 0.5
#: How long a step waits for more facts after one that found some, if nobody waits for a view.
TICK_SECONDS = 0.03
#: A view that failed rests this long; twice as long each time it fails again, up to the limit.
FIRST_REST_SECONDS = 0.1
LONGEST_REST_SECONDS = 10.0
#: When the store was tidied, that rests this many times as long as it took: views are to be folded most of the time.
TIDYING_RESTS = 10
#: How long a sweep waits for the view that it reads.
CATCH_UP_SECONDS = 10.0

_logger = structlog.get_logger(__name__)


def open_run_ids(views: Views, log: EventLog) -> Iterator[str]:
    """
    Return the coordinator runs that are not closed, the newest first, as of the log's head now.

    A view that does not come that far in time is read as it is: what it misses is found by the next sweep.
    """
    views.wait(open_runs.VIEW.name, log.head(), CATCH_UP_SECONDS)
    yield from (row.run_id for row in listed(views, open_runs.VIEW, open_runs.GROUP))


def listed(views: Views, view: View[Row], group: str) -> Iterator[Row]:
    """Return every row of a group, the highest first."""
    before: int | None = None
    while rows := views.list(view.name, group, before=before):
        yield from (view.decode(row.body) for row in rows)
        before = rows[-1].order


def sweep(views: Views, runs: RunLog) -> Iterator[str]:
    """Return the same as `open_run_ids`, after every deletion of a project that is under way has gone on."""
    head = runs.log.head()
    # A project is deleted when every run of it is, so both views must know them all.
    seen = [views.wait(view.name, head, CATCH_UP_SECONDS) for view in (open_runs.VIEW, run_list.VIEW)]
    if not all(seen):
        return open_run_ids(views, runs.log)
    deleting = [row.project_id for row in listed(views, project_view.VIEW, project_view.DELETING)]
    found = [(row.run_id, row.project_id) for row in listed(views, open_runs.VIEW, open_runs.GROUP)]

    def runs_of(project_id: str) -> Iterator[str]:
        return (row.execution_id for row in listed(views, run_list.VIEW, project_id))

    go_on(deleting, found, runs_of, runs)
    return open_run_ids(views, runs.log)


class Watched(msgspec.Struct):
    """One view under supervision."""

    view: ReadModel
    prepared: bool = False
    failures: int = 0
    resting_until: float = 0.0
    last_error: str | None = None


class ViewKeeper:
    """
    Folds the log into views in a thread of its own, woken by announcements and by a slow poll.

    A view that fails is tried again, less and less often but for ever; meanwhile the others go on. What a round forgot is
    in no file of the store after it, or, if that cannot be done at once, after a later one: the poll sees to it that one comes.
    """

    def __init__(
        self,
        store: ViewStore,
        log: EventLog,
        wakeups: Wakeups,
        *,
        views: Sequence[ReadModel] = VIEWS,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._log = log
        self._wakeups = wakeups
        self._watched = [Watched(view) for view in views]
        self._now = now
        self._tidy_after = 0.0
        self._batches = Batches(log)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="views", daemon=True)

    def start(self) -> None:
        """Begin; the views move from now on."""
        self._thread.start()

    def stop(self) -> None:
        """On return nothing is folded any more: within one batch and one poll."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: it ends only when it is told to."""
        return self._thread.is_alive()

    def errors(self) -> Mapping[str, str]:
        """Return, by name, the views that failed when they were last tried, and of what."""
        return {watched.view.name: watched.last_error for watched in self._watched if watched.last_error is not None}

    def step(self) -> bool:
        """Take every view that is not resting one batch further, and tidy their store; return whether any of them moved."""
        due = [watched for watched in self._watched if watched.resting_until <= self._now()]
        sound = [watched for watched in due if not watched.failures]
        alone = [watched for watched in due if watched.failures]
        moved: list[bool] = []
        try:
            with self._store.together():
                for watched in sound:
                    moved.append(self._advance(watched))
        except Exception as error:  # noqa: BLE001 - the thread must outlive any fault of a store or a view
            for watched in sound[len(moved) : len(moved) + 1]:
                self._failed(watched, error)
            # Nothing of the others is stored: each goes on by itself.
            alone = [watched for watched in due if not (watched.failures and watched in sound)]
            for watched in alone:
                watched.prepared = False
            moved = []
        moved += [self._step(watched) for watched in alone]
        if self._tidy_after <= self._now():
            # After all views: what they forget in one round costs one tidying.
            self._tidy()
        return any(moved)

    def _run(self) -> None:
        announced = 0
        while not self._stopping.is_set():
            try:
                if self.step():
                    # Under load the facts of several commits are folded at once.
                    self._store.rest(TICK_SECONDS)
                else:
                    # From the last announcement, not from a view's position: one that runs ahead of what can be
                    # read (a log put back to a backup) must not make this a busy loop.
                    announced = max(announced, self._wakeups.wait(announced, POLL_SECONDS))
            except Exception:  # whatever the wake-ups do, the poll goes on
                _logger.exception("views_wait_failed")
                self._stopping.wait(POLL_SECONDS)

    def _tidy(self) -> None:
        began = self._now()
        try:
            self._store.tidy()
        except Exception as error:  # noqa: BLE001 - as for a view: what is left to do is stored
            _logger.warning("views_not_tidied", error=str(error), next_try_in_seconds=LONGEST_REST_SECONDS)
            self._tidy_after = began + LONGEST_REST_SECONDS
        else:
            self._tidy_after = self._now() + TIDYING_RESTS * (self._now() - began)

    def _step(self, watched: Watched) -> bool:
        try:
            moved = self._advance(watched)
        except Exception as error:  # noqa: BLE001 - the thread must outlive any fault of a store or a view
            self._failed(watched, error)
            return False
        watched.failures, watched.resting_until, watched.last_error = 0, 0.0, None
        return moved

    def _failed(self, watched: Watched, error: Exception) -> None:
        watched.failures += 1
        watched.last_error = f"{type(error).__name__}: {error}"
        watched.prepared = False
        rest = min(FIRST_REST_SECONDS * 2 ** min(watched.failures - 1, 16), LONGEST_REST_SECONDS)
        watched.resting_until = self._now() + rest
        # The first time with where it came from; a fault that lasts would fill the log with that.
        tell = _logger.exception if watched.failures == 1 else _logger.warning
        tell("view_failed", view=watched.view.name, error=watched.last_error, next_try_in_seconds=rest)

    def _advance(self, watched: Watched) -> bool:
        view = watched.view
        if not watched.prepared:
            if not prepare(self._store, self._log, view):
                _logger.warning("view_left_to_newer_release", view=view.name, version=view.version)
            watched.prepared = True
        progress = advance(self._store, self._batches, view)
        for one in progress.quarantined:
            _logger.error("view_quarantined", view=view.name, run=one.name, position=one.position, reason=one.reason)
        if progress.swapped:
            _logger.info("view_rebuilt", view=view.name, version=view.version)
        return progress.facts > 0 or progress.swapped
