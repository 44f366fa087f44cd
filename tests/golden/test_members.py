"""Every fact has the members that the system which the seeds describe tells of it, or it is said here why not."""

import json
from pathlib import Path

import msgspec
import pytest

from steersman.tests.golden.samples import newest

#: Topic by topic, what the reference lists. ELSEWHERE says what of it stands elsewhere or is nothing of ours.
EXPECTED: dict[str, list[str]] = json.loads(Path(__file__).with_name("members.json").read_text(encoding="utf-8"))
ELSEWHERE: dict[str, dict[str, str]] = {
    "agent.turn.usage": {"totalNanoAiu": "a unit of one provider's bills"},
    "tool.auto_approved": {"policySnapshotId": "the policy is that of the run's own start, which never changes"},
    "run.assemble_ready": {"stepCount": "there are no steps to count: an agent has turns"},
    "coordinator.recovered": {"status": "the plan's own facts say it"},
    "coordinator.child_stall_detected": {
        "staleSinceUtc": "the fact's own time, less stallTimeoutSeconds",
        "stallTimeoutMinutes": "stallTimeoutSeconds",
        "lastEventSequence": "the run_sequence of the child's fact before",
    },
}


def members(topic: str) -> set[str]:
    """Return the names that are stored of a fact."""
    names: set[str] = set(msgspec.json.decode(newest()[topic].state)["payload"])
    return names


@pytest.mark.parametrize("topic", EXPECTED)
def test_a_fact_has_the_members_of_the_reference_or_it_is_said_where_they_are(topic: str) -> None:
    missing = set(EXPECTED[topic]) - members(topic)
    assert missing == set(ELSEWHERE.get(topic, {}))
