"""Every refusal of the domain answers with the word and the status that clients know it by."""

import importlib
from collections.abc import Iterator
from pathlib import Path

from steersman.domain.rejected import Rejected

ROOT = Path(__file__).parents[2]


def kinds(of: type[Rejected]) -> Iterator[type[Rejected]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("steersman.domain."):
            yield kind
        yield from kinds(kind)


def test_a_refusal_has_the_word_and_the_status_that_it_always_had() -> None:
    for path in (ROOT / "domain").rglob("*.py"):
        importlib.import_module(".".join(("steersman", *path.relative_to(ROOT).with_suffix("").parts)))
    told = sorted(f"{kind.status} {kind.code}" for kind in kinds(Rejected))
    known = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").splitlines()
    assert told == known, "what clients know stays; a new refusal is a new line"
