"""
A command for many workers, taken apart. Whom it is for is found once: a repetition with the same key, also after a crash
in the middle, is for the same workers under the same batch id, and completes what is missing.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Meta

from ...domain.event import Fact
from ...domain.rejected import Forbidden, Invalid, Rejected
from ..request.idempotency import REPLAYED, Asking, Command
from .worker_steering import Placed, Target, WorkerSteerRequest, checked, put, target_of

MAX_TARGETS = 1_000
#: The longest name of a task is a run's id, a colon and a number.
MAX_TASK_CHARACTERS = 64

Task: TypeAlias = Annotated[str, Meta(max_length=MAX_TASK_CHARACTERS)]


class Selector(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Every child of a run that is in this state."""

    run: Annotated[str, Meta(max_length=64)]
    status: Literal["running", "paused", "active"] = "running"


class FleetSteerRequest(WorkerSteerRequest, kw_only=True, forbid_unknown_fields=True):
    """One command for many workers: name them, or say which."""

    tasks: Annotated[tuple[Task, ...], Meta(max_length=MAX_TARGETS)] = ()
    selector: Selector | None = None


class NotSteered(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was not steered, and why."""

    task_id: str
    status: int
    error: str
    message: str
    retryable: bool


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a command is for, each worker once, and who was refused before it came to them."""

    batch_id: str
    targets: tuple[Target, ...]
    refused: tuple[NotSteered, ...]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the command to one worker: its receipt is on the log, or it was refused."""

    placed: Placed | None = None
    refused: NotSteered | None = None
    #: Whether that is what an earlier request with the same key came to.
    replayed: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The stored answer to the command to one worker."""

    directiveId: str = ""
    refused: NotSteered | None = None


def decoded(body: bytes) -> FleetSteerRequest:
    """Return the request in a body. Raises Invalid."""
    try:
        request = msgspec.json.decode(body, type=FleetSteerRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"The body is not a fleet command: {error}") from error
    if bool(request.tasks) == (request.selector is not None):
        raise Invalid("Send either `tasks` or a `selector`.")
    return request


def batch_of(asking: Asking, request: FleetSteerRequest) -> tuple[Batch, bool]:
    """
    Return whom the command is for, as it stood when it was first sent, and whether that was before now.

    With a key it is durable on return, before anybody is steered.

    Raises:
        KeySpent: the key was used for another command.
        Invalid, RunNotFound: the selector selects nobody; nothing is stored.
        Forbidden: nobody may be steered by whoever asks; nothing is stored but that.
    """

    def find(attempt: Command) -> Sequence[Fact]:
        return attempt.keep(asking.services.log, 201, _found(asking, request))

    response = asking.part("targets").once(find)
    return msgspec.json.decode(response.content, type=Batch), REPLAYED in response.headers


def place(asking: Asking, target: Target, request: FleetSteerRequest, batch_id: str) -> Tried:
    """Put the command to one worker on the log. That, or why not, is what every repetition comes to."""
    # Named after the batch too: a part may outlive the row of its batch by as long as the batch took.
    part = asking.part(f"{batch_id}/{target.child_run_id}")

    def carry_out(attempt: Command) -> Sequence[Fact]:
        try:
            return put(part, target, wanted, attempt)
        except Rejected as refusal:
            if refusal.retryable:
                raise  # not stored, so that the same request may succeed later
            return attempt.keep(part.services.log, 201, Part(refused=_told(target.task_id, refusal)))

    try:
        wanted = checked(part, target, request, batch_id)
        response = part.once(carry_out)
    except Rejected as refusal:
        return Tried(refused=_told(target.task_id, refusal))
    told, replayed = msgspec.json.decode(response.content, type=Part), REPLAYED in response.headers
    known = Placed(task_id=target.task_id, root=target.root, directive_id=told.directiveId)
    placed = known if told.refused is None else None
    return Tried(placed=placed, refused=told.refused, replayed=replayed)


def refuse_all_forbidden(refused: Sequence[NotSteered]) -> None:
    """Refuse the whole command when whoever asks may steer none of its workers. Raises Forbidden."""
    if refused and all(found.status == Forbidden.status for found in refused):
        raise Forbidden(refused[0].message)


def _found(asking: Asking, request: FleetSteerRequest) -> Batch:
    """Return whom the command is for now, each worker once however often and by which names it is asked for."""
    targets: dict[str, Target] = {}
    refused: list[NotSteered] = []
    for task_id in dict.fromkeys(request.tasks if request.selector is None else _selected(asking, request.selector)):
        try:
            target = target_of(asking, task_id)
            checked(asking, target, request)
        except Rejected as refusal:
            refused.append(_told(task_id, refusal))
        else:
            targets.setdefault(target.child_run_id, target)
    if not targets:
        refuse_all_forbidden(refused)
    return Batch(batch_id=str(uuid4()), targets=tuple(targets.values()), refused=tuple(refused))


def _told(task_id: str, refusal: Rejected) -> NotSteered:
    return NotSteered(
        task_id=task_id,
        status=refusal.status,
        error=refusal.code,
        message=str(refusal),
        retryable=refusal.retryable,
    )


def _selected(asking: Asking, selector: Selector) -> Sequence[str]:
    root = asking.access.run(asking.principal, selector.run).root
    states = {"running": ("in_progress",), "paused": ("pausing", "paused")}.get(
        selector.status, ("pending", "in_progress", "pausing", "paused")
    )
    run = asking.services.runs.run(root)
    parts = run.plan.subtasks.values() if run.plan else ()
    children = [part.child_run_id for part in parts if part.in_flight and part.child_run_id is not None]
    found = [child for child in children if run.children[child].status in states]
    if not found:
        raise Invalid(f"No child of this run is {selector.status} now.")
    return found
