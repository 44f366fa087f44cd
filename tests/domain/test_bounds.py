"""How much of everything there may be. Clients and stored plans rely on these, so a change of one is a decision."""

import pytest

from steersman.domain.facts import agent_output, asking, assembly, child_run, directive, outcome_spec, sandbox
from steersman.domain.facts.assembly import ReviewRequested
from steersman.domain.projects import project, project_changes
from steersman.domain.redaction import hold_back
from steersman.domain.runs import define_outcome, orchestration, planning, retry, review
from steersman.domain.steering import decision_table, follow, gate_signals, steering, worker_command
from steersman.domain.steering.worker_command import InvalidSteeringCommand, WorkerCommand
from steersman.domain.work import agent_requests, turns
from steersman.tests.domain.fleet import Fleet, part

BOUNDS = {
    agent_output: {"MAX_OUTPUT_BYTES": 4_194_304, "MAX_TURN_BYTES": 67_108_864},
    asking: {"MAX_ANSWER_BYTES": 16_384, "MAX_AUTOPILOT_FAILURES": 3},
    assembly: {"MAX_SHOWN_FILES": 200},
    child_run: {"MAX_INTERRUPTIONS": 20},
    directive: {"MAX_EXECUTIONS": 3},
    outcome_spec: {"MAX_PART_BYTES": 16_384},
    sandbox: {
        "MAX_PATTERNS": 100,
        "MAX_PATTERN_CHARACTERS": 200,
        "MAX_ROOTS": 100,
        "MAX_ROOT_CHARACTERS": 4_096,
    },
    project: {"MAX_MEMBERS": 100, "MAX_NAME_BYTES": 200},
    project_changes: {"MAX_USERS": 1_000, "MAX_USER_BYTES": 200, "MAX_CHARTER_BYTES": 65_536},
    hold_back: {"MAX_HELD": 4_096, "MAX_HELD_KEY": 16_384},
    define_outcome: {"MAX_FEEDBACK_BYTES": 16_384, "MAX_ROUNDS": 50},
    orchestration: {"MAX_GOAL_BYTES": 65_536},
    planning: {
        "MAX_SUBTASKS": 200,
        "MAX_TITLE_BYTES": 500,
        "MAX_SCOPE_BYTES": 65_536,
        "MAX_FILES": 1_000,
        "MAX_PATH_BYTES": 4_096,
    },
    retry: {"MAX_RETRIES": 3, "MAX_CORRECTIONS": 32},
    decision_table: {"MAX_RECOVERY_ATTEMPTS": 3},
    follow: {"MAX_ACCUMULATED_FEEDBACK": 32, "MAX_FEEDBACK_CHARACTERS": 2_000},
    gate_signals: {"MAX_FEEDBACK_BYTES": 16_384, "MAX_TARGET_FILES": 1_000},
    steering: {"MAX_INSTRUCTION_BYTES": 16_384, "MAX_QUEUED": 128},
    worker_command: {"MAX_TEXT_BYTES": 2_048},
    agent_requests: {"MAX_SHOWN": 2_000},
    turns: {"MAX_MESSAGE_CHARACTERS": 2_000},
}


@pytest.mark.parametrize(
    ("module", "name", "bound"),
    [pytest.param(module, name, bound, id=name) for module, bounds in BOUNDS.items() for name, bound in bounds.items()],
)
def test_a_bound_is_what_it_was(module: object, name: str, bound: int) -> None:
    assert getattr(module, name) == bound


@pytest.mark.parametrize(
    ("kind", "name"), [("guidance", "guidance"), ("redirect", "redirect_target"), ("pause", "reason")]
)
def test_a_text_of_a_worker_command_may_have_its_bytes_and_not_one_more(kind: str, name: str) -> None:
    for most in ("x" * 2_048, "é" * 1_024):
        assert worker_command.check(WorkerCommand(kind=kind, task_id="t", **{name: most})) == kind
        for more in ("x", "x" * 2_048):
            with pytest.raises(InvalidSteeringCommand, match=f"`{name}` has more than 2048 bytes"):
                worker_command.check(WorkerCommand(kind=kind, task_id="t", **{name: most + more}))


@pytest.mark.parametrize("kind", worker_command.KINDS)
@pytest.mark.parametrize(("name", "of"), [("guidance", "guidance"), ("redirect_target", "redirect")])
def test_words_go_with_the_command_that_they_are_for_and_no_other(kind: str, name: str, of: str) -> None:
    own = {"guidance": {"guidance": "x"}, "redirect": {"redirect_target": "x"}}.get(kind, {})
    command = WorkerCommand(kind=kind, task_id="t", **(own | {name: "Go left."}))
    if kind == of:
        assert worker_command.check(command) == kind
    else:
        with pytest.raises(InvalidSteeringCommand, match=f"`{name}` goes with a {of} only"):
            worker_command.check(command)


@pytest.mark.parametrize("session", [".", "..", "a/b", "a\\b", "a\0b", "/"])
def test_a_session_that_could_be_a_path_is_none(session: str) -> None:
    with pytest.raises(InvalidSteeringCommand, match="cannot be a path"):
        worker_command.check(WorkerCommand(kind="pause", task_id="t", session_id=session))
    assert worker_command.check(WorkerCommand(kind="pause", task_id="t", session_id="a.b")) == "pause"


@pytest.mark.parametrize(("kept", "is_allowed"), [(0, False), (1, True), (4_194_304, True), (4_194_305, False)])
def test_of_an_agents_output_something_is_kept_and_no_more_than_a_log_can_bear(kept: int, is_allowed: bool) -> None:
    policy = sandbox.SandboxPolicy(max_output_bytes=kept)
    if is_allowed:
        assert sandbox.checked(policy) == policy
    else:
        with pytest.raises(sandbox.InvalidPolicy):
            sandbox.checked(policy)


def test_each_time_that_a_gate_is_opened_it_has_a_name_of_its_own() -> None:
    fleet = Fleet(part("One")).to_gate()
    for _ in range(3):
        fleet.review(approved=True)
        fleet.put(review.block_merge(fleet.run, "repository_dirty"))
        fleet.settle()
    assert fleet.run.assembly is not None
    names = [asked.gate_id for asked in fleet.told(ReviewRequested)]
    assert len(set(names)) == len(names)
    assert fleet.run.assembly.openings == len(names)
