"""What a run waits for, and for whom: for whoever is on call and sees that it does not move."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from ...domain.event import Text
from ...domain.facts.asking import RequestKind
from ...domain.facts.assembly import LeftOut
from ...domain.facts.held import DRIVE, HeldEffect, WaitsFor
from ...domain.facts.line import conflicts_in
from ...domain.facts.run import CoordinatorRun
from ...domain.facts.work_plan import SATISFIED, SETTLED, WorkPlan
from ...domain.process.effects import Effect, WorkOnSubtask, next_effects
from ...domain.process.hold import drive_id
from ...domain.runs.retry import MAX_RETRIES, RETRYABLE
from ...domain.steering.parked import can_resume
from ...domain.steering.rounds import isolation_of
from ...domain.work.agent_requests import waits_for_person
from ..looking.cause import advice
from ..ports.effect_state import EffectState, PlaceHolder
from ..ports.leases import Holder

#: What is done about what an agent asks, and where.
ASKED: Mapping[RequestKind, tuple[str, str]] = {
    "tool": ("approved or denied", "tool-approvals"),
    "shell": ("approved or denied", "shell-approvals"),
    "question": ("answered", "questions/{request_id}/answer"),
}

_WANTS: Mapping[RequestKind, str] = {
    "tool": "wants to use the tool",
    "shell": "wants to run a command.",
    "question": "asks:",
}

#: How many files are named in a sentence.
MAX_NAMED = 10

Who = Literal["driver", "operator", "release", "person", "newer_release", "nobody"]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that drives a run."""

    replica: str
    epoch: int
    #: Whether it has shown a sign of life in time; if not, another takes the run over.
    alive: bool


class Outstanding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An effect that the log calls for and no fact has proved."""

    effect_id: str
    kind: str
    #: `unknown` until the driver has said how it stands, a few seconds at most.
    #: `waits_for_person`: its agent rests until it is answered, or resumed, and holds no place.
    state: Literal["under_way", "waits_for_place", "waits_for_next_try", "waits_for_person", "unknown"]
    failures: int = 0
    last_error: str | None = None
    next_try: str | None = None
    #: Once it has failed several times in a row: the kind of cause, since when, and who can mend it.
    error_code: str | None = None
    held_since: str | None = None
    waits_for: WaitsFor | None = None
    #: For which runs the places are taken that it waits for, each as often as it has one; and how many are taken for
    #: runs that are not the caller's to see.
    held_by: tuple[PlaceHolder, ...] = ()
    held_by_others: int = 0


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only one kind of somebody can do next."""

    who: Who
    what: str
    #: The request that does it, if there is one.
    request: str | None = None


class ConflictToKnow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Files that two sides changed in the same places: the version of `branch` stands, the other is kept at `ref`."""

    branch: str
    subtask_id: int | None
    paths: tuple[str, ...]
    ref: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a run stands where it stands."""

    run_id: str
    status: str
    plan_status: str | None
    #: `none` if an agent of the run had all rights of the service in any of its turns; null: not known.
    isolation: str | None
    owner: Owner | None
    effects: tuple[Outstanding, ...]
    waits: tuple[Wait, ...]
    #: What a person should know about the assembled work: what was changed in two places, what was ready once and is not
    #: in it, and the files that the originating branch has meanwhile changed, too.
    conflicts: tuple[ConflictToKnow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    moved_files: tuple[str, ...] = ()


def explain(
    run: CoordinatorRun,
    holder: Holder | None,
    may_see: Callable[[str], bool] = lambda _: True,
    retried_as: str | None = None,
) -> Explanation:
    """
    Return what a coordinator run waits for. *may_see* says which other runs may be named to whoever asks, *retried_as* is
    the run that tries it again, if there is one.
    """
    stand = {state.effect_id: state for state in holder.effects} if holder else {}
    effects = [
        _outstanding(effect.id, type(effect).__name__, _rests(run, effect), stand, run, may_see)
        for effect in next_effects(run)
    ]
    drive = drive_id(run.run_id)
    if drive in stand or drive in run.held:
        effects.insert(0, _outstanding(drive, DRIVE, False, stand, run, may_see))
    return Explanation(
        run_id=run.run_id,
        status=run.status,
        plan_status=run.plan.status if run.plan else None,
        isolation=isolation_of(run),
        owner=Owner(replica=holder.replica, epoch=holder.epoch, alive=holder.alive) if holder else None,
        effects=tuple(effects),
        waits=tuple(_waits(run, holder, effects, retried_as)),
        conflicts=tuple(
            ConflictToKnow(
                branch=conflict.branch,
                subtask_id=conflict.subtask_id,
                paths=tuple(str(path) for path in conflict.paths),
                ref=conflict.ref,
            )
            for conflict in conflicts_in(run)
        ),
        left_out=run.assembly.left_out if run.assembly else (),
        moved_files=tuple(str(path) for path in run.moved.files) if run.moved else (),
    )


def _outstanding(
    effect_id: str,
    kind: str,
    rests: bool,
    stand: Mapping[str, EffectState],
    run: CoordinatorRun,
    may_see: Callable[[str], bool],
) -> Outstanding:
    state, held = stand.get(effect_id), run.held.get(effect_id)
    taken = state.held_by if state else ()
    seen = tuple(place for place in taken if may_see(place.run_id))
    return Outstanding(
        effect_id=effect_id,
        kind=kind,
        state="waits_for_person" if rests else state.state if state else "unknown",
        failures=state.failures if state else 0,
        last_error=state.last_error if state else None,
        next_try=state.next_try if state else None,
        error_code=held.error_code if held else None,
        held_since=held.since if held else None,
        waits_for=held.waits_for if held else None,
        held_by=seen,
        held_by_others=len(taken) - len(seen),
    )


def _rests(run: CoordinatorRun, effect: Effect) -> bool:
    """Whether only a person can say how an effect goes on, whoever drives it: it is paused, or has asked something."""
    if not isinstance(effect, WorkOnSubtask):
        return False
    child = run.children[effect.child_run_id]
    return child.status == "paused" or any(waits_for_person(run, child.run_id, asked) for asked in child.requests)


def _place(effect: Outstanding) -> Wait:
    times = Counter((place.run_id, place.project_id) for place in effect.held_by)
    named = [
        f"run {run_id} of project {project_id}" + (f" ({count} of them)" if count > 1 else "")
        for (run_id, project_id), count in times.most_common(MAX_NAMED)
    ]
    rest = effect.held_by_others + sum(count for _, count in times.most_common()[MAX_NAMED:])
    others = [f"{rest} more by runs of others"] if rest else []
    held = (
        f"Those of its process are held by {', '.join([*named, *others])}." if named or others else "One is free soon."
    )
    return Wait(who="driver", what=f"{effect.kind} waits for a place for its agent. {held}")


def _waits(
    run: CoordinatorRun, holder: Holder | None, effects: Sequence[Outstanding], retried_as: str | None
) -> Iterator[Wait]:
    if run.closed:
        yield _end_of(run, retried_as)
        return
    if run.unknown_topic is not None:
        yield Wait(
            who="newer_release", what=f"A fact ({run.unknown_topic}) is of a newer release, which must drive it."
        )
        return
    if holder is None or not holder.alive:
        yield Wait(
            who="driver", what="No live process drives the run; one takes it within seconds, if any drives runs."
        )
    elif drive_id(run.run_id) not in run.held and any(
        effect.waits_for is None and effect.state not in ("waits_for_place", "waits_for_person") for effect in effects
    ):
        yield Wait(who="driver", what="Effects are outstanding: see how each stands.")
    for effect in effects:
        if (held := run.held.get(effect.effect_id)) is not None:
            yield _mend(run, held)
        if effect.state == "waits_for_place":
            yield _place(effect)
    if not run.ended:
        yield from _people(run)


def _to_be_known(run: CoordinatorRun) -> Iterator[str]:
    if run.moved is not None and run.moved.reason == "history_rewritten":
        yield (
            f"{run.branch} has meanwhile let go of what this work began from: what was taken out of "
            f"{_listed(run.moved.files)} comes back with it."
        )
    elif run.moved is not None:
        yield f"{run.branch} has meanwhile changed {_listed(run.moved.files)}, too."
    for conflict in conflicts_in(run):
        yield (
            f"{_listed(conflict.paths)} was changed in two places: the version of {conflict.branch} stands, the other one "
            f"is kept at {conflict.ref}."
        )
    for left in run.assembly.left_out if run.assembly else ():
        yield f"Commit {left.commit}, which subtask {left.subtask_id} had ready, is not in it ({left.reason})."


def _listed(paths: Sequence[Text]) -> str:
    named = ", ".join(str(path) for path in paths[:MAX_NAMED])
    return f"{named} and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else named


def causes(plan: WorkPlan) -> Iterator[str]:
    """Give a sentence for each part of a plan that has no result: why, in a word and in the last words of its agent."""
    for part in plan.subtasks.values():
        if part.status in SETTLED - SATISFIED:
            words = ": ".join(word for word in (part.cause or "", str(part.reason or "")) if word)
            yield f"Subtask {part.subtask_id} ({part.assigned_agent}) has no result: {words or part.status}."


def _end_of(run: CoordinatorRun, retried_as: str | None) -> Wait:
    """Return what can still be made of a run that has ended, if anything can."""
    if run.deleted or run.status not in RETRYABLE:
        return Wait(who="nobody", what="The run has ended and nothing of it is left to do.")
    if retried_as is not None:
        return Wait(who="nobody", what=f"The run has ended ({run.result}), and is tried again as run {retried_as}.")
    kept = run.assembly.branch if run.assembly else ""
    said = [f"The run has ended ({run.result})."]
    failed = run.assembly.merge_failed if run.assembly else None
    if run.status == "merge_failed" and failed is not None:
        said.append(f"{run.branch} has meanwhile changed {_listed(failed.conflicting_files)} in the same places.")
        said.append(f"Nothing was moved: the finished work is on the branch {kept}, to be merged by hand,")
        said.append(f"or have the run tried again: it goes on from there, on top of what {run.branch} holds now.")
    else:
        said.extend(causes(run.plan) if run.plan else ())
        said.append("It can be tried again: that goes on from what was committed.")
    if run.retries >= MAX_RETRIES and not can_resume(run, "redirect"):
        said[-1] = "Its goal was tried again as often as it may: start a new run, and say what went wrong."
        return Wait(who="person", what=" ".join(said))
    return Wait(who="person", what=" ".join(said), request=f"POST /api/runs/{run.run_id}/retry")


def _mend(run: CoordinatorRun, held: HeldEffect) -> Wait:
    whose = f" of child run {held.child_run_id}" if held.child_run_id else ""
    words = f": {held.message}" if held.message.value else ""
    what = (
        f"{held.kind}{whose} has failed since {held.since} ({held.error_code}{words}). "
        f"{advice(held.error_code, held.waits_for)} It is tried again by itself, slowly, or at once when asked for."
    )
    return Wait(who=held.waits_for, what=what, request=f"POST /api/runs/{run.run_id}/retry")


def _people(run: CoordinatorRun) -> Iterator[Wait]:
    at = f"/api/runs/{run.run_id}"
    spec = run.outcome_spec
    if spec is not None and spec.status == "awaiting_confirmation":
        yield Wait(who="person", what="The outcome spec is to be confirmed.", request=f"POST {at}/outcome-spec/confirm")
    if run.status == "awaiting_review":
        reason = f" ({run.plan.status_reason})" if run.plan and run.plan.status_reason else ""
        what = " ".join([f"The assembled work is to be reviewed{reason}.", *_to_be_known(run)])
        yield Wait(who="person", what=what, request=f"POST {at}/assembly/review")
    if run.plan is not None and run.plan.status == "assembly_blocked":
        lost = " ".join(causes(run.plan))
        what = f"The plan is blocked ({run.plan.status_reason}); correct it or stop it. {lost}".rstrip()
        yield Wait(who="person", what=what, request=f"POST {at}/steer")
    if (out := run.out_of) is not None:
        of = at if out.scope == "run" else f"/api/projects/{run.project_id}"
        why = (
            f"{out.spent} of {out.allowed} used"
            if out.reason == "reached"
            else f"{out.reason} by {out.model_id or 'an agent'}"
        )
        what = f"No new turn begins: the {out.scope}'s budget of {out.limit} ({why}) is to be raised."
        yield Wait(who="person", what=what, request=f"POST {of}/budget")
    for directive in run.received():
        if directive.status == "needs_attention":
            what = f"Directive {directive.directive_id} could not be carried out: retry or abandon it."
            yield Wait(who="person", what=what, request=f"POST {at}/steering/{directive.directive_id}/resolve")
    for child in run.children.values():
        if child.status == "paused":
            what = f"Child run {child.run_id} is paused: resume or abort it."
            yield Wait(who="person", what=what, request=f"POST /tasks/{child.run_id}/steer")
        for request in child.requests.values():
            if request.state == "pending":
                is_to_be, door = ASKED[request.kind]
                asks = f"{_WANTS[request.kind]} {request.subject}".rstrip()
                what = f"Child run {child.run_id} {asks} ({request.request_id}): it is to be {is_to_be}."
                door = door.format(request_id=request.request_id)
                yield Wait(who="person", what=what, request=f"POST /api/runs/{child.run_id}/{door}")
