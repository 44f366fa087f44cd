"""
The automated gates that assembled work passes before a person sees it, in one order: RAI, rubberduck, build-test.

A gate that the project has not configured is skipped, and says so; it is never shown as passed.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from ..event import Event, Text

GateKind = Literal["rai", "rubberduck", "build-test"]
Outcome = Literal["passed", "revise", "red", "skipped"]

ORDER: tuple[GateKind, ...] = ("rai", "rubberduck", "build-test")
DEFAULT_BUILD_SECONDS = 600


class GateSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A gate that a project has: a reviewer agent, or a command to build and test with."""

    kind: GateKind
    model_id: str | None = None
    command: tuple[str, ...] = ()
    timeout_seconds: int = DEFAULT_BUILD_SECONDS


class GateStarted(Event, frozen=True, kw_only=True):
    """A gate looks at the assembled tree."""

    TOPIC: ClassVar[str] = "coordinator.gate_started"

    work_plan_id: str
    gate_kind: GateKind
    tree_hash: str


class GateCompleted(Event, frozen=True, kw_only=True):
    """What a gate came to: passed, revise or red, or skipped and why. Its request for changes is a signal of its own."""

    TOPIC: ClassVar[str] = "coordinator.gate_completed"

    work_plan_id: str
    gate_kind: GateKind
    tree_hash: str
    outcome: Outcome
    message: Text


class RaiStarted(Event, frozen=True, kw_only=True):
    """The collective RAI review begins."""

    TOPIC: ClassVar[str] = "coordinator.assembly_rai_started"

    work_plan_id: str
    integration_branch: str
    gate_id: str


class RaiCompleted(Event, frozen=True, kw_only=True):
    """The collective RAI review has a verdict."""

    TOPIC: ClassVar[str] = "coordinator.assembly_rai_completed"

    work_plan_id: str
    integration_branch: str
    gate_id: str
    rai_safety_flagged: bool
    rai_revision_requested: bool
    feedback: Text


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a reviewer, or a build, says about the assembled work."""

    outcome: Outcome
    feedback: str = ""
    target_files: tuple[str, ...] = ()


def read_verdict(answer: str) -> Verdict | None:
    """
    Return the verdict in a reviewer's answer, None if its last line is none.

    The last line is `VERDICT: GREEN|YELLOW|REVISE|RED`; a line `TARGET_FILES: a, b` names files and is no feedback.
    """
    lines = [line.rstrip() for line in answer.strip().splitlines()]
    if not lines or not lines[-1].upper().startswith("VERDICT:"):
        return None
    word = lines[-1].partition(":")[2].strip().upper()
    outcomes: dict[str, Outcome] = {"GREEN": "passed", "YELLOW": "passed", "REVISE": "revise", "RED": "red"}
    if word not in outcomes:
        return None
    files = [line for line in lines[:-1] if line.upper().startswith("TARGET_FILES:")]
    named = tuple(name.strip() for line in files for name in line.partition(":")[2].split(",") if name.strip())
    feedback = "\n".join(line for line in lines[:-1] if line not in files).strip()
    return Verdict(outcome=outcomes[word], feedback=feedback, target_files=named)


def next_gate(configured: Sequence[GateSpec], done: Sequence[str]) -> tuple[tuple[GateKind, ...], GateSpec | None]:
    """Return the gates that are skipped now, and the one that looks next; None when a person is next."""
    specs = {spec.kind: spec for spec in configured}
    skipped: list[GateKind] = []
    for kind in ORDER:
        if kind in done:
            continue
        if kind in specs:
            return tuple(skipped), specs[kind]
        skipped.append(kind)
    return tuple(skipped), None
