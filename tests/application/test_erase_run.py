"""A deleted run leaves no branch, no worktree and no word, whatever is lost on the way; its facts stay."""

import time
from collections.abc import Sequence

import pytest

from steersman.application.commands.change_project import change_project
from steersman.application.commands.delete_project import go_on
from steersman.application.commands.end_run import cancel_run, delete_run
from steersman.application.ports.agents import AgentUpdate, TurnEnd, TurnObserver
from steersman.application.ports.log import LogUnavailable, Undecodable
from steersman.application.writer.caller import SERVICE, Caller
from steersman.application.writer.projects import load_project
from steersman.domain.event import Fact, Text, map_texts
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.child_run import RunCancelled
from steersman.domain.facts.run import deletion_stream
from steersman.domain.facts.run_records import RunErased
from steersman.domain.projects import project_changes
from steersman.domain.rejected import RunNotFound
from steersman.tests.application.outside import Session
from steersman.tests.application.service import Service, by, part

APPENDS = 5
#: How long the words wait that may be the beginning of a secret, in these tests.
HELD_SECONDS = 0.3


def words_of(service: Service) -> list[str]:
    """Return every word that the log still has of the run."""
    found: list[str] = []

    def keep(text: Text) -> None:
        if text.value:
            found.append(text.value)

    for fact in service.facts:
        if fact.root == "r":
            map_texts(fact.event, keep)
    return found


def at_the_gate() -> Service:
    """A run of two parts, which met in one file, whose assembled work waits for a decision."""
    service = Service()
    service.agents.behave = lambda session, *_: session.files.update(shared=session.request.run_id)
    service.start(part("One"), part("Two"))
    service.drive()
    assert service.run.status == "awaiting_review"
    return service


def delete(service: Service) -> None:
    """Delete the run as alice, who sends the same command again when she gets no answer."""
    caller = by()
    try:
        delete_run("r", caller, service.runs)
    except LogUnavailable:
        if not service.run.deleted:
            delete_run("r", caller, service.runs)


def test_a_run_that_cannot_be_read_is_hidden_and_forgotten_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    service = at_the_gate()
    kept, read_tree = words_of(service), service.log.read_tree

    def garbled(root: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        raise Undecodable(9, root, "garbled")

    service.restart()
    monkeypatch.setattr(service.log, "read_tree", garbled, raising=False)
    delete_run("r", by(), service.runs)
    with pytest.raises(RunNotFound):
        delete_run("r", by(), service.runs)
    monkeypatch.setattr(service.log, "read_tree", read_tree)
    assert kept
    assert words_of(service) == []
    assert [fact.event.run_id for fact in service.log.read_stream(deletion_stream("r"))] == ["r"]
    assert service.run.deleted
    with pytest.raises(RunNotFound):
        service.runs.decide("r", lambda _: (), by())


def test_a_run_that_cannot_be_read_keeps_no_project_from_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    service = at_the_gate()

    def garbled(root: str, after: int = 0, limit: int = 500) -> Sequence[Fact]:
        raise Undecodable(9, root, "garbled")

    monkeypatch.setattr(service.log, "read_tree", garbled, raising=False)
    service.restart()
    change_project("p", project_changes.start_deletion, by(), service.log, service.clock)
    go_on(["p"], [], lambda _: ["r"], service.runs)
    assert load_project("p", service.log).state == "deleted"
    assert words_of(service) == []
    # What was started too late, or was not listed at once, is deleted by a later sweep; this one is by now.
    go_on([], [("r", "p")], lambda _: [], service.runs)
    assert len(service.log.read_stream(deletion_stream("r"))) == 1


def test_a_run_at_its_gate_is_stopped_and_erased() -> None:
    service = at_the_gate()
    assert words_of(service)
    assert len(service.git.branches) == 4
    assert service.git.conflicts
    assert service.agents.sessions
    before = service.facts
    delete(service)
    assert service.drive().erased
    assert words_of(service) == []
    assert set(service.git.branches) == {"main"}
    assert not service.git.workplaces
    assert not service.git.conflicts
    assert not service.agents.alive
    assert not service.agents.sessions
    assert [event.reason for event in service.told(RunCancelled)] == ["deleted"]
    (erased,) = service.told(RunErased)
    assert erased.texts > 0
    assert erased.kept_by_agents == ()
    after = service.facts
    assert [(f.position, f.stream, f.version, f.topic) for f in after[: len(before)]] == [
        (f.position, f.stream, f.version, f.topic) for f in before
    ]


def appends_of_the_story() -> int:
    """Return how many appends a deletion takes."""
    service = at_the_gate()
    service.log.appends = 0
    delete(service)
    service.drive()
    return service.log.appends


def test_the_deletion_has_as_many_appends_as_are_lost_below() -> None:
    assert appends_of_the_story() == APPENDS


@pytest.mark.parametrize("stored", [False, True], ids=["lost", "unacknowledged"])
@pytest.mark.parametrize("fault_at", range(1, APPENDS + 1))
def test_a_fault_at_any_append_of_a_deletion_leaves_no_word(fault_at: int, stored: bool) -> None:
    service = at_the_gate()
    service.log.appends = 0
    service.log.fault_at, service.log.stored_all_the_same = fault_at, stored
    delete(service)
    assert service.drive().erased
    assert words_of(service) == []
    assert set(service.git.branches) == {"main"}
    assert not service.git.workplaces
    assert len(service.told(RunErased)) == 1
    assert len(service.told(RunCancelled)) == 1


def test_nobody_but_the_service_decides_about_a_deleted_run() -> None:
    service = at_the_gate()
    delete(service)
    head = len(service.facts)
    namesake = Caller(principal=SERVICE, command_id="c")
    for decide in (
        lambda: delete_run("r", by(), service.runs),
        lambda: cancel_run("r", "d", by(), service.runs),
        lambda: delete_run("r", namesake, service.runs),
    ):
        with pytest.raises(RunNotFound):
            decide()
    assert len(service.facts) == head


def test_the_products_driver_erases_what_was_deleted_before_it_started() -> None:
    service = at_the_gate()
    delete(service)
    service.restart()
    service.serve(open_runs=("r",))
    try:
        service.wait(lambda run: run.erased, "for the erasure")
    finally:
        service.stop()
    assert words_of(service) == []


def test_a_run_that_is_deleted_while_its_agent_talks_keeps_no_word() -> None:

    def talk(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
        observer.update(AgentUpdate(kind="message", text="my name is PERSONAL"))
        return session.hang()

    service = Service()
    service.wait_only(hold_words=HELD_SECONDS)
    service.agents.behave = talk
    service.start(part("One"))
    service.serve(open_runs=("r",))
    try:
        service.wait(lambda run: service.told(MessageDelta), "for the agent's words")
        delete(service)
        service.wait(lambda run: run.erased, "for the erasure")
        time.sleep(2 * HELD_SECONDS)
    finally:
        service.stop()
    assert words_of(service) == []
    assert isinstance(service.events[-1], RunErased)


def test_a_cancelled_run_ends_cancelled_and_keeps_its_words() -> None:
    service = at_the_gate()
    cancel_run("r", "d", by(), service.runs)
    run = service.drive()
    assert (run.status, run.result) == ("failed", "cancelled")
    assert service.directive("d").status == "applied"
    assert words_of(service)
