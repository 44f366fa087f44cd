"""A process dies with the batch that is named, and before, in or after its commit as it is asked to."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile, read_notes
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores import crash_points
from steersman.adapters.stores.crash_points import VARIABLE, with_crash_point
from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.application.ports.log import Append
from steersman.domain.event import Draft
from steersman.domain.facts.run_records import RunErased
from steersman.domain.kinds.catalogue import CATALOGUE


class Died(BaseException):
    """The process has ended."""


def append(name: str) -> Append:
    """Return an append of a fact with the topic that is waited for."""
    draft = Draft(stream=name, event=RunErased(run_id="r", texts=0))
    return Append(drafts=(draft,), expected={name: 0}, at=datetime.now(UTC), principal="ada", command_id=name)


@pytest.mark.parametrize(
    ("point", "in_store", "in_file"),
    [("lost", 2, 2), ("committed", 3, 2), ("stored", 3, 3)],
    ids=lambda value: str(value),
)
def test_each_point_is_where_its_name_says(
    point: str, in_store: int, in_file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Died

    monkeypatch.setattr(crash_points, "die", die)
    file = CheckpointFile(tmp_path / "checkpoints.log")
    opens = with_crash_point(sealed_by(Keyring(tmp_path / "keys"), file), {VARIABLE: f"{point} run.erased 2"})
    log = SqliteLog(tmp_path / "log.db", CATALOGUE, seal=opens)
    log.append(append("another"))
    with pytest.raises(Died):
        log.append(append("the one"))
    assert log.head() == in_store
    assert len(list(read_notes(file.path))) == in_file
    log.close()
