"""Words expire: what agents said long ago goes, what people said stays, and every fact is still there."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from steersman.adapters.stores.sqlite_log import SqliteLog
from steersman.domain.event import Draft, Text
from steersman.ops.admin.texts_command import forget_output
from steersman.ops.command_line import main
from steersman.tests.contracts.facts import AT, CATALOGUE, Said, Uttered, append, whole, words_of


def said(kind: type[Said | Uttered], words: str, number: int) -> Draft:
    """Return words of run `r`."""
    stream = "run/r/output" if kind is Uttered else f"run/r{number}"
    return Draft(stream=stream, event=kind(words=Text(words)), run="r", root="r")


def test_only_output_from_before_that_moment_is_forgotten(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", CATALOGUE)
    try:
        log.append(append("a", said(Uttered, "old output", 0)))
        log.append(append("b", said(Said, "old goal", 1)))
        log.append(append("c", said(Uttered, "new output", 2), at=AT + timedelta(days=2)))
        expired = forget_output(log, AT + timedelta(days=1))
        assert (expired.texts, expired.runs) == (1, 1)
        words = words_of(whole(log))
        assert words == [None, "old goal", "new output"]
        assert forget_output(log, AT + timedelta(days=1)).texts == 0
    finally:
        log.close()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--older-than", "90d"], 2, "--output-only"),
        (["--older-than", "90", "--output-only"], 2, "90d or 12h"),
        (["--older-than", "-1d", "--output-only"], 2, "no age"),
        (["--output-only"], 2, "--older-than"),
        (["--older-than", "90d", "--output-only"], 1, "There is no log"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = CliRunner().invoke(main, ["texts", "expire", "--data", str(tmp_path), *arguments])
    assert done.exit_code == code, done.output
    assert words in done.output
