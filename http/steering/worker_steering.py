"""The worker's door to steering: POST /tasks/{task_id}/steer. Its refusals come in one order: 401, 404, 422, 403, 409."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from anyio import to_thread
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from ...application.commands.steer import NO_SUCH_TASK, NOT_A_TASK, child_of, child_of_task
from ...application.commands.steer import steer_worker as steer_one
from ...application.ports.log import EventLog, Stored
from ...application.ports.proofs import Receipt
from ...application.writer.caller import Answer
from ...domain.event import Draft, Fact
from ...domain.facts.child_run import Paused
from ...domain.facts.directive import SteeringDirective
from ...domain.facts.run import CoordinatorRun
from ...domain.rejected import Forbidden, RunNotFound
from ...domain.steering.steering import SteerWorker, steer_worker
from ...domain.steering.worker_command import InvalidSteeringCommand, PayloadMismatch, WorkerCommand, WorkerKind, check
from ..request.access import InvalidRunId, RunPlace, check_role
from ..request.idempotency import Asking, Asks, Command, directive_id, response_of
from ..request.problems import refusals

POLL_SECONDS = 0.05
PAGE = 500


class WorkerSteerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A command to one running worker. The principal is whoever the token belongs to, whatever is sent."""

    kind: str
    principal: str = ""
    guidance: str = ""
    redirect_target: str = ""
    reason: str = ""
    session_id: str = ""
    adapter: str = ""
    worktree: str = ""
    displayed_payload_hash: str | None = None


class WorkerReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a command, and what could be seen of its effect."""

    kind: str
    task_id: str
    principal: str
    scope: str
    payload_hash: str
    #: The MAC of the receipt's entry in the log's chain.
    receipt_hash: str
    #: The leaf hash of the receipt: the log is the mailbox.
    mailbox_entry_hash: str
    #: Seconds since 1970.
    timestamp: float
    #: Where the receipt stands in the log.
    mailbox_seq: int
    directive_id: str
    batch_id: str | None
    status: str
    #: The leaf hash of the fact that the worker is paused; empty while it is not.
    checkpoint_event_hash: str
    abort_signal_written: bool


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is to be steered, and the name by which it was asked for."""

    task_id: str
    root: str
    child_run_id: str


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A command to one worker that is on the log."""

    task_id: str
    root: str
    directive_id: str


@post(
    "/tasks/{task_id:str}/steer",
    responses={201: ResponseSpec(WorkerReceipt, description="The receipt", generate_examples=False)}
    | refusals(403, 404, 409, 413, 422, 429),
)
async def steer_task(task_id: FromPath[str], asking: Asks) -> Response[bytes]:
    """Put a command to one worker on the log; 201 with the receipt, before anything is done about it."""
    root = await _root_of(asking, task_id)
    command = Commanded(asking, task_id)
    told = Answer(status=201, body=msgspec.json.encode({"directiveId": command.directive_id}))
    try:
        found = await asking.decided(root, command.decide, told)
    except Forbidden as forbidden:
        await to_thread.run_sync(command.deny, str(forbidden))
        raise
    response = found if isinstance(found, Response) else response_of(told, found.facts[-1].position)
    # A repetition is told the id that its first try was given.
    replayed = isinstance(found, Response)
    directive_id: str = msgspec.json.decode(response.content)["directiveId"] if replayed else command.directive_id
    run = asking.services.runs.states.kept(root)
    if isinstance(found, Stored) and run is not None and command.kind in ("guidance", "redirect"):
        # What the answer says is in what was just stored: nothing is read again.
        directive = run.directives[directive_id]
        receipt = _receipt(directive, asking.principal.scope, task_id, found.receipts[0], "")
    else:
        placed = [Placed(task_id=task_id, root=root, directive_id=directive_id)]
        (receipt,) = await to_thread.run_sync(with_effects, asking, placed)
    response.content = msgspec.json.encode(receipt)
    return response


async def _root_of(asking: Asking, task_id: str) -> str:
    """Return the coordinator run of a task; who may see it, the decision says. Raises RunNotFound."""
    first = task_id.lower().partition(":")[0]
    place = asking.access.placed(first) or await to_thread.run_sync(_placed, asking, first)
    if place.is_coordinator != (":" in task_id):
        # To somebody who must not know of the run no more is said than that.
        await to_thread.run_sync(lambda: asking.access.run(asking.principal, first, hides=True))
        raise RunNotFound(NOT_A_TASK if place.is_coordinator else NO_SUCH_TASK)
    return place.root


def _placed(asking: Asking, run_id: str) -> RunPlace:
    try:
        return asking.access.place(run_id)
    except InvalidRunId as strange:
        # A task's name is not only a run's id, so at this door one that is none is a task that is not there.
        raise RunNotFound(NO_SUCH_TASK) from strange


class Commanded:
    """What a request asks of one task, and the one place where it is refused: in the order 404, 422, 403, 409."""

    def __init__(self, asking: Asking, task_id: str) -> None:
        self._asking = asking
        self._task_id = task_id
        self.directive_id = directive_id()
        #: Once they are known.
        self.kind: WorkerKind | None = None
        self.child_run_id: str | None = None

    def decide(self, run: CoordinatorRun) -> Sequence[Draft]:
        """Return the receipt. Raises whatever the command is refused for."""
        principal = self._asking.principal
        project = self._asking.services.runs.states.project(run.project_id)
        check_role(principal, project, change=False, hides=True)
        self.child_run_id = child_of(run, self._task_id.lower())
        request = decoded(self._asking.body)
        command = as_command(request, self._task_id)
        self.kind = check(command)
        check_role(principal, project, change=True, hides=True)
        wanted = as_wanted(request, command, self.kind, self.child_run_id, principal.user, self.directive_id)
        return steer_worker(run, wanted)

    def deny(self, reason: str) -> None:
        """Keep on the run's log that whoever asks may not steer it."""
        assert self.child_run_id is not None
        assert self.kind is not None
        self._asking.deny(self.child_run_id, kind=self.kind, reason=reason)


def target_of(asking: Asking, task_id: str) -> Target:
    """Return the worker of a task that whoever asks may see. Raises RunNotFound."""
    first = task_id.lower().partition(":")[0]
    try:
        asking.access.run(asking.principal, first, hides=True)
    except InvalidRunId as strange:
        # A task's name is not only a run's id, so at this door one that is none is a task that is not there.
        raise RunNotFound(NO_SUCH_TASK) from strange
    root, child_run_id = child_of_task(task_id.lower(), asking.services.runs)
    return Target(task_id=task_id, root=root, child_run_id=child_run_id)


def checked(asking: Asking, target: Target, request: WorkerSteerRequest, batch_id: str | None = None) -> SteerWorker:
    """
    Return the command to one worker; that whoever asks may not give it is kept on the run's log.

    Raises InvalidSteeringCommand, Forbidden, PayloadMismatch.
    """
    command = as_command(request, target.task_id)
    kind = check(command)
    try:
        asking.access.run(asking.principal, target.root, change=True)
    except Forbidden as forbidden:
        asking.deny(target.child_run_id, kind=kind, reason=str(forbidden))
        raise
    return as_wanted(
        request, command, kind, target.child_run_id, asking.principal.user, directive_id(), batch_id=batch_id
    )


def as_wanted(
    request: WorkerSteerRequest,
    command: WorkerCommand,
    kind: WorkerKind,
    child_run_id: str,
    user: str,
    directive_id: str,
    batch_id: str | None = None,
) -> SteerWorker:
    """Return what is asked as it is decided on. Raises PayloadMismatch."""
    if request.displayed_payload_hash not in (None, command.payload_hash):
        raise PayloadMismatch(expected=request.displayed_payload_hash, actual=command.payload_hash)
    return SteerWorker(
        directive_id=directive_id,
        child_run_id=child_run_id,
        kind=kind,
        payload_hash=command.payload_hash,
        principal=user,
        text=command.text,
        reason=command.reason,
        session_id=command.session_id or None,
        batch_id=batch_id,
    )


def put(asking: Asking, target: Target, wanted: SteerWorker, attempt: Command) -> Sequence[Fact]:
    """Put a command to one worker on the log, and tell the id of its directive. Raises what `steer_worker` raises."""

    def told(_: CoordinatorRun, __: Sequence[Draft]) -> Any:
        return attempt.tell(201, {"directiveId": wanted.directive_id})

    return steer_one(target.root, wanted, attempt.by, asking.services.runs, told)


def with_effects(asking: Asking, placed: Sequence[Placed]) -> Sequence[WorkerReceipt]:
    """
    Return the receipts of commands that are on the log, and what can be seen of their effects.

    If they pause or abort, that is once they all have ended, or after `effect_seconds` of the settings, or when the process is to end.
    """
    until = time.monotonic() + asking.services.settings.effect_seconds
    while True:
        runs = {root: asking.services.runs.run(root) for root in dict.fromkeys(one.root for one in placed)}
        found = [(one, runs[one.root]) for one in placed]
        directives = [run.directives[one.directive_id] for one, run in found]
        wait = any(directive.open and directive.verb in ("pause", "abort") for directive in directives)
        if not wait or time.monotonic() >= until or asking.services.draining.wait(POLL_SECONDS):
            break
    receipts = asking.services.receipts(directive.position for directive in directives)
    return [
        _receipt(
            directive,
            asking.principal.scope,
            one.task_id,
            receipts[directive.position],
            _checkpoint(asking.services.log, run, directive),
        )
        for (one, run), directive in zip(found, directives, strict=True)
    ]


def decoded(body: bytes) -> WorkerSteerRequest:
    """Return the request in a body. Raises InvalidSteeringCommand."""
    try:
        return msgspec.json.decode(body, type=WorkerSteerRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSteeringCommand(f"The body is not a steering command: {error}") from error


def as_command(request: WorkerSteerRequest, task_id: str) -> WorkerCommand:
    """Return what is asked of one task."""
    fields = {name: getattr(request, name) for name in WorkerCommand.__struct_fields__ if name != "task_id"}
    return WorkerCommand(task_id=task_id, **fields)


def _receipt(
    directive: SteeringDirective, scope: str, task_id: str, receipt: Receipt, checkpoint: str
) -> WorkerReceipt:
    return WorkerReceipt(
        kind=directive.verb,
        task_id=task_id,
        principal=directive.created_by,
        scope=scope,
        payload_hash=directive.payload_hash,
        receipt_hash=receipt.receipt_hash,
        mailbox_entry_hash=receipt.leaf_hash,
        timestamp=datetime.fromisoformat(directive.received_at).timestamp(),
        mailbox_seq=directive.position,
        directive_id=directive.directive_id,
        batch_id=directive.batch_id,
        status=directive.status,
        checkpoint_event_hash=checkpoint,
        abort_signal_written=directive.verb == "abort" and directive.status == "applied",
    )


def _checkpoint(log: EventLog, run: CoordinatorRun, directive: SteeringDirective) -> str:
    """Return the leaf hash of the newest pause, for whoever paused the worker or goes on from there."""
    child = run.children[directive.scope.child_run_id or ""]
    if directive.verb != "resume" and (directive.verb != "pause" or child.paused is None):
        return ""
    found, after = 0, 0
    while page := log.read_stream(child.stream, after, PAGE):  # ends: a child's own stream holds no output
        found = next((fact.position for fact in reversed(page) if isinstance(fact.event, Paused)), found)
        after = page[-1].version
    return log.receipts([found])[found].leaf_hash if found else ""
