"""The rehearsal agent's sessions on disk, torn by a crash."""

from pathlib import Path

from steersman.adapters.rehearsal.sessions import StoredSession


def test_a_torn_line_of_history_is_cut_before_the_next_is_written(tmp_path: Path) -> None:
    session = StoredSession.create(tmp_path, tmp_path)
    session.add_history("user", "whole")
    with (tmp_path / session.session_id / "history.jsonl").open("ab") as file:
        file.write(b'{"speaker": "agent", "te')
    assert session.history() == [("user", "whole")]
    session.add_history("agent", "next")
    assert session.history() == [("user", "whole"), ("agent", "next")]
