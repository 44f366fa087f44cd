"""What a view is: rows of one kind, each folded from facts by a pure function, and shown as they are stored."""

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from ..domain.event import Fact

Row = TypeVar("Row", bound=msgspec.Struct)

#: The group a row is listed in, its place there (a list shows the highest first), and its bytes.
Placed = tuple[str, int, bytes]

DELETED = "run.deleted"


def deleted_run(fact: Fact) -> str | None:
    """Return the run that is to be forgotten by the fact, if that is what it says: every view drops its rows."""
    return (fact.run or fact.root) if fact.topic == DELETED else None


class StoredRows(Protocol):
    """The rows of a view as they are stored, read inside the transaction that will change them."""

    def row(self, key: str) -> bytes | None:
        """Return a row's bytes."""
        ...

    def group(self, name: str) -> Mapping[str, bytes]:
        """Return the bytes of every row of a group, by key."""
        ...


class View(Generic[Row]):
    """
    One read model.

    `apply` is pure: it reads rows, and returns the rows that one fact changes, by key; None removes a row. A rebuild
    must give the same bytes, so nothing but rows and facts may enter. `version` is raised with every change of shape
    or of meaning, also when the domain's own `evolve`, which a fold may use, gives another answer to old facts.
    """

    def __init__(
        self,
        name: str,
        version: int,
        kind: type[Row],
        *,
        apply: "Callable[[Rows[Row], Fact], Mapping[str, Row | None]]",
        place: Callable[[Row], tuple[str, int]],
    ) -> None:
        self.name = name
        self.version = version
        self.apply = apply
        self.place = place
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Row:
        """Return the row that these bytes are."""
        return self._decoder.decode(body)

    def open(self, stored: StoredRows) -> "Rows[Row]":
        """Return the rows, ready to be folded on."""
        return Rows(self, stored)


class Rows(Generic[Row]):
    """The rows of a view while a batch of facts is folded: what is stored, and over it what the batch has changed."""

    def __init__(self, view: View[Row], stored: StoredRows) -> None:
        self._view = view
        self._stored = stored
        self._rows: dict[str, Row | None] = {}
        self._groups: set[str] = set()
        self._changed: dict[str, None] = {}

    def get(self, key: str) -> Row | None:
        """Return a row as it is now."""
        if key not in self._rows:
            body = self._stored.row(key)
            self._rows[key] = None if body is None else self._view.decode(body)
        return self._rows[key]

    def group(self, name: str) -> dict[str, Row]:
        """Return every row that is now in the group, by key."""
        if name not in self._groups:
            for key, body in self._stored.group(name).items():
                if key not in self._rows:
                    self._rows[key] = self._view.decode(body)
            self._groups.add(name)
        return {k: row for k, row in self._rows.items() if row is not None and self._view.place(row)[0] == name}

    def apply(self, fact: Fact) -> None:
        """Fold one fact. If that raises, the rows are as they were before."""
        changes = self._view.apply(self, fact)
        if changes:  # most facts change most views in nothing
            self._rows.update(changes)
            self._changed.update(dict.fromkeys(changes))

    def changes(self) -> dict[str, Placed | None]:
        """Return what the facts changed, encoded once however many facts touched a row."""
        return {key: self._placed(self._rows[key]) for key in self._changed}

    def _placed(self, row: Row | None) -> Placed | None:
        return None if row is None else (*self._view.place(row), msgspec.json.encode(row))
