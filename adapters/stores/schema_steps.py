"""
How the tables of a store change from release to release: numbered steps, always taken in the order of their numbers.

A step is a file `sql/STORE_NNNN_before_NAME.sql` or `sql/STORE_NNNN_after_NAME.sql`, and one transaction. A *before* step
only adds, so that the release before this one goes on working while it is taken and afterwards. An *after* step
takes away what only older releases needed, once none of them serves any more. Step 1 is what each store makes by itself
when it is opened; a published file never changes.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal, cast

import msgspec

Store = Literal["postgres", "sqlite"]
Phase = Literal["before", "after"]
Applied = Mapping[int, Phase]

FILES = Path(__file__).parent / "sql"
NAME = re.compile(r"(?P<store>[a-z]+)_(?P<number>\d{4})_(?P<phase>before|after)_(?P<name>\w+)\.sql")

CREATE = (
    "CREATE TABLE IF NOT EXISTS steersman_schema"
    " (step integer PRIMARY KEY, phase text NOT NULL, name text NOT NULL, applied_at text NOT NULL)"
)
SELECT = "SELECT step, phase FROM steersman_schema"


class SchemaUnfit(Exception):
    """The tables are not those that this release works with."""


class SchemaStep(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the tables."""

    number: int
    phase: Phase
    name: str
    sql: str

    def __str__(self) -> str:
        return f"step {self.number} ({self.phase}: {self.name})"


def read_steps(store: Store, files: Path = FILES) -> Sequence[SchemaStep]:
    """Return the steps of a store, by number, from the first."""
    found = [
        SchemaStep(
            number=1, phase="before", name="tables", sql=(files / f"{store}_log.sql").read_text(encoding="utf-8")
        )
    ]
    for file in sorted(files.glob(f"{store}_[0-9]*.sql")):
        match = NAME.fullmatch(file.name)
        if match is None or int(match["number"]) != len(found) + 1:
            raise ValueError(f"{file.name} is not step {len(found) + 1} of {store}")
        phase = cast("Phase", match["phase"])
        sql = file.read_text(encoding="utf-8")
        found.append(SchemaStep(number=len(found) + 1, phase=phase, name=match["name"], sql=sql))
    return found


def due(steps: Sequence[SchemaStep], applied: Applied, phase: Phase | None) -> Sequence[SchemaStep]:
    """
    Return the steps to be taken now: all that are left, or those of a phase that come next.

    Raises SchemaUnfit if one of that phase is behind one of the other: it would be taken out of order.
    """
    left = [step for step in steps if step.number not in applied]
    if phase is None:
        return left
    ready = list(takewhile(lambda step: step.phase == phase, left))
    behind = next((step for step in left[len(ready) :] if step.phase == phase), None)
    if behind is not None:
        raise SchemaUnfit(
            f"{behind} comes behind {left[len(ready)]}, which is not taken yet. Take the other kind first "
            "(--before while the older release serves, --after once it does not), go through the releases one by "
            "one, or stop every process and run `steersman migrate` without an option."
        )
    return ready


def check(steps: Sequence[SchemaStep], applied: Applied) -> None:
    """Return if this release can work with the tables. Raises SchemaUnfit."""
    missing = [step for step in steps if step.phase == "before" and step.number not in applied]
    if missing:
        raise SchemaUnfit(
            f"The database lacks {', '.join(map(str, missing))}. Run first: steersman migrate --before "
            "(the release that serves now goes on working)."
        )
    # What a newer release added is in nobody's way; what it took away, this one may need.
    taken_away = [number for number, phase in applied.items() if phase == "after" and number > len(steps)]
    if taken_away:
        raise SchemaUnfit(
            f"A newer release has taken away what this one needs (step {taken_away[0]} of the tables). "
            "Run that release, or restore a backup from before it."
        )
