"""Say what the domain decides: given these facts, when this is decided, then these facts follow, or it is refused."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

from steersman.domain.event import Draft, Event, Fact
from steersman.domain.facts.fold import evolve, replay
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.rejected import Rejected

START = datetime(2026, 6, 7, 21, 9, 45, tzinfo=UTC)

E = TypeVar("E", bound=Event)
Decision = Callable[[CoordinatorRun], Sequence[Draft]]


class Numbers:
    """Gives drafts the places that the log would give them."""

    def __init__(self) -> None:
        self._position = 0
        self._heads: dict[tuple[str, str], int] = {}

    def store(self, drafts: Iterable[Draft]) -> list[Fact]:
        """Return the drafts as facts, each one second after the one before."""
        return [self._fact(draft) for draft in drafts]

    def _fact(self, draft: Draft) -> Fact:
        self._position += 1
        output = draft.event.OUTPUT
        return Fact(
            position=self._position,
            stream=draft.stream,
            version=self._next("stream", draft.stream),
            topic=draft.event.TOPIC,
            run=draft.run,
            run_sequence=None if draft.run is None else self._next("run", draft.run),
            root=draft.root,
            root_sequence=None if draft.root is None or output else self._next("root", draft.root),
            at=START + timedelta(seconds=self._position),
            principal="alice",
            command_id=f"command {self._position}",
            traceparent=None,
            event=draft.event,
        )

    def _next(self, kind: str, name: str) -> int:
        self._heads[kind, name] = self._heads.get((kind, name), 0) + 1
        return self._heads[kind, name]


class given:
    """The facts that a decision finds."""

    def __init__(self, *drafts: Draft | Sequence[Draft]) -> None:
        flat = [draft for part in drafts for draft in ((part,) if isinstance(part, Draft) else part)]
        self.facts = Numbers().store(flat)
        self.run = replay(self.facts)
        self._found: Sequence[Draft] = ()
        self._refused: Rejected | None = None

    def when(self, decision: Decision) -> Self:
        """Take the decision on a fresh fold."""
        try:
            self._found = decision(self.run)
        except Rejected as refused:
            self._refused = refused
        return self

    def then(self, *events: Event) -> None:
        """Exactly these facts follow, in this order."""
        if self._refused is not None:
            raise self._refused
        assert [draft.event for draft in self._found] == list(events)

    def then_rejected(self, kind: type[Rejected]) -> Rejected:
        """It is refused, for exactly this reason."""
        assert self._refused is not None
        assert type(self._refused) is kind, f"not refused as {kind.__name__}: {self._refused or self._found}"
        return self._refused


class Story:
    """A log of one run that is written step by step, and the state that it folds to."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.run = CoordinatorRun()
        self._numbers = Numbers()

    @property
    def now(self) -> datetime:
        """The moment of the next step."""
        return START + timedelta(seconds=len(self.facts) + 1)

    @property
    def events(self) -> list[Event]:
        """What was said so far."""
        return [fact.event for fact in self.facts]

    def put(self, drafts: Iterable[Draft]) -> list[Event]:
        """Store what was decided; return what it says."""
        stored = self._numbers.store(drafts)
        for fact in stored:
            self.facts.append(fact)
            if not fact.event.OUTPUT:
                self.run = evolve(self.run, fact)
        return [fact.event for fact in stored]

    def crash(self) -> None:
        """Forget the state, and fold it from the facts again."""
        self.run = replay(fact for fact in self.facts if not fact.event.OUTPUT)

    def told(self, kind: type[E]) -> list[E]:
        """Return the facts of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]
