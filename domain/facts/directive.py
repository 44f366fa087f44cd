"""A directive: one correction, from its receipt to its end. The facts that it leaves, and the state they add up to."""

from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Text

Source = Literal["human-review", "rai", "rubberduck", "build-test", "agent", "coordinator", "step"]
Severity = Literal["advisory", "request-changes", "blocking"]
Verb = Literal["stop", "send", "redirect", "amend", "dispatch-fresh", "pause", "resume", "guidance", "abort"]
Action = Literal["in_place_steer", "dispatch_fresh", "proceed", "advisory"]
DirectiveStatus = Literal[
    "pending",
    "queued",
    "relayed",
    "decided",
    "executing",
    "deferred",
    "applied",
    "superseded",
    "needs_attention",
    "expired",
]
TargetState = Literal["outstanding", "initiated", "confirmed", "ended"]

#: A directive in one of these is closed; every accepted directive ends in exactly one of them.
CLOSED = frozenset[DirectiveStatus]({"applied", "superseded", "needs_attention", "expired"})

#: What is said to an agent with its next turn, and asks for nothing else.
WORDS = frozenset[Verb]({"guidance", "send", "amend"})

#: How far it is for a target that has yet to hear of it.
UNHEARD = frozenset[TargetState]({"outstanding", "initiated"})
NOWHERE = frozenset[str]()

#: How often the effect of a directive may fail before a person has to look at it.
MAX_EXECUTIONS = 3

# Events


class TargetScope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a signal is about."""

    kind: Literal["subtask", "work-plan", "run"]
    subtask_ids: tuple[int, ...] = ()
    child_run_id: str | None = None


class SteeringReceived(Event, frozen=True, kw_only=True):
    """A correction was received. It is on the log before anything acts on it."""

    TOPIC: ClassVar[str] = "coordinator.steering_received"

    directive_id: str
    source: Source
    severity: Severity
    verb: Verb
    target_scope: TargetScope
    feedback: Text
    tree_hash: str | None
    target_files: tuple[Text, ...]
    created_by: str
    #: SHA-256 of what was asked; everything that follows names it.
    payload_hash: str
    #: A person's word to running agents: it skips the decision table and charges no budget.
    direct: bool
    #: The child runs that it is for, as they stood at its receipt.
    targets: tuple[str, ...] = ()
    #: What a worker-level command said besides: its reason, its session, and the batch that it is part of.
    reason: Text = Text("")
    session_id: str | None = None
    batch_id: str | None = None
    #: For a stop of a whole run: what the runs that it ends give as their reason. Null: steering_stop.
    ends_as: str | None = None


class SteeringDecided(Event, frozen=True, kw_only=True):
    """
    What is to be done about a directive, and why; always stored before it is done.

    A further decision about the same directive (`phase` says why) covers the targets that it names.
    """

    TOPIC: ClassVar[str] = "coordinator.steering_decision"

    directive_id: str
    decision: Action
    rationale: str
    subtask_ids: tuple[int, ...]
    attempt: int
    #: Whether the plan's and the subtasks' budgets were charged with it.
    charged: bool = False
    #: The child runs that go on in place.
    targets: tuple[str, ...] = ()
    phase: str | None = None
    failed_subtask_ids: tuple[int, ...] = ()
    rotated_from: Mapping[str, str] = {}
    rotated_to: Mapping[str, str] = {}
    disposition: str | None = None
    locked_out_roster: tuple[str, ...] = ()


class DirectiveMoved(Event, frozen=True, kw_only=True):
    """A directive took a step; or, with a work plan id, a person's request gave the plan a fresh budget."""

    TOPIC: ClassVar[str] = "coordinator.steering"

    directive_id: str
    kind: str
    status: DirectiveStatus
    target_child_run_id: str | None = None
    instruction: Text | None = None
    #: Why a directive ended without its effect.
    reason: str | None = None
    work_plan_id: str | None = None
    source: str | None = None
    human_review_round_trip: int | None = None
    reset_subtask_ids: tuple[int, ...] = ()
    note: str | None = None


class SteeringDenied(Event, frozen=True, kw_only=True):
    """
    Somebody tried to steer who may not. One fact for each principal and target in a minute; `count` says how many
    attempts it stands for.
    """

    TOPIC: ClassVar[str] = "coordinator.steering_denied"

    denied_principal: str
    scope: str
    kind: str
    target: str
    reason: str
    count: int


class RevisionExecution(Event, frozen=True, kw_only=True):
    """
    How far a directive's effect is for one child run.

    `initiated` stands before the agent is asked and keeps a second launcher away; `effect_confirmed` stands with the
    first sign that the agent works on it, and is the proof; `failed` charges one of the directive's executions.
    """

    TOPIC: ClassVar[str] = "coordinator.revision_execution"

    directive_id: str
    attempt: int
    child_run_id: str
    state: Literal["initiated", "effect_confirmed", "failed"]
    receipt_payload_hash: str
    #: Of a failure: its code. Facts of the first release hold the agent's words here; those are in `message` since then,
    #: where they can be redacted and forgotten.
    reason: str | None = None
    message: Text | None = None


# State


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run stood still when somebody said how it should go on."""

    #: The plan's own word for it.
    reason: str
    #: The files over which a merge failed.
    files: tuple[Text, ...] = ()
    #: Why each part that had no result was without one, where that is known.
    parts: Mapping[int, Text] = {}


class SteeringDirective(msgspec.Struct, frozen=True, kw_only=True):
    """What decisions about a directive need to know."""

    directive_id: str
    source: Source
    severity: Severity
    verb: Verb
    scope: TargetScope
    feedback: Text
    tree_hash: str | None
    created_by: str
    payload_hash: str
    direct: bool
    reason: Text
    #: Where its receipt stands in the log, and when it was written.
    position: int
    received_at: str
    session_id: str | None = None
    batch_id: str | None = None
    ends_as: str | None = None
    #: What the run stood still for at its receipt, if it did.
    block: Block | None = None
    status: DirectiveStatus = "pending"
    action: Action | None = None
    attempt: int = 0
    rationale: str = ""
    #: The subtasks that the decision is about.
    subtask_ids: tuple[int, ...] = ()
    #: The child runs that it is delivered to, and how far each is.
    targets: Mapping[str, TargetState] = {}
    #: When it was handed on: to the first agent that is to go on with it, or, where none is, to what was decided.
    relayed_at: str | None = None
    #: The subtasks that are to start afresh for it and have not yet.
    afresh: tuple[int, ...] = ()
    failures: int = 0

    @property
    def open(self) -> bool:
        """Whether anything is left to do about it."""
        return self.status not in CLOSED

    @property
    def stops_run(self) -> bool:
        """Whether it ends the whole run."""
        return self.verb == "stop" and self.scope.kind == "run"

    def waits_for(self, child_run_id: str) -> bool:
        """Whether the child's next turn has to carry it."""
        return self.open and self.action == "in_place_steer" and self.targets.get(child_run_id) == "outstanding"

    @property
    def waits_at(self) -> frozenset[str]:
        """
        The targets that have yet to hear of it, if it is nothing but words: once it is decided, nothing follows before.

        Empty for all that does more than wait.
        """
        if not self.direct or self.verb not in WORDS or self.status in CLOSED or self.afresh:
            return NOWHERE
        if self.action not in (None, "in_place_steer"):
            return NOWHERE
        return frozenset([child for child, state in self.targets.items() if state in UNHEARD])

    @property
    def delivered(self) -> bool:
        """Whether no target is left to deliver it to."""
        return UNHEARD.isdisjoint(self.targets.values())

    @property
    def confirmed(self) -> bool:
        """Whether it reached at least one of its targets."""
        return "confirmed" in self.targets.values()


def directive_stream(directive_id: str) -> str:
    """Return the stream of a directive."""
    return f"directive/{directive_id}"


def received(event: SteeringReceived, position: int, at: datetime, block: Block | None = None) -> SteeringDirective:
    """Return the state of a directive that was received *at* that time. *block*: what its run stood still for then."""
    return SteeringDirective(
        directive_id=event.directive_id,
        source=event.source,
        severity=event.severity,
        verb=event.verb,
        scope=event.target_scope,
        feedback=event.feedback,
        tree_hash=event.tree_hash,
        created_by=event.created_by,
        payload_hash=event.payload_hash,
        direct=event.direct,
        reason=event.reason,
        position=position,
        received_at=at.isoformat(),
        session_id=event.session_id,
        batch_id=event.batch_id,
        ends_as=event.ends_as,
        block=block,
        subtask_ids=event.target_scope.subtask_ids,
        targets=dict.fromkeys(event.targets, "outstanding"),
    )


def evolve(directive: SteeringDirective, event: Event, at: datetime) -> SteeringDirective:
    """Add one fact about a directive, stored *at* that time, to its state."""
    replace = msgspec.structs.replace
    match event:
        case SteeringDecided(phase=None):
            # One that ended between the receipt and the decision stays ended.
            targets: Mapping[str, TargetState] = {
                child: directive.targets.get(child, "outstanding") for child in event.targets
            }
            return replace(
                directive,
                status="decided",
                action=event.decision,
                attempt=event.attempt,
                rationale=event.rationale,
                subtask_ids=event.subtask_ids,
                targets=targets,
                relayed_at=None if targets else at.isoformat(),
                afresh=event.subtask_ids if event.decision == "dispatch_fresh" else (),
            )
        case SteeringDecided(decision="dispatch_fresh"):
            # What cannot go on in place starts afresh; the healthy targets stay as they are.
            kept = {child: state for child, state in directive.targets.items() if child not in event.targets}
            return replace(directive, targets=kept, afresh=(*directive.afresh, *event.subtask_ids))
        case SteeringDecided():
            return replace(directive, action=event.decision, rationale=event.rationale, afresh=())
        case DirectiveMoved(status="decided"):
            again: Mapping[str, TargetState] = {
                child: "outstanding" if state == "initiated" else state for child, state in directive.targets.items()
            }
            return replace(directive, status="decided", failures=0, targets=again)
        case DirectiveMoved():
            return replace(directive, status=event.status)
        case RevisionExecution():
            return _executed(directive, event, at)
        case _:
            return directive


def _executed(directive: SteeringDirective, event: RevisionExecution, at: datetime) -> SteeringDirective:
    replace = msgspec.structs.replace
    directive = replace(directive, relayed_at=directive.relayed_at or at.isoformat())
    if event.state == "failed":
        failed: Mapping[str, TargetState] = {**directive.targets, event.child_run_id: "outstanding"}
        return replace(directive, failures=directive.failures + 1, targets=failed)
    state: TargetState = "confirmed" if event.state == "effect_confirmed" else "initiated"
    return replace(directive, status="executing", targets={**directive.targets, event.child_run_id: state})


def begun_afresh(directive: SteeringDirective, subtask_id: int) -> SteeringDirective:
    """Return the directive after one of its subtasks was set to start afresh."""
    left = tuple(waiting for waiting in directive.afresh if waiting != subtask_id)
    return msgspec.structs.replace(directive, afresh=left, status="executing")


def not_begun(directive: SteeringDirective, child_run_id: str) -> SteeringDirective:
    """Return the directive after a turn that carried it ended before the agent showed a sign: the next one carries it."""
    if directive.targets.get(child_run_id) != "initiated":
        return directive
    targets: Mapping[str, TargetState] = {**directive.targets, child_run_id: "outstanding"}
    return msgspec.structs.replace(directive, targets=targets)


def ended_for(directive: SteeringDirective, child_run_id: str) -> SteeringDirective:
    """Return the directive after one of its targets ended before it was delivered there."""
    if directive.targets.get(child_run_id) not in ("outstanding", "initiated"):
        return directive
    targets: Mapping[str, TargetState] = {**directive.targets, child_run_id: "ended"}
    return msgspec.structs.replace(directive, targets=targets)
