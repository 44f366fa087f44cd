"""GET /api/runs/{id}/turns tells what an agent did, with what it asked for, and what it used."""

from typing import Any

from steersman.application.effects.record_turn import TurnRecorder
from steersman.application.effects.tool_call import tool_call
from steersman.application.ports.agents import (
    AgentUpdate,
    CallLocation,
    PermissionAsked,
    PlanStep,
)
from steersman.application.ports.tenure import Alone
from steersman.domain.work import agent_requests, answers, budget, turns
from steersman.domain.work.budget import Reported


def test_a_childs_turns_have_its_calls_its_plan_who_let_it_and_what_it_used(api: Any, story: Any) -> None:
    story.start()
    story.advance()
    child, clock = story.child(1), api.services.clock
    story.decide(lambda run: turns.prepare_worktree(run, child, run.base, "/w", clock.now()))
    story.decide(lambda run: turns.open_turn(run, child))
    turn_id = story.run.children[child].turn.turn_id
    story.decide(lambda run: turns.start_turn(run, child))
    recorder = TurnRecorder(api.services.runs, Alone(), story.run_id, child, turn_id, "rehearsal", 0)
    with recorder:
        recorder.update(AgentUpdate(kind="plan", plan=(PlanStep(content="Write", status="pending", priority="low"),)))
        recorder.update(AgentUpdate(kind="tool_call", call_id="c", title="write", text="{}", call_kind="edit"))
        late = CallLocation(path="a.txt", line=2)
        recorder.update(AgentUpdate(kind="tool_update", call_id="c", text='{"path": "a.txt"}', locations=(late,)))
        asked = PermissionAsked(request_id="q", tool_name="write", tool_input="{}", kind="edit", call_id="c")
        call = tool_call(asked, turn_id)
        story.decide(lambda run: agent_requests.ask_tool(run, child, call)[1])
        (waiting,) = story.client.get("/api/waiting", params={"run_id": child}, headers=api.settled()).json()
        request_id = waiting["id"]
        story.decide(lambda run: answers.resolve(run, request_id, approved=True, scope="run", by="alice"))
        recorder.update(AgentUpdate(kind="tool_result", call_id="c", text="done"))
        recorder.update(AgentUpdate(kind="usage", input_tokens=3, output_tokens=1))
    story.decide(lambda run: budget.count_turn(run, child, turn_id, recorder.reported, clock.now(), ended=True))
    (turn,) = story.client.get(f"/api/runs/{child}/turns").json()
    assert (turn["turn_id"], turn["number"], turn["usage"]["total_tokens"]) == (turn_id, 1, 4)
    assert [step["content"] for step in turn["plan"]] == ["Write"]
    (made,) = turn["tool_calls"]
    assert (made["tool_name"], made["kind"], made["arguments"]) == ("write", "edit", '{"path": "a.txt"}')
    assert (made["state"], made["locations"]) == ("returned", [{"path": "a.txt", "line": 2}])
    (permission,) = turn["permissions"]
    assert (permission["decided_by"], permission["scope"], permission["state"]) == ("alice", "run", "approved")
    assert permission["call_id"] == made["call_id"] == waiting["detail"]["call_id"]
    assert waiting["detail"]["tool_kind"] == "edit"


def test_a_coordinators_own_agents_have_turns_of_their_own(api: Any, story: Any) -> None:
    story.start()
    assert story.client.get(f"/api/runs/{story.run_id}/turns", headers=api.settled()).json() == []
    recorder = TurnRecorder(api.services.runs, Alone(), story.run_id, story.run_id, "plan", "rehearsal", 0)
    began = api.services.clock.now()
    with recorder:
        recorder.update(AgentUpdate(kind="message", text="I plan."))
        recorder.update(AgentUpdate(kind="tool_call", call_id="c", title="read", text="{}"))
    story.decide(
        lambda run: budget.count_coordinator_turn(
            run, "plan", "rehearsal", Reported(total_tokens=2), began, began, ended=True
        )
    )
    (turn,) = story.client.get(f"/api/runs/{story.run_id}/turns").json()
    assert (turn["turn_id"], turn["number"], turn["usage"]["total_tokens"]) == ("plan", None, 2)
    assert [call["tool_name"] for call in turn["tool_calls"]] == ["read"]
