"""What an agent did is folded from its feed: which tools it called with what, who let it, what it meant to do and used."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from steersman.domain.event import Event, Fact, Text
from steersman.domain.facts.agent_output import (
    PlannedStep,
    PlanReported,
    ToolCalled,
    ToolCallUpdated,
    ToolDiff,
    ToolFailed,
    ToolLocation,
    ToolReturned,
)
from steersman.domain.facts.asking import ApprovalResolved, AutoApproved, ToolApprovalRequired
from steersman.domain.facts.child_run import TurnEnded, TurnOpened, TurnStarted
from steersman.domain.facts.spending import Count, TurnCounted
from steersman.domain.git import Commit
from steersman.projections.turns import FeedTurns

AT = datetime(2026, 6, 7, 8, 9, 10, tzinfo=UTC)


def folded(*events: Event, counted: tuple[TurnCounted, ...] = ()) -> list[Any]:
    """Return the turns of a feed with these facts, a second apart."""
    turns = FeedTurns()
    for n, event in enumerate(events):
        turns.add(
            Fact(
                position=n + 1,
                stream="run/c",
                version=n + 1,
                topic=event.TOPIC,
                run="c",
                run_sequence=n + 1,
                root="r",
                root_sequence=n + 1,
                at=AT + timedelta(seconds=n),
                principal="agent",
                command_id="c",
                traceparent=None,
                event=event,
            )
        )
    return msgspec.json.decode(msgspec.json.encode(list(turns.shown(counted))))


def opened(number: int) -> TurnOpened:
    return TurnOpened(
        turn_id=f"t{number}",
        number=number,
        directive_ids=(),
        prompt=Text("Do it."),
        prompt_digest="d",
        parent=Commit(commit="c", tree="t"),
    )


def asked(request_id: str, **more: Any) -> ToolApprovalRequired:
    return ToolApprovalRequired(
        request_id=request_id,
        tool_name=Text("write"),
        turn_id="t1",
        call_digest="d",
        grant_key="g",
        tool_key="k",
        **more,
    )


def test_a_call_has_what_its_agent_says_of_it_later() -> None:
    (turn,) = folded(
        opened(1),
        ToolCalled(call_id="1", tool_name=Text("write"), arguments=Text("{}"), kind="edit"),
        ToolCallUpdated(
            call_id="1", arguments=Text('{"path": "a.txt"}'), locations=(ToolLocation(path=Text("a.txt"), line=3),)
        ),
        ToolReturned(
            call_id="1", content=Text("done"), diffs=(ToolDiff(path=Text("a.txt"), old=None, new=Text("hi")),)
        ),
        ToolCalled(call_id="2", tool_name=Text("run"), arguments=Text("{}")),
        ToolFailed(call_id="2", error_message=Text("no")),
    )
    first, second = turn["tool_calls"]
    assert first == {
        "call_id": "1",
        "tool_name": "write",
        "kind": "edit",
        "arguments": '{"path": "a.txt"}',
        "locations": [{"path": "a.txt", "line": 3}],
        "state": "returned",
        "called_at": "2026-06-07T08:09:11+00:00",
        "ended_at": "2026-06-07T08:09:13+00:00",
        "result": "done",
        "diffs": [{"path": "a.txt", "old": None, "new": "hi"}],
    }
    assert (second["state"], second["result"]) == ("failed", "no")


def test_who_let_a_call_pass_is_told_with_the_scope_and_what_let_it_pass_where_nobody_was_asked() -> None:
    (turn,) = folded(
        opened(1),
        asked("1", call_id="7"),
        ApprovalResolved(request_id="1", run_id="c", approved=True, expired=False, scope="run", resolved_by="alice"),
        asked("2"),
        AutoApproved(request_id="2", tool_name=Text("write"), approval_source="granted_for_run"),
        ApprovalResolved(request_id="2", run_id="c", approved=True, expired=False, scope="once", resolved_by=None),
        asked("3"),
        ApprovalResolved(request_id="3", run_id="c", approved=False, expired=False, scope="once", resolved_by="bob"),
        asked("4"),
    )
    told = [(p["state"], p["scope"], p["decided_by"], p["source"], p["call_id"]) for p in turn["permissions"]]
    assert told == [
        ("approved", "run", "alice", None, "7"),
        ("approved", "once", None, "granted_for_run", None),
        ("denied", None, "bob", None, None),
        ("pending", None, None, None, None),
    ]


def test_each_turn_has_its_own_plan_calls_and_usage() -> None:
    def plan(turn_id: str, status: str) -> PlanReported:
        return PlanReported(
            turn_id=turn_id, entries=(PlannedStep(content=Text("Write"), status=status, priority="high"),)
        )

    used = Count(turn_id="t1", model_id="m", ended=True, turns=0, milliseconds=60_000, total_tokens=9)
    first, second = folded(
        opened(1),
        TurnStarted(turn_id="t1"),
        plan("t1", "pending"),
        plan("t1", "completed"),
        TurnEnded(turn_id="t1", stop_reason="end_turn"),
        opened(2),
        ToolCalled(call_id="1", tool_name=Text("read"), arguments=Text("{}")),
        counted=(
            TurnCounted(run_id="c", counted=used),
            TurnCounted(run_id="c", counted=msgspec.structs.replace(used, total_tokens=1)),
        ),
    )
    assert first["plan"] == [{"content": "Write", "status": "completed", "priority": "high"}]
    assert (first["number"], first["stop_reason"], first["usage"]["total_tokens"]) == (1, "end_turn", 10)
    assert (first["started_at"], first["ended_at"]) == ("2026-06-07T08:09:11+00:00", "2026-06-07T08:09:14+00:00")
    assert (first["usage"]["turns"], first["usage"]["minutes"]) == (1, "2.0")
    assert first["tool_calls"] == []
    assert (second["usage"], second["plan"], len(second["tool_calls"])) == (None, [], 1)


def test_words_that_were_forgotten_are_null() -> None:
    (turn,) = folded(opened(1), ToolCalled(call_id="1", tool_name=Text(None), arguments=Text(None)))
    assert (turn["tool_calls"][0]["tool_name"], turn["tool_calls"][0]["arguments"]) == (None, None)
