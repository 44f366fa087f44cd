"""What agents ask, and what becomes of it: granted, asked about, decided once, brought back once, and expired by nobody."""

from collections.abc import Callable, Sequence

import pytest

from steersman.domain.event import Draft, Event
from steersman.domain.facts.asking import (
    AnswerDelivered,
    ApprovalResolved,
    AutoApproved,
    AutopilotAnswered,
    AutopilotFailed,
    ChildApprovalRequired,
    ChildApprovalResolved,
    ChildQuestion,
    OptionsSet,
    QuestionAnswered,
    QuestionAsked,
    Scope,
    ShellApprovalRequired,
    ToolApprovalRequired,
    command_hash,
)
from steersman.domain.facts.bad_ends import STALLED, BadEnd
from steersman.domain.facts.child_run import RunCancelled, TurnEnded
from steersman.domain.facts.run import CoordinatorRun
from steersman.domain.process.effects import AnswerQuestion
from steersman.domain.rejected import Invalid, RunNotActive
from steersman.domain.work import agent_requests, answers, child_ends, turns, workers
from steersman.domain.work.agent_requests import RequestUnknown, ToolCall
from steersman.domain.work.answers import NoPendingQuestion
from steersman.domain.work.turns import Overtaken
from steersman.tests.domain.fleet import Fleet, part

STALL = BadEnd(code=STALLED, message="Silence.", stall_seconds=300)
FETCH = ToolCall(tool_name="web_fetch", tool_input='{"url":"https://a"}', url="https://a")
ELSEWHERE = ToolCall(tool_name="web_fetch", tool_input='{"url":"https://b"}', url="https://b")
OTHER = ToolCall(tool_name="search", tool_input="{}")
REMOVE = ToolCall(tool_name="shell", tool_input='{"command":"rm -rf x"}', command="rm  -RF x")


class Asking(Fleet):
    """Two children at work, whose agents ask."""

    def __init__(self) -> None:
        super().__init__(part("first"), part("second"))
        for subtask_id in (1, 2):
            self.start(subtask_id)

    def ask(self, call: ToolCall | str, subtask_id: int = 1) -> str:
        """The agent asks; return the request's id."""
        child = self.child_id(subtask_id)
        asked = agent_requests.ask_question if isinstance(call, str) else agent_requests.ask_tool
        request_id, drafts = asked(self.run, child, call)
        self.put(drafts)
        return request_id

    def approve(self, request_id: str, scope: Scope = "once") -> list[Event]:
        return self.put(answers.resolve(self.run, request_id, approved=True, scope=scope, by="alice"))

    def answer(self, request_id: str, words: str = "Blue.") -> list[Event]:
        return self.put(answers.answer(self.run, request_id, words, "alice"))

    def deliver(self, request_id: str, subtask_id: int = 1) -> None:
        self.put(agent_requests.deliver(self.run, self.child_id(subtask_id), request_id))

    def interrupt(self) -> None:
        """The service dies and takes the first child's turn up again."""
        self.crash()
        drafts = turns.interrupt_turn(self.run, self.child_id(1), found_in_history=True, session_kept=True)
        self.put(drafts)

    def state(self, request_id: str) -> str:
        return answers.find_request(self.run, request_id)[1].state


@pytest.fixture
def asking() -> Asking:
    return Asking()


def test_a_request_is_shown_on_the_childs_feed_and_on_the_coordinators(asking: Asking) -> None:
    before = len(asking.events)
    for call in (FETCH, REMOVE, "Which colour?"):
        asking.ask(call)
    assert [type(event) for event in asking.events[before:]] == [
        ToolApprovalRequired,
        ChildApprovalRequired,
        ShellApprovalRequired,
        ChildApprovalRequired,
        QuestionAsked,
        ChildQuestion,
    ]


def test_the_same_call_asked_again_before_its_answer_is_the_same_request(asking: Asking) -> None:
    for call in (FETCH, REMOVE, "Which colour?"):
        first = asking.ask(call)
        before = len(asking.events)
        assert asking.ask(call) == first
        assert len(asking.events) == before


def ends() -> dict[str, Callable[[Asking], object]]:
    """Every way in which a session, or what it was about, can end while somebody is asked."""

    def child(asking: Asking) -> str:
        return asking.child_id(1)

    def aborted(asking: Asking) -> None:
        directive = asking.command("abort", 1)
        asking.settle()
        asking.confirm_end(directive)

    return {
        "its service dies": lambda a: a.put(
            turns.interrupt_turn(a.run, child(a), found_in_history=True, session_kept=True)
        ),
        "its session is lost": lambda a: a.put(
            turns.interrupt_turn(a.run, child(a), found_in_history=False, session_kept=False)
        ),
        "its turn ends": lambda a: a.put(turns.end_turn(a.run, child(a), "end_turn")),
        "its turn is cancelled": lambda a: a.put(turns.end_turn(a.run, child(a), "cancelled")),
        "it fails": lambda a: a.put(
            child_ends.fail_child(a.run, child(a), a.now, error_code="x", message="x", retryable=False)
        ),
        "it is aborted": aborted,
        "it stalls": lambda a: a.put(child_ends.end_badly(a.run, child(a), a.now, STALL)),
    }


@pytest.mark.parametrize("how", ends())
def test_what_can_no_longer_be_heard_is_closed_on_the_log_whatever_ended_the_session(asking: Asking, how: str) -> None:
    asked = {call: asking.ask(call) for call in (FETCH, REMOVE, "Which colour?")}
    others = asking.ask(FETCH, 2)
    ends()[how](asking)
    assert [asking.state(request) for request in asked.values()] == ["expired", "expired", "answered"]
    with pytest.raises(NoPendingQuestion):
        asking.answer(asked["Which colour?"])
    assert asking.state(others) == "pending", "another agent's question is heard as before"


def test_what_is_asked_again_after_a_restart_is_a_new_request_that_can_be_heard(asking: Asking) -> None:
    for call in (FETCH, REMOVE, "Which colour?"):
        first = asking.ask(call)
        asking.interrupt()
        again = asking.ask(call)
        assert again != first
        assert asking.state(again) == "pending"


def test_the_same_call_after_its_answer_was_brought_is_a_new_request(asking: Asking) -> None:
    first = asking.ask(FETCH)
    asking.approve(first)
    asking.deliver(first)
    assert asking.ask(FETCH) != first


def test_after_an_interruption_an_answer_holds_and_a_permission_is_asked_for_anew(asking: Asking) -> None:
    """The agent that had them is gone. Words may be repeated; what was allowed once may not be done twice."""
    question, tool = asking.ask("Which colour?"), asking.ask(FETCH)
    asking.answer(question)
    asking.approve(tool)
    asking.deliver(question)
    asking.deliver(tool)
    asking.interrupt()
    assert asking.ask("Which colour?") == question
    assert asking.state(question) == "answered"
    asking.deliver(question)
    assert asking.ask("Which colour?") != question
    assert asking.ask(FETCH) != tool


def test_an_answer_is_brought_once_and_only_when_there_is_one(asking: Asking) -> None:
    request_id = asking.ask(FETCH)
    child = asking.child_id(1)
    assert not agent_requests.is_settled(asking.run, child, request_id)
    with pytest.raises(Overtaken):
        agent_requests.deliver(asking.run, child, request_id)
    asking.approve(request_id)
    assert agent_requests.is_settled(asking.run, child, request_id)
    assert [d.event for d in agent_requests.deliver(asking.run, child, request_id)] == [
        AnswerDelivered(request_id=request_id)
    ]
    asking.deliver(request_id)
    with pytest.raises(Overtaken):
        agent_requests.deliver(asking.run, child, request_id)


@pytest.mark.parametrize(
    ("scope", "granted"),
    [
        ("once", []),
        ("run", [(FETCH, 1)]),
        ("tool", [(FETCH, 1), (ELSEWHERE, 1)]),
        ("always", [(call, child) for call in (FETCH, ELSEWHERE, OTHER) for child in (1, 2)]),
    ],
)
def test_a_scope_covers_what_it_says_and_never_what_is_destructive(
    asking: Asking, scope: Scope, granted: list[tuple[ToolCall, int]]
) -> None:
    first = asking.ask(FETCH)
    asking.approve(first, scope)
    asking.deliver(first)
    for call in (FETCH, ELSEWHERE, OTHER):
        for subtask_id in (1, 2):
            request_id = asking.ask(call, subtask_id)
            expected = "approved" if (call, subtask_id) in granted else "pending"
            assert asking.state(request_id) == expected, (call.tool_input, subtask_id)
    assert asking.state(asking.ask(REMOVE)) == "pending"


@pytest.mark.parametrize("scope", ["run", "tool", "always"])
def test_turning_auto_approval_off_takes_back_what_was_granted_for_more_than_one_call(
    asking: Asking, scope: Scope
) -> None:
    first = asking.ask(FETCH)
    asking.approve(first, scope)
    asking.deliver(first)
    asking.put(answers.set_options(asking.run, "autopilot", True))
    asking.put(answers.set_options(asking.run, "autopilot", False))
    passed = asking.ask(FETCH)
    assert asking.state(passed) == "approved"
    asking.deliver(passed)
    asking.put(answers.set_options(asking.run, "auto_approve_tools", False))
    assert asking.state(asking.ask(FETCH)) == "pending"
    assert answers.set_options(asking.run, "auto_approve_tools", False) == ()


@pytest.mark.parametrize("scope", ["run", "tool", "always"])
def test_a_destructive_command_is_allowed_once_whatever_the_scope_says(asking: Asking, scope: Scope) -> None:
    first = asking.ask(REMOVE)
    asking.approve(first, scope)
    asking.deliver(first)
    assert asking.state(asking.ask(REMOVE)) == "pending"
    assert asking.state(asking.ask(FETCH)) == "pending"


def test_the_first_decision_stands(asking: Asking) -> None:
    request_id = asking.ask(FETCH)
    resolved, shown = asking.put(answers.resolve(asking.run, request_id, approved=False, scope="once", by="bob"))
    assert isinstance(resolved, ApprovalResolved)
    assert (resolved.approved, resolved.expired, resolved.resolved_by) == (False, False, "bob")
    assert isinstance(shown, ChildApprovalResolved)
    assert asking.approve(request_id) == []
    assert asking.state(request_id) == "denied"


def test_a_question_takes_one_answer(asking: Asking) -> None:
    request_id = asking.ask("Which colour?")
    (answered,) = asking.answer(request_id)
    assert isinstance(answered, QuestionAnswered)
    assert (str(answered.answer), answered.answered_by, answered.timed_out) == ("Blue.", "alice", False)
    for decision in (answers.answer, answers.answer_by_autopilot):
        with pytest.raises(NoPendingQuestion):
            decision(asking.run, request_id, "Green.", *(("bob",) if decision is answers.answer else ()))


@pytest.mark.parametrize("words", ["", " \n", "x" * 16_385])
def test_an_answer_without_usable_words_is_refused(asking: Asking, words: str) -> None:
    with pytest.raises(Invalid):
        answers.answer(asking.run, asking.ask("Which colour?"), words, "alice")


def test_requests_are_found_by_their_coordinator_or_by_the_child_that_asked(asking: Asking) -> None:
    tool, shell, question = asking.ask(FETCH), asking.ask(REMOVE), asking.ask("Which colour?")
    first, second = asking.child_id(1), asking.child_id(2)
    digest = command_hash("rm  -RF x")
    for asked_by in (None, first):
        assert answers.find_request(asking.run, tool, asked_by)[0].run_id == first
        assert answers.find_question(asking.run, question, asked_by)[0].run_id == first
        assert answers.find_command(asking.run, digest.removeprefix("sha256:"), asked_by)[1].request_id == shell
    refused: Sequence[tuple[Callable[[CoordinatorRun, str, str | None], object], str, type[Exception]]] = (
        (answers.find_request, tool, RequestUnknown),
        (answers.find_question, question, NoPendingQuestion),
        (answers.find_command, digest, RequestUnknown),
    )
    for find, name, error in refused:
        with pytest.raises(error):
            find(asking.run, name, second)
    for unknown in (command_hash("ls"), command_hash("ls").removeprefix("sha256:"), ""):
        with pytest.raises(RequestUnknown):
            answers.find_command(asking.run, unknown)
    with pytest.raises(RequestUnknown):
        answers.resolve(asking.run, question, approved=True, scope="once", by="alice")
    with pytest.raises(NoPendingQuestion):
        answers.answer(asking.run, tool, "Blue.", "alice")


def test_only_what_is_asked_and_open_waits_for_a_person(asking: Asking) -> None:
    tool = asking.ask(FETCH)
    child = asking.child_id(1)
    assert agent_requests.waits_for_person(asking.run, child, tool)
    assert not agent_requests.waits_for_person(asking.run, child, "nothing of that name")
    asking.approve(tool)
    assert not agent_requests.waits_for_person(asking.run, child, tool)


def test_turning_auto_approval_on_grants_the_tools_that_wait(asking: Asking) -> None:
    tool, shell, question = asking.ask(FETCH), asking.ask(REMOVE), asking.ask("Which colour?")
    asking.put(answers.set_options(asking.run, "auto_approve_tools", True))
    asking.settle()
    assert [asking.state(r) for r in (tool, shell, question)] == ["approved", "pending", "pending"]
    (granted,) = asking.told(AutoApproved)
    assert isinstance(granted, AutoApproved)
    assert (granted.request_id, granted.approval_source) == (tool, "auto_approve_tools")
    assert asking.state(asking.ask(OTHER, 2)) == "approved"


def test_options_are_set_once_and_only_while_the_run_is_at_work(asking: Asking) -> None:
    (said,) = answers.set_options(asking.run, "autopilot", True)
    assert said.event == OptionsSet(auto_approve_tools=False, autopilot=True)
    assert answers.set_options(asking.run, "autopilot", False) == ()
    for subtask_id in (1, 2):
        asking.end(subtask_id)
        asking.finish(subtask_id)
    asking.assemble()
    with pytest.raises(RunNotActive):
        answers.set_options(asking.run, "autopilot", True)


def expired_before(asking: Asking, kind: type[Event], drafts: Sequence[Draft]) -> None:
    """Tool and question are closed without anybody's word, in front of the fact that ends what they belong to."""
    said = asking.put(drafts)
    closed = [e for e in said if isinstance(e, ApprovalResolved | QuestionAnswered)]
    assert len(closed) == 2
    tool, question = closed
    assert isinstance(tool, ApprovalResolved)
    assert (tool.approved, tool.expired, tool.resolved_by) == (False, True, None)
    shown = [e for e in said if isinstance(e, ChildApprovalResolved)]
    assert [(e.request_id, e.approved, e.expired) for e in shown] == [(tool.request_id, False, True)]
    assert isinstance(question, QuestionAnswered)
    assert (question.answer, question.timed_out, question.answered_by) == (None, True, None)
    last = max(
        said.index(e) for e in said if isinstance(e, ApprovalResolved | ChildApprovalResolved | QuestionAnswered)
    )
    assert last < next(place for place, e in enumerate(said) if isinstance(e, kind))
    assert not [e for e in asking.settle() if isinstance(e, ApprovalResolved | QuestionAnswered)]


def test_what_waits_when_its_turn_ends_expires_and_nobody_has_denied_it(asking: Asking) -> None:
    tool, question = asking.ask(FETCH), asking.ask("Which colour?")
    expired_before(asking, TurnEnded, turns.end_turn(asking.run, asking.child_id(1), "cancelled"))
    assert answers.resolve(asking.run, tool, approved=True, scope="always", by="alice") == ()
    with pytest.raises(NoPendingQuestion):
        asking.answer(question)
    for request_id in (tool, question):
        with pytest.raises(Overtaken):
            asking.deliver(request_id)
    assert asking.run.grants == frozenset()


def test_what_waits_when_its_child_is_aborted_expires_before_the_childs_last_fact(asking: Asking) -> None:
    asking.ask(FETCH)
    asking.ask("Which colour?")
    directive_id = asking.command("abort", 1)
    asking.settle()
    child = asking.child_id(1)
    expired_before(asking, RunCancelled, workers.confirm_end(asking.run, directive_id, {child: (1,)}, asking.now))


def test_time_that_is_over_after_an_answer_takes_nothing_away(asking: Asking) -> None:
    question, late = asking.ask("Which colour?"), asking.ask("Which size?")
    asking.answer(question)
    assert agent_requests.time_out_question(asking.run, asking.child_id(1), question) == ()
    (timed_out,) = asking.put(agent_requests.time_out_question(asking.run, asking.child_id(1), late))
    assert isinstance(timed_out, QuestionAnswered)
    assert (timed_out.answer, timed_out.timed_out) == (None, True)


def test_a_question_that_autopilot_fails_at_three_times_needs_a_person_and_the_next_one_is_tried(
    asking: Asking,
) -> None:
    first, second = asking.ask("Which colour?"), asking.ask("Which size?")
    asking.put(answers.set_options(asking.run, "autopilot", True))

    def tried() -> list[tuple[str, str]]:
        return [(e.id, e.request_id) for e in asking.effects if isinstance(e, AnswerQuestion)]

    for attempt in (1, 2, 3):
        assert tried() == [(f"{first}/autopilot/{attempt}", first)]
        asking.put(answers.fail_autopilot(asking.run, first, "agent_exited", "it died"))
    assert [event.state for event in asking.told(AutopilotFailed)] == ["retrying", "retrying", "needs_attention"]
    assert tried() == [(f"{second}/autopilot/1", second)]
    for enabled in (False, True):
        asking.put(answers.set_options(asking.run, "autopilot", enabled))
    assert tried() == [(f"{first}/autopilot/1", first)]
    asking.put(answers.answer(asking.run, first, "Blue.", "alice"))
    with pytest.raises(NoPendingQuestion):
        answers.fail_autopilot(asking.run, first, "agent_exited", "it died")


def test_autopilot_answers_one_question_of_a_child_after_the_other_and_says_so(asking: Asking) -> None:
    first, second, other = asking.ask("Which colour?"), asking.ask("Which size?"), asking.ask("Which shape?", 2)
    assert not [effect for effect in asking.effects if isinstance(effect, AnswerQuestion)]
    asking.put(answers.set_options(asking.run, "autopilot", True))
    assert [e.request_id for e in asking.effects if isinstance(e, AnswerQuestion)] == [first, other]
    asking.put(answers.answer_by_autopilot(asking.run, first, "Blue."))
    assert [e.request_id for e in asking.effects if isinstance(e, AnswerQuestion)] == [second, other]
    (said,) = asking.told(AutopilotAnswered)
    assert isinstance(said, AutopilotAnswered)
    assert (said.run_id, said.child_run_id, str(said.question), str(said.answer)) == (
        "r",
        asking.child_id(1),
        "Which colour?",
        "Blue.",
    )
    assert answers.find_request(asking.run, first)[1].answer == said.answer
