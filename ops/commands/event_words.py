"""One line of words for an event of a run's feed."""

from collections.abc import Mapping
from typing import Any

from ...projections.one_line import in_one_line

MAX_WORDS = 100
#: Why something failed is worth more than one line of a terminal.
MAX_CAUSE = 400


def in_words(topic: str, payload: Mapping[str, Any]) -> str:
    """Return what an event says, for people: its topic, and the parts of its payload that tell it from others."""
    return f"{topic:<42} {_gist(topic, payload)}".rstrip()


def _gist(topic: str, payload: Mapping[str, Any]) -> str:
    match topic:
        case "coordinator.started":
            return _cut(payload.get("goal"))
        case "coordinator.work_plan":
            return f"{len(payload.get('subtasks', ()))} subtasks"
        case "coordinator.assembly_review_requested":
            return f"tree {str(payload.get('treeHash', ''))[:12]} waits for a decision"
        case "coordinator.integration_conflict_auto_resolved":
            return _cut(", ".join(map(str, payload.get("conflictingFiles", ()))))
        case "coordinator.assembly_merge_completed" | "coordinator.assembly_completed":
            return f"commit {str(payload.get('commitHash', ''))[:12]}"
        case "coordinator.effect_held":
            who = payload.get("waitsFor")
            return _cut(f"{payload.get('kind')} waits for {who}: {payload.get('errorCode')}: {payload.get('message')}")
        case "coordinator.effect_released":
            return _cut(f"{payload.get('kind')} {payload.get('errorCode')}: {payload.get('reason')}")
        case "run.budget_reached":
            return _cut(f"{payload.get('scope')}'s {payload.get('limit')}: {payload.get('reason')}")
        case "agent.plan":
            entries = payload.get("entries", ())
            done = sum(entry.get("status") == "completed" for entry in entries)
            return f"{done} of {len(entries)} steps done"
        case "agent.turn.usage":
            return f"{payload.get('inputTokens')} tokens in, {payload.get('outputTokens')} out"
        case "run.failed":
            return _cut(f"{payload.get('errorCode')}: {payload.get('message')}", MAX_CAUSE)
        case "subtask.failed":
            who = f"{payload.get('subtaskId')} {payload.get('assignedAgent')}"
            return _cut(f"{who} {payload.get('cause') or ''}: {payload.get('reason') or ''}", MAX_CAUSE)
        case _ if topic.startswith("subtask."):
            return _cut(f"{payload.get('subtaskId')} {payload.get('assignedAgent')} {payload.get('reason') or ''}")
        case _:
            words = (payload.get(key) for key in ("delta", "intent", "toolName", "message", "reason", "status"))
            return _cut(next((word for word in words if isinstance(word, str)), ""))


def _cut(words: object, most: int = MAX_WORDS) -> str:
    return in_one_line(str(words or ""), most)
