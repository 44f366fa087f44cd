"""Nothing lands that nobody has seen: where the originating branch has changed the same files, a person looks once more."""

import pytest

from steersman.application.commands.review_assembly import review_assembly
from steersman.application.ports.agents import AgentUpdate, TurnObserver
from steersman.application.queries.explain_run import explain
from steersman.domain.facts.assembly import AssemblyStarted, BaseMoved, MergePrepared, ReviewRequested
from steersman.domain.runs.review import HeadMoved, ReviewAssembly
from steersman.tests.application.outside import Session
from steersman.tests.application.service import Service, by, part

#: What everybody starts from.
LINES = "one\ntwo\nthree\nfour\nfive"
APPENDS = 20


def changes_the_third(session: Session, prompt: str, observer: TurnObserver) -> None:
    observer.update(AgentUpdate(kind="thought", text="On it."))
    session.files["a.txt"] = session.files["a.txt"].replace("three", "THREE")


def at_gate() -> Service:
    """One part, whose agent changed the third line."""
    service = Service()
    service.git.commit_to("main", {"a.txt": LINES})
    service.start(part("One"))
    service.agents.behave = changes_the_third
    service.drive()
    assert service.run.status == "awaiting_review"
    return service


def gate(service: Service) -> ReviewRequested:
    assert service.run.status == "awaiting_review", service.run.plan
    return service.told(ReviewRequested)[-1]


def test_what_lands_beside_other_files_lands_without_another_look() -> None:
    service = at_gate()
    service.git.commit_to("main", {"b.txt": "new"})
    service.approve()
    assert service.drive().status == "completed"
    assert service.merged() == {"a.txt": LINES.replace("three", "THREE"), "b.txt": "new"}
    assert not service.told(BaseMoved)


def test_what_meets_in_a_file_goes_to_the_gate_again_and_lands_as_it_was_seen_there() -> None:
    service = at_gate()
    first = gate(service)
    service.git.commit_to("main", {"a.txt": LINES.replace("one", "ONE")})
    theirs = service.git.branches["main"]
    service.approve()
    service.drive()
    second = gate(service)
    assert service.git.branches["main"] == theirs, "nothing has moved"
    assert not service.told(MergePrepared)
    both = {"a.txt": LINES.replace("one", "ONE").replace("three", "THREE")}
    assert service.git.files(second.commit_hash) == both
    assert second.tree_hash != first.tree_hash
    assert second.gate_id != first.gate_id
    assert second.base.commit == theirs
    assert (second.reason, [str(path) for path in second.moved_files]) == ("base_moved", ["a.txt"])
    assert not second.escalated
    [moved] = service.told(BaseMoved)
    assert (moved.reason, moved.base.commit, moved.previous) == ("files_meet", theirs, first.base)
    assert [event.round for event in service.told(AssemblyStarted)] == [1, 2]
    old = ReviewAssembly(approved=True, reviewer="alice", tree_hash=first.tree_hash)
    with pytest.raises(HeadMoved):
        review_assembly("r", old, by(), service.runs, service.git)
    found = explain(service.run, None)
    assert found.moved_files == ("a.txt",)
    assert "main has meanwhile changed a.txt, too" in found.waits[-1].what
    service.approve()
    assert service.drive().status == "completed"
    assert service.merged() == both
    assert service.git.branches["main"] == second.commit_hash


def test_the_same_change_on_both_sides_is_no_news() -> None:
    service = at_gate()
    service.git.commit_to("main", {"a.txt": LINES.replace("three", "THREE")})
    service.approve()
    assert service.drive().status == "completed"
    assert not service.told(BaseMoved)


def test_a_branch_that_goes_on_moving_is_looked_at_each_time() -> None:
    service = at_gate()
    for number, word in enumerate(("one", "two", "five"), 1):
        now = service.merged()["a.txt"]
        service.git.commit_to("main", {"a.txt": now.replace(word, word.upper())})
        service.approve()
        service.drive()
        assert len(service.told(BaseMoved)) == number
    service.approve()
    assert service.drive().status == "completed"
    assert service.merged()["a.txt"] == "ONE\nTWO\nTHREE\nfour\nFIVE"


def test_a_change_that_is_asked_for_then_is_made_on_top_of_what_the_branch_holds_now() -> None:
    service = at_gate()
    child = service.child(1).run_id
    service.git.commit_to("main", {"a.txt": LINES.replace("one", "ONE")})
    service.approve()
    service.drive()
    seen = list[str]()

    def looks_and_writes(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        seen.append(session.files["a.txt"])
        session.files["a.txt"] = session.files["a.txt"].replace("four", "FOUR")

    service.agents.behave = looks_and_writes
    service.request_changes("d", "a.txt")
    service.drive()
    assert service.child(1).run_id == child
    assert seen == [LINES.replace("one", "ONE").replace("three", "THREE")]
    assert "has been changed since you finished" in service.agents.prompted(child)[-1]
    assert gate(service).reason == "base_moved", "nobody has approved anything on this base yet"
    assert gate(service).conflicts == ()
    service.approve()
    assert service.drive().status == "completed"
    assert service.merged()["a.txt"] == "ONE\ntwo\nTHREE\nFOUR\nfive"


def tell_the_story(fault_at: int | None, *, stored: bool) -> Service:
    """The branch moves while the work is at the gate, in the same file."""
    service = Service()
    service.git.commit_to("main", {"a.txt": LINES})
    service.start(part("One"))
    service.log.fault_at, service.log.stored_all_the_same = fault_at, stored
    service.agents.behave = changes_the_third
    service.drive()
    service.git.commit_to("main", {"a.txt": LINES.replace("one", "ONE")})
    service.approve()
    service.drive()
    service.approve()
    service.drive()
    return service


def test_the_story_has_as_many_appends_as_are_lost_below() -> None:
    assert tell_the_story(None, stored=False).log.appends == APPENDS


@pytest.mark.parametrize("stored", [False, True], ids=["lost", "unacknowledged"])
@pytest.mark.parametrize("fault_at", range(1, APPENDS + 1))
def test_a_fault_at_any_append_changes_nothing_about_the_end(fault_at: int, stored: bool) -> None:
    service = tell_the_story(fault_at, stored=stored)
    assert service.run.status == "completed"
    assert len(service.told(BaseMoved)) == 1
    assert service.merged() == {"a.txt": "ONE\ntwo\nTHREE\nfour\nfive"}
