"""
Keep the views at the log's head: read after a view's position, fold, store rows and position in one transaction.

A view is folded into a *generation*. One generation is active: it is what readers see. Another may be built beside it,
from position 0, while the active one goes on; it takes over as soon as it has come as far. Nothing else is needed
for a new view version, for a rebuild that somebody asks for, or after a crash in the middle of either: a
generation is always whole up to its position, so whoever finds one goes on with it.

Any number of processes may do this at once: the position is compared in the transaction that stores the rows, so
a fact is folded once, and whoever comes second reads again.

**A fact that cannot be folded** must not stop the views of other runs. Its run is quarantined in that view: its rows
stay as they were, its later facts are passed over, and a row in the group QUARANTINE says which run, where and why.
That row is part of the fold, so it survives a restart, a rebuild finds the same, and a release that can read the fact
says so with a new view version. A fault of the store is no such fault: nothing is stored, and it is tried again.
What is deleted is forgotten all the same, and with it its quarantine, whose reason may tell words of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from ...domain.event import Fact
from ...domain.facts.run_records import RunDeleted, RunErased
from ...domain.projects.project_facts import ProjectDeleted
from ..ports.log import EventLog, LogUnavailable, Undecodable
from ..ports.outside import Views

#: How many facts are folded in one transaction.
BATCH = 500
#: The group, in every view, of the runs that it cannot follow; a row's body is a QuarantinedStream.
QUARANTINE = "!quarantined"

#: The facts that are folded also where the view cannot follow what they are about; a store keeps no copy of what they remove.
FORGETTING = frozenset(kind.TOPIC for kind in (RunDeleted, RunErased, ProjectDeleted))

#: The group a row is listed in, its place there, and its bytes.
Placed = tuple[str, int, bytes]
Changes = Mapping[str, Placed | None]


class GenerationRows(Protocol):
    """The rows of a generation, as the transaction that will change them sees them. Raises LogUnavailable."""

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        ...

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        ...


class ViewRows(Protocol):
    """The rows of a view while facts are folded on them."""

    def apply(self, fact: Fact) -> None:
        """Fold one fact. If that raises, the rows are as they were before."""
        ...

    def changes(self) -> Changes:
        """Return the rows that the facts changed, by key; None for one that is removed."""
        ...


class ReadModel(Protocol):
    """A read model: see projections."""

    @property
    def name(self) -> str:
        """The name under which its rows are stored."""
        ...

    @property
    def version(self) -> int:
        """Rises with every change of what the same facts are folded into."""
        ...

    def open(self, stored: GenerationRows) -> ViewRows:
        """Return the rows, ready to be folded on."""
        ...


class ViewHead(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of a view and how far it is."""

    generation: int
    version: int
    position: int
    active: bool


class ViewStore(Views, Protocol):
    """Where views are kept. Every method is one transaction and may be called by any number of processes."""

    def together(self) -> AbstractContextManager[None]:
        """
        Make one transaction of what the calling thread does in the block.

        When it is left by an error nothing is stored; whoever was promised something before has to ask again.
        """
        ...

    def rest(self, seconds: float) -> None:
        """Return when the time is over, or as soon as somebody in this process waits for a view to come further."""
        ...

    def heads(self, view: str) -> Sequence[ViewHead]:
        """Return the view's generations, the oldest first."""
        ...

    def begin(self, view: str, version: int, *, beside: int | None) -> None:
        """
        Begin a generation at position 0 beside the active one, or as the active one if there is none (None).

        Nothing happens when another generation than *beside* is active by now, or one of this version is being built.
        """
        ...

    def extend(
        self,
        view: str,
        generation: int,
        *,
        after: int,
        upto: int,
        fold: Callable[[GenerationRows], Changes],
        forgets: bool = False,
    ) -> bool:
        """
        Take a generation from position *after* to *upto*: on True the rows that *fold* returned and the position
        are stored, and whoever waits for it is woken. With *forgets* what these rows were before is left to `tidy`.

        False when the generation is elsewhere by now, or gone: then nothing is stored, as when *fold* raises.
        """
        ...

    def swap(self, view: str, generation: int) -> bool:
        """Make the generation the active one, and drop the one that was, if it has come as far; readers see no gap."""
        ...

    def drop(self, view: str, generation: int) -> None:
        """Forget a generation; its absence is no fault."""
        ...

    def tidy(self) -> None:
        """
        On return the store keeps no copy of what was forgotten before: by an extension that forgets, or with a generation.

        Where a reader is in the way the next call does it, in whatever process that is: what is left to do is stored.
        """
        ...


class QuarantinedStream(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or a stream outside every run, that a view cannot follow since the fact at this position."""

    name: str
    position: int
    reason: str


class ViewProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of a view came to."""

    #: How many facts were folded or passed over.
    facts: int = 0
    quarantined: tuple[QuarantinedStream, ...] = ()
    #: Whether a generation that was built beside became the active one.
    swapped: bool = False


class Batches:
    """The log in batches; the last one is kept, so that views that stand at the same position read it once."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._after = 0
        self._last: Sequence[Fact] = ()

    def after(self, position: int) -> Sequence[Fact]:
        """Return the facts after *position*, at most BATCH. Raises Undecodable when it is the very next one."""
        if self._last and position == self._after:
            return self._last
        facts = self._log.read(position, BATCH)
        if facts:
            # Nothing new behind a generation that is at the head takes no batch from those that are being built.
            self._last, self._after = facts, position
        return facts

    def head(self) -> int:
        """Return the position of the log's last fact."""
        return self._log.head()


def prepare(store: ViewStore, log: EventLog, view: ReadModel) -> bool:
    """
    See to it that the view is being folded by this version; False when a newer one is active.

    An older version is rebuilt beside and stays readable meanwhile. A newer one is left to the replicas that know it.
    What is ahead of the log, because the log was put back to a backup, never happened and is dropped.
    """
    heads = store.heads(view.name)
    end = log.head()  # read after the heads: a view is never ahead of it by itself
    kept = [head for head in heads if head.position <= end and (head.active or head.version >= view.version)]
    for head in heads:
        if head not in kept:
            store.drop(view.name, head.generation)
    active = next((head for head in kept if head.active), None)
    if active is None or active.version < view.version:
        store.begin(view.name, view.version, beside=active.generation if active else None)
    return active is None or active.version <= view.version


def rebuild(store: ViewStore, view: ReadModel) -> None:
    """Begin to build the view anew beside what is there; whoever advances it does the rest."""
    active = next((head for head in store.heads(view.name) if head.active), None)
    store.begin(view.name, view.version, beside=active.generation if active else None)


def advance(store: ViewStore, batches: Batches, view: ReadModel) -> ViewProgress:
    """Take each generation of this version one batch further, and let one that is as far as the active one take over."""
    facts, quarantined = 0, list[QuarantinedStream]()
    for head in store.heads(view.name):
        if head.version == view.version:
            step = extend(store, batches, view, head)
            facts += step.facts
            quarantined += step.quarantined
    return ViewProgress(facts=facts, quarantined=tuple(quarantined), swapped=_take_over(store, view))


def catch_up(store: ViewStore, log: EventLog, views: Sequence[ReadModel]) -> None:
    """Fold everything that is in the log now, or more; on return no view of these has anything left to do."""
    batches = Batches(log)
    for view in views:
        prepare(store, log, view)
    # All of them a batch further, then all of them the next: so that each batch is read and decoded once.
    while any([_moved(advance(store, batches, view)) for view in views]):  # noqa: C419 - all, not up to the first
        pass
    store.tidy()


def _moved(progress: ViewProgress) -> bool:
    return progress.facts > 0 or progress.swapped


def _take_over(store: ViewStore, view: ReadModel) -> bool:
    heads = store.heads(view.name)
    active = next((head for head in heads if head.active), None)
    for head in heads:
        if active and not head.active and head.version == view.version and head.position >= active.position:
            return store.swap(view.name, head.generation)
    return False


def extend(
    store: ViewStore, batches: Batches, view: ReadModel, head: ViewHead, *, limit: int | None = None
) -> ViewProgress:
    """Fold the next batch into one generation, up to the position *limit* at most."""
    try:
        facts = batches.after(head.position)
    except Undecodable as error:
        return _pass_over(store, view, head, error)
    if limit is not None:
        facts = [fact for fact in facts if fact.position <= limit]
    if not facts:
        return ViewProgress()
    found: list[QuarantinedStream] = []

    def fold(stored: GenerationRows) -> Changes:
        found.clear()
        return _fold(view, stored, facts, found)

    forgets = any(fact.topic in FORGETTING for fact in facts)
    upto = facts[-1].position
    stored = store.extend(view.name, head.generation, after=head.position, upto=upto, fold=fold, forgets=forgets)
    return ViewProgress(facts=len(facts), quarantined=tuple(found)) if stored else ViewProgress()


def _fold(view: ReadModel, stored: GenerationRows, facts: Sequence[Fact], found: list[QuarantinedStream]) -> Changes:
    rows = view.open(stored)
    shunned = {_name_of(key) for key in stored.group(QUARANTINE)}
    let_go: set[str] = set()
    for fact in facts:
        name, forgets = fact.run or fact.stream, fact.topic in FORGETTING
        if shunned and not forgets and not shunned.isdisjoint((fact.run, fact.root, fact.stream)):
            continue
        try:
            rows.apply(fact)
        except LogUnavailable:
            raise  # the store's fault, not the fact's: it is tried again
        except Exception as error:  # noqa: BLE001 - a fold is pure, so the same fact would fail for ever
            shunned.add(name)
            reason = f"{fact.topic}: {type(error).__name__}: {error}"
            found.append(QuarantinedStream(name=name, position=fact.position, reason=reason))
            continue
        if forgets and name in shunned:
            shunned.remove(name)
            let_go.add(name)
    quarantined = {_key(one.name): _placed(one) for one in found if one.name in shunned}
    return {**rows.changes(), **{_key(name): None for name in let_go}, **quarantined}


def _pass_over(store: ViewStore, view: ReadModel, head: ViewHead, error: Undecodable) -> ViewProgress:
    one = QuarantinedStream(
        name=error.run or f"position/{error.position}", position=error.position, reason=error.reason
    )
    changes = {_key(one.name): _placed(one)}
    upto = error.position
    if not store.extend(view.name, head.generation, after=head.position, upto=upto, fold=lambda _: changes):
        return ViewProgress()
    return ViewProgress(facts=1, quarantined=(one,))


def _key(name: str) -> str:
    return f"{QUARANTINE}/{name}"


def _name_of(key: str) -> str:
    return key.removeprefix(f"{QUARANTINE}/")


def _placed(one: QuarantinedStream) -> Placed:
    return QUARANTINE, one.position, msgspec.json.encode(one)
