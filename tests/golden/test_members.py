"""
Every event that the seeds and the reference name is a kind of fact here, with every member they name, or it is said why not.

`members.json` is theirs, event by event: facts only. `a.b` is the member `b` of what stands in `a`.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.golden.samples import newest

ROOT = Path(__file__).parents[2]
EXPECTED: dict[str, list[str]] = json.loads(Path(__file__).with_name("members.json").read_text(encoding="utf-8"))
SINGLE_RUNS = "there are no single runs (design.md, section 7)"
HEARTBEAT = "a heartbeat: what waits is state, which is read, and nothing happened that a log should hold"
NO_PODS = "there are no pods, and no previews of what they serve"
#: Events that are no kind of fact of ours, and why.
NOT_OURS = {
    "agent.message": "the deltas are replayed as they came",
    "agent.runtime_context": "turn.opened has the digest of the whole prompt",
    "agent.system_prompt": "turn.opened has the digest of the whole prompt",
    "agent.tools": "an ACP agent does not say which tools it has",
    "coordinator.assembly_review_preserved": "a gate is what its facts say: nothing has to be saved from a failure",
    "coordinator.assembly_scribe_completed": "there is no scribe: workflow.step says that it is skipped",
    "coordinator.assembly_scribe_started": "there is no scribe: workflow.step says that it is skipped",
    "coordinator.child_provisioning_pending": NO_PODS,
    "coordinator.preview_ready": NO_PODS,
    "coordinator.stories_promoted": "there is no backlog",
    "coordinator.workflow_selected": "there is one workflow, so nothing is selected",
    "memory.context_composition": "there is no memory",
    "merge.completed": SINGLE_RUNS,
    "merge.conflicted": SINGLE_RUNS,
    "merge.failed": SINGLE_RUNS,
    "merge.started": SINGLE_RUNS,
    "rai.verdict": "coordinator.assembly_rai_completed: one look at all work together",
    "retry.checkpoint": "run.paused is the checkpoint: session and both hashes",
    "review.approved": SINGLE_RUNS,
    "review.changes_requested": SINGLE_RUNS,
    "review.declined": SINGLE_RUNS,
    "review.requested": SINGLE_RUNS,
    "revision.started": SINGLE_RUNS,
    "run.approval_policy_selected": "coordinator.started and run.options_set say it",
    "run.bounded": "a turn that came to its limit ends badly: run.failed with agent_turn_limit, or a new try",
    "run.degraded": "an agent's own tools are its own",
    "run.error": "run.failed and coordinator.effect_held name the cause and who can mend it",
    "run.idle": "only sessions of an assistant are idle, and there are none",
    "run.outcome": "an ACP agent does not assess itself",
    "run.partial_output": "run.tree_committed, unfinished, keeps the work; the feed keeps the words",
    "run.rai_error": "coordinator.assembly_blocked names what stood in a gate's way",
    "run.scribe_failed": "there is no scribe",
    "sandbox.execution_pod.bound": NO_PODS,
    "sandbox.preview_applicability": NO_PODS,
    "sandbox.preview_failed": NO_PODS,
    "sandbox.preview_pending": NO_PODS,
    "sandbox.preview_ready": NO_PODS,
    "sandbox.preview_skipped_not_applicable": NO_PODS,
    "sandbox.preview_start_requested": NO_PODS,
    "sandbox.preview_stopped": NO_PODS,
    "sandbox.provisioning_pending": NO_PODS,
    "sandbox.selected": "agent.turn.start says in which isolation each turn was, since that may change between two",
    "sandbox.warning": "/health, explain and the gate say where isolation lacks",
    "steering.receipt": "coordinator.steering_received is the receipt at both doors",
    "steering.rejection": "a message without a receipt leaves no row; a denial is coordinator.steering_denied",
    "subtask.pending_capacity": "legacy; who waits for a place is dispatched",
    "subtask.rai_flagged": "no child is looked at by itself: a gate's RED is a correction of the assembled work",
    "task.mailbox_consumed": "coordinator.revision_execution, effect_confirmed",
    "task.mailbox_message": "the mailbox is the log: coordinator.steering_received",
    "task_steer": "coordinator.steering_received, on every feed that shows the run",
    "tool.approval_pending": HEARTBEAT,
    "tool.exec_result": "the seed has it as planned and not emitted: tool.result and tool.error",
    "tool.execution_pending": HEARTBEAT,
}
#: Members that stand elsewhere, or are nothing of ours.
ELSEWHERE: dict[str, dict[str, str]] = {
    "agent.turn.usage": {"totalNanoAiu": "a unit of one provider's bills"},
    "coordinator.assembly_blocked": {"ineligibleSubtasks.recoveryGuidance": "ineligibleSubtasks.reason"},
    "coordinator.child_stall_detected": {
        "lastEventSequence": "the run_sequence of the child's fact before",
        "staleSinceUtc": "the fact's own time, less stallTimeoutSeconds",
        "stallTimeoutMinutes": "stallTimeoutSeconds",
    },
    "coordinator.recovered": {"status": "the plan's own facts say it"},
    "coordinator.steering_decision": {"targetSubtaskIds": "subtaskIds, at each decision"},
    "run.assemble_ready": {"stepCount": "there are no steps to count: an agent has turns"},
    "tool.auto_approved": {
        "policySnapshotId": "the policy is that of the run's own start, which never changes",
        "previewTarget": NO_PODS,
        "targetPort": NO_PODS,
        "url": "the call that asked: tool.call has its arguments",
    },
    "workflow.step": {
        "agent_name": "run.started of the child",
        "reviewer": "coordinator.assembly_review_approved",
        "timestamp_utc": "the fact's own time",
    },
}


def members(payload: object, before: str = "") -> Iterator[str]:
    """Give the names in a payload, those of objects and lists of objects inside it, too."""
    if isinstance(payload, list):
        payload = payload[0] if payload else None
    if isinstance(payload, dict):
        for name, value in payload.items():
            yield f"{before}{name}"
            yield from members(value, f"{before}{name}.")


def test_every_event_that_is_named_is_a_kind_of_fact_or_it_is_said_why_not() -> None:
    assert EXPECTED.keys() - CATALOGUE.keys() == NOT_OURS.keys()
    assert ELSEWHERE.keys() <= EXPECTED.keys()


@pytest.mark.parametrize("topic", sorted(EXPECTED.keys() & CATALOGUE.keys()))
def test_a_fact_has_the_members_that_are_named_or_it_is_said_where_they_are(topic: str) -> None:
    stored: Any = msgspec.json.decode(newest()[topic].state)["payload"]
    assert set(EXPECTED[topic]) - set(members(stored)) == ELSEWHERE.get(topic, {}).keys()


def made_by(path: Path) -> Iterator[str]:
    """Give the names of what a module calls, and of what it hands to a call, other than to ask what something is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) != "isinstance":
            yield from (ast.unparse(part).rpartition(".")[2] for part in (node.func, *node.args))


def test_every_kind_of_fact_is_made_by_somebody() -> None:
    """A kind that nobody makes is a promise that nobody keeps."""
    rooms = ("domain", "application", "adapters")
    made = {name for room in rooms for path in (ROOT / room).rglob("*.py") for name in made_by(path)}
    assert not {topic for topic, kind in CATALOGUE.items() if kind.__name__ not in made}
