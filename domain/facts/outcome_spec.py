"""What a goal is taken to mean: drafted by the writer agent, and confirmed or sent back by a person before any work."""

from typing import Any, ClassVar, Literal, cast

import msgspec

from ..event import Event, Text
from .fenced import json_blocks

SpecStatus = Literal["drafting", "awaiting_confirmation", "confirmed"]

#: What one part of a draft may hold.
MAX_PART_BYTES = 16_384

# Events


class OutcomeSpecDrafting(Event, frozen=True, kw_only=True):
    """The writer is to draft the spec: for the first time, or anew after somebody's feedback."""

    TOPIC: ClassVar[str] = "coordinator.outcome_spec.drafting"

    spec_id: str
    status: Literal["drafting"] = "drafting"
    goal: Text
    #: Whether a draft was there before.
    revise: bool
    feedback: Text | None = None
    requested_by: str
    #: Whether the draft is confirmed as soon as it is there, in the name of whoever started the run.
    auto_confirm: bool = False


class OutcomeSpecDrafted(Event, frozen=True, kw_only=True):
    """A draft waits for its confirmation; nothing is planned before that."""

    TOPIC: ClassVar[str] = "coordinator.outcome_spec"

    spec_id: str
    status: Literal["awaiting_confirmation"] = "awaiting_confirmation"
    goal: Text
    desired_outcome: Text
    scope: Text
    assumptions: Text
    clarifying_questions: Text | None = None


class OutcomeSpecConfirmed(Event, frozen=True, kw_only=True):
    """The draft is what is to be reached, and the planner goes by it."""

    TOPIC: ClassVar[str] = "coordinator.outcome_spec.confirmed"

    spec_id: str
    confirmed_by: str


# State


class OutcomeDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What the writer makes of a goal."""

    desired_outcome: Text
    scope: Text
    assumptions: Text
    clarifying_questions: Text | None = None


class OutcomeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A run's outcome spec."""

    spec_id: str
    status: SpecStatus
    #: How often a draft was asked for.
    round: int = 1
    #: The newest draft; a revision is written over it.
    draft: OutcomeDraft | None = None
    #: What people had to say to earlier drafts, oldest first.
    feedback: tuple[Text, ...] = ()
    auto_confirm: bool = False
    confirmed_by: str | None = None


def evolve(spec: OutcomeSpec | None, event: Event) -> OutcomeSpec | None:
    """Add one fact to a run's spec."""
    replace = msgspec.structs.replace
    match event:
        case OutcomeSpecDrafting() if spec is None:
            return OutcomeSpec(spec_id=event.spec_id, status="drafting", auto_confirm=event.auto_confirm)
        case OutcomeSpecDrafting() if spec is not None:
            said = (*spec.feedback, event.feedback) if event.feedback is not None else spec.feedback
            return replace(spec, status="drafting", round=spec.round + 1, feedback=said)
        case OutcomeSpecDrafted() if spec is not None:
            draft = OutcomeDraft(
                desired_outcome=event.desired_outcome,
                scope=event.scope,
                assumptions=event.assumptions,
                clarifying_questions=event.clarifying_questions,
            )
            return replace(spec, status="awaiting_confirmation", draft=draft)
        case OutcomeSpecConfirmed() if spec is not None:
            return replace(spec, status="confirmed", confirmed_by=event.confirmed_by)
        case _:
            return spec


# What a writer answers


def read_draft(answer: str) -> OutcomeDraft | None:
    """Return the draft in the last fenced block of an answer that holds one, None if no block does."""
    for found in json_blocks(answer):
        if isinstance(found, dict) and (draft := _draft(cast("dict[str, Any]", found))) is not None:
            return draft
    return None


def _draft(found: dict[str, Any]) -> OutcomeDraft | None:
    names = ("desiredOutcome", "scope", "assumptions", "clarifyingQuestions")
    desired, scope, assumptions, questions = (_words(found.get(name)) for name in names)
    if not desired or scope is None or assumptions is None or questions is None:
        return None
    return OutcomeDraft(
        desired_outcome=Text(desired),
        scope=Text(scope),
        assumptions=Text(assumptions),
        clarifying_questions=Text(questions) if questions else None,
    )


def _words(value: object) -> str | None:
    """Return a part of a draft as words, empty if there is none; None if no spec can have it."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        words = "\n".join(f"- {item}" for item in items) if all(isinstance(item, str) for item in items) else None
    else:
        words = "" if value is None else value
    if not isinstance(words, str) or len(words.encode(errors="replace")) > MAX_PART_BYTES:
        return None
    return words.strip()
