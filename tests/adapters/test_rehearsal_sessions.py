"""The rehearsal agent's sessions on disk: torn by a crash, deleted by several processes at once."""

from concurrent.futures import ThreadPoolExecutor
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


def test_sessions_can_be_listed_and_deleted_by_several_at_once(tmp_path: Path) -> None:
    ids = [StoredSession.create(tmp_path, tmp_path).session_id for _ in range(100)]

    def delete_all() -> None:
        for session_id in ids:
            StoredSession.delete(tmp_path, session_id)

    with ThreadPoolExecutor() as pool:
        deletions = [pool.submit(delete_all) for _ in range(3)]
        while not all(deletion.done() for deletion in deletions):
            assert {found["sessionId"] for found in StoredSession.those_in(tmp_path, None)} <= set(ids)
        for deletion in deletions:
            deletion.result()
    assert StoredSession.those_in(tmp_path, None) == []
    assert list(tmp_path.iterdir()) == []
