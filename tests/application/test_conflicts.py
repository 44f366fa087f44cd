"""What two children changed in the same places is shown to whoever decides, builds on it, or is asked to revise it."""

from steersman.application.ports.agents import AgentUpdate, TurnObserver
from steersman.application.queries.explain_run import explain
from steersman.domain.facts.assembly import ConflictAutoResolved, ReviewRequested
from steersman.domain.facts.child_run import BaseRebuilt, WorktreePrepared
from steersman.tests.application.outside import Session
from steersman.tests.application.service import Service, part

HEADING = "# Changed in two places"


def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
    observer.update(AgentUpdate(kind="thought", text="On it."))
    for name in ("One", "Two"):
        if f"part: {name}" in prompt:
            session.files["a.txt"] = name
    if "part:" in prompt:
        session.files[f"{session.request.run_id[:8]}.txt"] = "done"


def at_gate() -> Service:
    """One and Two change the same file, Three builds on both, Four has nothing to do with it."""
    service = Service()
    service.start(part("One"), part("Two"), part("Three", 0, 1), part("Four"))
    service.agents.behave = behave
    service.drive()
    assert service.run.status == "awaiting_review", service.run.plan
    return service


def prompt(service: Service, subtask_id: int) -> str:
    """The newest prompt of a subtask's agent."""
    return service.agents.prompted(service.child(subtask_id).run_id)[-1]


def test_a_conflict_is_said_at_the_gate_and_explained() -> None:
    service = at_gate()
    two = service.child(2)
    [said] = service.told(ConflictAutoResolved)
    assert (said.subtask_id, said.other_subtask_ids) == (2, (1,))
    [shown] = service.told(ReviewRequested)[-1].conflicts
    assert (shown.branch, shown.subtask_id, [str(path) for path in shown.paths]) == (two.branch, 2, ["a.txt"])
    assert (shown.ref, shown.replaced) == (said.ref, said.replaced)
    assert shown.ref in service.git.conflicts
    assert shown.replaced is not None
    assert service.git.files(shown.replaced)["a.txt"] == "One"
    found = explain(service.run, None)
    [standing] = found.conflicts
    assert (standing.branch, standing.paths, standing.ref) == (two.branch, ("a.txt",), shown.ref)
    assert "a.txt was changed in two places" in found.waits[-1].what


def test_a_dependant_is_told_what_conflicts_in_what_it_builds_on() -> None:
    service = at_gate()
    told = prompt(service, 3)
    assert HEADING in told
    assert "- `a.txt`: the version of the part Two stands; `git show " in told
    assert not any(HEADING in prompt(service, subtask_id) for subtask_id in (1, 2, 4))
    [prepared] = [e for e in service.told(WorktreePrepared) if e.conflicts]
    assert [str(path) for path in prepared.conflicts[0].paths] == ["a.txt"]


def test_the_authors_of_both_sides_are_told_when_changes_are_asked_for() -> None:
    service = at_gate()
    service.request_changes("d")
    service.drive()
    assert "- `a.txt`: the version of your part stands; `git show " in prompt(service, 2)
    assert "- `a.txt`: the version of the part Two stands; `git show " in prompt(service, 1)
    assert HEADING not in prompt(service, 4)


def test_a_dependant_whose_base_is_rebuilt_is_told_of_what_conflicts_there() -> None:
    service = at_gate()
    service.request_changes("d", f"{service.child(1).run_id[:8]}.txt")
    service.drive()
    [rebuilt] = service.told(BaseRebuilt)
    assert rebuilt.conflicts
    told = prompt(service, 3)
    assert "has been changed since you finished" in told
    assert told.count(HEADING) == 1
