"""What was committed stays in the assembly, whoever of a subtask's line of authors committed it, or the gate says why not."""

from pathlib import Path

from steersman.application.commands.retry_run import AGAIN, Ids, retry_run
from steersman.application.ports.agents import AgentFailed, AgentUpdate, TurnEnd, TurnObserver
from steersman.application.writer.caller import Answer
from steersman.domain.facts.assembly import ReviewRequested, WorkLeftOut
from steersman.domain.facts.child_run import (
    AssembleReady,
    NoChangesProduced,
    RevisionHandedOver,
    RunCompleted,
    RunStarted,
    TreeCommitted,
)
from steersman.domain.facts.line import left_on_branch
from steersman.domain.facts.run import CoordinatorStarted
from steersman.domain.facts.work_plan import SubtaskCompleted
from steersman.domain.runs.retry import successor
from steersman.tests.application.outside import Session, writes
from steersman.tests.application.service import Service, by, part


def adds_nothing(session: Session, prompt: str, observer: TurnObserver) -> None:
    observer.update(AgentUpdate(kind="thought", text="It is all there."))


def dies_at_work(session: Session, prompt: str, observer: TurnObserver) -> None:
    observer.update(AgentUpdate(kind="thought", text="On it."))
    session._agents.behave = adds_nothing
    raise AgentFailed("agent_exited", "it crashed", retryable=True)


def refuses(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd:
    return TurnEnd(stop_reason="refusal", message="")


def gate(service: Service) -> ReviewRequested:
    """What was put before a person last."""
    assert service.run.status == "awaiting_review", service.run.plan
    return service.told(ReviewRequested)[-1]


def files(service: Service) -> dict[str, str]:
    """What stands at the gate."""
    return service.git.files(gate(service).commit_hash)


def at_gate(*names: str) -> Service:
    """One part whose agent wrote these files."""
    service = Service()
    service.start(part("One"))
    service.agents.behave = writes(names[0] if names else "one.txt")
    service.drive()
    return service


def test_work_that_git_ignores_is_not_called_no_work_without_a_word() -> None:
    service = Service()
    service.git.ignored = 3
    service.start(part("One"))
    service.agents.behave = adds_nothing
    service.drive()
    (said,) = service.told(NoChangesProduced)
    assert "3 files are ignored" in said.message


def handed_over(service: Service) -> None:
    """The present child of subtask 1 is a fresh one that added nothing; its predecessor's work is at the gate, and lands."""
    first, *_, last = service.told(RunStarted)
    assert service.child(1).run_id == last.run_id != first.run_id
    assert files(service)["one.txt"] == "done"
    assert service.run.plan is not None
    assert service.run.plan.subtasks[1].status == "assemble_ready"
    ready = service.told(AssembleReady)[-1]
    assert (ready.run_id, ready.handed_on_from, ready.has_changes) == (last.run_id, first.run_id, True)
    assert ready.tree_hash == service.git.tip(None, service.child(1).branch).tree
    assert not service.told(TreeCommitted)[-1].has_changes, "that turn changed nothing itself"
    assert not service.told(NoChangesProduced)
    assert not service.told(RunCompleted)
    assert not service.told(SubtaskCompleted)
    assert gate(service).left_out == ()
    service.approve()
    service.drive()
    assert service.run.status == "completed"
    assert service.merged() == {"a.txt": "hi", "one.txt": "done"}


def retry(service: Service) -> None:
    """Ask for another try."""

    def told(_: str | None) -> Answer:
        return Answer(status=200, body=b"")

    ids = Ids("w2", "again")
    retry_run("r", ids, by(), service.runs, service.git, service.agents, told)


def test_a_fresh_author_that_adds_nothing_hands_on_the_work_of_the_one_before() -> None:
    service = at_gate()
    service.agents.behave = dies_at_work
    service.request_changes("d")
    service.drive()
    assert service.told(RevisionHandedOver)
    handed_over(service)


def test_who_starts_afresh_after_a_crash_goes_on_with_what_was_committed_before_it() -> None:
    service = Service()
    service.start(part("One"))

    def writes_and_is_asked_for_more(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes("one.txt")(session, prompt, observer)
        service.command("g", "guidance", 1, words="And now the rest.")
        service.agents.behave = dies_at_work

    service.agents.behave = writes_and_is_asked_for_more
    service.drive()
    handed_over(service)


def test_the_line_goes_on_over_an_author_that_never_came_to_work() -> None:
    service = at_gate()
    first = service.child(1)
    service.agents.behave = dies_at_work
    service.request_changes("d")
    service.git.unmade = ["no_place"]
    assert service.drive().status != "awaiting_review"
    service.steer("r1", "redirect")
    service.drive()
    assert [e.prior_run_id for e in service.told(RunStarted)] == [None, first.run_id, first.run_id]
    handed_over(service)


def test_a_retry_after_a_merge_conflict_lands_what_the_first_try_had_made() -> None:
    service = Service()
    service.start(part("One"), part("Two"))

    def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
        writes("a.txt" if "part: One" in prompt else "two.txt", "ours")(session, prompt, observer)

    service.agents.behave = behave
    service.drive()
    service.git.commit_to("main", {"a.txt": "theirs", "b.txt": "new"})
    service.approve()
    service.drive()
    assert service.run.status == "merge_failed"
    assert service.merged()["a.txt"] == "theirs"
    service.agents.behave = adds_nothing
    retry(service)
    service.drive()
    shown = gate(service)
    assert files(service) == {"a.txt": "ours", "two.txt": "ours", "b.txt": "new"}
    assert shown.base.commit == service.git.branches["main"]
    assert shown.reason == "base_moved"
    assert [str(path) for path in shown.moved_files] == ["a.txt"]
    [conflict] = shown.conflicts
    assert (conflict.subtask_id, [str(path) for path in conflict.paths]) == (1, ["a.txt"])
    assert conflict.replaced is not None
    assert service.git.files(conflict.replaced)["a.txt"] == "theirs"
    first, second = service.told(RunStarted)[:2]
    assert conflict.branch == first.worktree_branch, "the version of the author before stands"
    prompt = service.agents.prompted(service.child(1).run_id)[0]
    assert "`a.txt`" in prompt
    assert conflict.replaced in prompt
    assert "could not be merged into the branch that it is for" in prompt
    assert AGAIN in prompt
    assert "changed in two places" not in service.agents.prompted(service.child(2).run_id)[0].lower()
    before = service.git.branches["main"]
    service.approve()
    service.drive()
    assert service.run.status == "completed"
    assert service.git.branches["main"] != before
    assert service.merged() == {"a.txt": "ours", "two.txt": "ours", "b.txt": "new"}
    assert second is not None


def test_what_a_line_has_made_is_in_sight_all_the_time_that_a_fresh_author_gets_its_place() -> None:
    service = at_gate()
    service.agents.behave = dies_at_work
    service.request_changes("d")
    made = list[str | None]()
    make = service.git.make_workplace

    def looks(repository: Path, workplace: Path, base: str) -> None:
        run = service.run
        assert run.plan is not None
        left = left_on_branch(run, run.plan.subtasks[1])
        made.append(left.commit if left else None)
        make(repository, workplace, base)

    service.git.make_workplace = looks
    service.drive()
    assert made
    assert all(made)


def test_work_that_its_own_author_took_back_is_said_to_be_left_out() -> None:
    service = at_gate()
    ready = service.child(1).head

    def takes_it_back(session: Session, prompt: str, observer: TurnObserver) -> None:
        del session.files["one.txt"]

    service.agents.behave = takes_it_back
    service.request_changes("d")
    service.drive()
    assert ready is not None
    [left] = service.told(WorkLeftOut)
    assert (left.subtask_id, left.child_run_id, left.commit, left.reason) == (
        1,
        service.child(1).run_id,
        ready.commit,
        "taken_back",
    )
    assert [(found.subtask_id, found.reason) for found in gate(service).left_out] == [(1, "taken_back")]


def test_work_that_did_not_fit_onto_its_rebuilt_base_is_said_to_be_left_out() -> None:
    service = Service()
    service.start(part("One"), part("Two", 0))

    def behave(session: Session, prompt: str, observer: TurnObserver) -> None:
        observer.update(AgentUpdate(kind="thought", text="On it."))
        if "part: Two" in prompt:
            session.files["shared.txt"] = "two's"
        elif "Changes are requested" in prompt:
            session.files["shared.txt"] = "one's, again"
            service.agents.behave = adds_nothing
        else:
            session.files.update({"shared.txt": "one's", "one.txt": "done"})

    service.agents.behave = behave
    service.drive()
    two = service.child(2)
    assert two.head is not None
    service.request_changes("d", "one.txt")
    service.drive()
    assert service.child(2).run_id != two.run_id
    assert [(e.child_run_id, e.commit, e.reason) for e in service.told(WorkLeftOut)] == [
        (two.run_id, two.head.commit, "base_conflict")
    ]
    assert [(found.subtask_id, found.reason) for found in gate(service).left_out] == [(2, "base_conflict")]
    assert files(service)["shared.txt"] == "one's, again"


def test_a_retry_as_a_new_run_hands_on_what_the_parts_of_the_failed_one_had_committed() -> None:
    service = Service()
    service.start(part("One"), part("Two"))

    def behave(session: Session, prompt: str, observer: TurnObserver) -> TurnEnd | str | None:
        return (refuses if "part: Two" in prompt else writes("one.txt"))(session, prompt, observer)

    service.agents.behave = behave
    service.drive()
    service.steer("s", "stop")
    service.drive()
    assert service.run.status == "failed"
    service.git.commit_to("main", {"b.txt": "new"})
    service.agents.behave = adds_nothing
    old = service.child(1)
    retry(service)
    [_, started] = service.told(CoordinatorStarted)
    assert started.retried_from == "r"
    assert service.drive(successor("r")).status == "awaiting_review"
    [shown] = service.told(ReviewRequested)
    assert service.git.files(shown.commit_hash) == {"a.txt": "hi", "b.txt": "new", "one.txt": "done"}
    assert old.head is not None
    *_, one, two = service.told(RunStarted)
    assert [(e.prior_run_id, e.prior_commit) for e in (one, two)] == [(old.run_id, old.head.commit), (None, None)]
    prompts = [service.agents.prompted(event.run_id)[0] for event in (one, two)]
    assert "It came to an end, and the run as a whole did not reach its goal (steering_stop)." in prompts[0]
    assert "What was committed is in your worktree" in prompts[0]
    assert "Its agent refused to do it (agent_refused)" in prompts[1]
    assert "Nothing of it is in your worktree" in prompts[1]
