"""A small run with one correction, told fact by fact."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from steersman.adapters.log.stored_log import StoredLog
from steersman.application.ports.log import Append
from steersman.domain.event import Draft, Event, Text
from steersman.domain.facts.agent_output import MessageDelta
from steersman.domain.facts.child_run import TurnStarted, output_stream
from steersman.domain.facts.directive import (
    DirectiveMoved,
    RevisionExecution,
    SteeringDecided,
    SteeringReceived,
    TargetScope,
    Verb,
)

ScopeKind = Literal["subtask", "work-plan", "run"]
ExecutionState = Literal["initiated", "effect_confirmed", "failed"]

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECEIPT = "sha256:" + "ab" * 32


def put(log: StoredLog, *drafts: Draft, command_id: str | None = None) -> int:
    """Append the drafts, whatever is on their streams, and return the last position."""
    versions = {draft.stream: len(log.read_stream(draft.stream)) for draft in drafts if not draft.event.OUTPUT}
    facts = log.append(
        Append(
            drafts=drafts,
            expected=versions,
            at=AT,
            principal="ada",
            command_id=command_id or str(uuid4()),
        )
    )
    return facts[-1].position


def on(run: str, event: Event, stream: str | None = None) -> Draft:
    """Return a draft on a coordinator run."""
    return Draft(stream=stream or f"run/{run}", event=event, run=run, root=run)


def said(run: str, words: str) -> Draft:
    """Return what an agent said."""
    return on(run, MessageDelta(delta=Text(words), message_id="m"), output_stream(run))


def received(
    run: str, directive: str, verb: Verb = "amend", *targets: str, kind: ScopeKind = "run", direct: bool = True
) -> Draft:
    """Return the receipt of a correction, by a person for `child` if nothing else is said."""
    event = SteeringReceived(
        directive_id=directive,
        source="human-review",
        severity="request-changes",
        verb=verb,
        target_scope=TargetScope(kind=kind),
        feedback=Text("be careful"),
        tree_hash=None,
        target_files=(),
        created_by="ada",
        payload_hash=RECEIPT,
        direct=direct,
        targets=targets or (("child",) if direct else ()),
    )
    return on(run, event, f"directive/{directive}")


def decided(run: str, directive: str, *targets: str) -> Draft:
    """Return the decision about a correction."""
    event = SteeringDecided(
        directive_id=directive,
        decision="in_place_steer",
        rationale="direct:amend",
        subtask_ids=(),
        attempt=0,
        targets=targets,
    )
    return on(run, event, f"directive/{directive}")


def worker(child: str, event: Event, run: str = "r") -> Draft:
    """Return a fact on the run of a worker."""
    return Draft(stream=f"run/{child}", event=event, run=child, root=run)


def effect(
    run: str,
    directive: str,
    state: ExecutionState = "effect_confirmed",
    receipt: str = RECEIPT,
    child: str = "child",
    attempt: int = 0,
) -> Draft:
    """Return a step of the correction's effect."""
    event = RevisionExecution(
        directive_id=directive,
        attempt=attempt,
        child_run_id=child,
        state=state,
        receipt_payload_hash=receipt,
    )
    return on(run, event, f"directive/{directive}")


def unsteered(log: StoredLog, run: str = "r") -> None:
    """Tell of a run that nobody corrects: five facts."""
    put(log, on(run, TurnStarted(turn_id="t1")))
    put(log, said(run, "Looking."), said(run, "Done."))
    put(log, on(run, TurnStarted(turn_id="t2")), said(run, "Done."))


def steered(log: StoredLog, run: str = "r", directive: str = "d") -> Sequence[int]:
    """Tell of a run that somebody corrects: thirteen facts; return the positions of the correction's own."""
    unsteered(log, run)
    moved = DirectiveMoved(directive_id=directive, kind="amend", status="applied")
    first = put(log, received(run, directive))
    put(log, decided(run, directive, "child"))
    put(log, effect(run, directive, "initiated"))
    put(log, effect(run, directive), on(run, moved))
    unsteered(log, run)
    return range(first, first + 5)
